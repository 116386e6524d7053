"""Starts a server in a container of a node's engine, watches it, and removes it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from docker.errors import NotFound

from orchestrator.config.masking import mask_command
from orchestrator.planning import hardware
from orchestrator.planning.gpu_choice import position
from orchestrator.planning.identity import content_hash
from runners.base import Prepare, ServerFailure, ServerHandle, Software
from runners.docker import client as load_client
from runners.docker import container as containers
from runners.docker import failures, images, inside, node_facts, owner, places, telemetry
from runners.docker.ask import ImageAsker
from runners.docker.connect import Connection, connect
from runners.docker.gpu_lock import NodeLock
from runners.docker.logs import LogFollower
from runners.docker.reaper import Reaper, remove
from runners.docker.sweep import sweep
from runners.gpu_lock import identifiers
from runners.starting import LOOPBACK, tail, wait_until_ready

_GRACE_S = 10
_LOOK_S = 5.0
_AGAIN_S = 2.0
_LISTEN = "0.0.0.0"
"""Inside the container, whose network is its own: what the node publishes is on its loopback."""


class DockerRunner:
    """One server at a time, one container each.

    ``node``: of the arm's config. ``options``: ``port``, ``pull``, ``hf_cache``, ``kernel_cache``, ``offline`` and
    ``ready_timeout_s`` of its runner. ``client_image``: of the load client, where that runs beside the server.
    """

    def __init__(
        self,
        prepare: Prepare,
        arm: str,
        node: dict[str, Any],
        options: Mapping[str, Any],
        client_image: str | None = None,
    ) -> None:
        self._prepare = prepare
        self._arm = arm
        self._node = node
        self._options = options
        self._client_image = client_image
        self._client: Any = None
        self._connection: Connection | None = None
        self._reaper: Reaper | None = None
        self._container: Any = None
        self._logs: LogFollower | None = None
        self._lock: NodeLock | None = None
        self._software: Software | None = None
        self._processes: list[psutil.Process] = []

    def start(self, config: dict[str, Any], directory: Path, on_status: Callable[[str], None]) -> ServerHandle:
        """Make the container, start it and wait until its server is ready. Raises ServerFailure; nothing is left then.

        ``on_status`` is called several times a second with what is being done; what it raises stops the start.
        """
        try:
            return self._start(config, directory, on_status)
        except BaseException:
            self._end()
            raise

    def stop(self, handle: ServerHandle) -> None:
        self._end()

    def failure(self, handle: ServerHandle) -> ServerFailure | None:
        return self._ended(handle.log, served=True)

    def peak_memory_bytes(self, handle: ServerHandle) -> int | None:
        with suppress(Exception):  # of an engine that is gone: that is told when a request fails
            return inside.peak_memory_bytes(self._container)
        return None

    def _start(self, config: dict[str, Any], directory: Path, on_status: Callable[[str], None]) -> ServerHandle:
        on_status("starting the server: asking the container engine")
        self._connection = connection = connect(self._node)
        image = config["runner"]["image"]
        lease = owner.new_lease()
        self._reaper = Reaper(self._node, f"{owner.LEASE}={lease}")
        try:
            sweep(connection.client)
            engine = places.engine_of(connection)
        except Exception as problem:
            raise failures.of_engine(problem, "the container engine") from problem
        pull: images.Pull = "never" if self._options["pull"] == "never" else "missing"  # always: once, before the plan
        digest = images.ensure(connection.client, image, pull, on_status)
        machine = node_facts.read(connection, image, bool(containers.gpu_ids(config)))
        labels = owner.labels(lease, arm=self._arm, directory=str(directory.absolute()), server=content_hash(config))
        local, self._software = self._prepare(_for_machine(config, machine), on_status)
        place = places.make(local, self._options, connection, engine)
        self._lock = NodeLock(connection.client, image, labels)
        self._lock.take(identifiers(place.gpus, machine.gpus), connection.address)
        ask = ImageAsker(
            connection.client, image, digest, place.gpus, places.further_mounts(config, connection), labels
        )
        on_status("starting the server: asking its image for its version")
        port = place.port if place.network == "host" and place.port else containers.PORT
        launch = self._software.launch(LOOPBACK if place.network == "host" else _LISTEN, port, ask)
        command = mask_command(containers.command_line(place, launch))
        log = directory / "server.log"
        log.with_name("command.txt").write_text(shlex.join(command) + "\n")
        on_status("starting the server: its container")
        url = self._run(place, containers.arguments(place, launch, labels), log)
        wait_until_ready(
            self._software,
            url,
            log,
            ended=lambda: self._ended(log, served=False),
            on_status=on_status,
            timeout_s=self._options["ready_timeout_s"],
        )
        try:
            identity = self._software.identify(url, None)
            tokenizer = self._tokenizer(identity["tokenizer_path"], local, directory / "tokenizer")
        except ServerFailure as failure:
            failure.log = log
            raise
        known = {"image": image, "image_digest": digest, "container_engine": engine, **_gpus(place, machine)}
        sampler, pids = self._watched(bool(place.gpus))
        client = self._start_client(labels)
        client_url = f"http://{LOOPBACK}:{port}" if client else None
        return ServerHandle(url, log, command, {**identity, **known}, tokenizer, pids, sampler, client, client_url)

    def _start_client(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Command of the load client, whose container is started; empty where it sends from here."""
        assert self._connection is not None
        if self._client_image is None:
            return ()
        try:
            self._client = load_client.create(self._connection, self._client_image, self._container, labels)
            return load_client.start(self._connection, self._client)
        except Exception as problem:
            about = f"the load client's container of {self._client_image} cannot be started"
            raise failures.of_engine(problem, about) from problem

    def _run(self, place: containers.Place, arguments: dict[str, Any], log: Path) -> str:
        """Create, then start: the URL of the server."""
        assert self._connection is not None
        try:
            self._container = self._connection.client.containers.create(place.image, **arguments)
            self._container.start()
            self._container.reload()
        except Exception as problem:
            failure = failures.of_engine(problem, f"the container of {place.image} cannot be started")
            failure.log = log
            raise failure from problem
        self._processes = self._tree()  # its first process, with which the others end
        self._logs = LogFollower(self._container, log)
        if place.network == "host":
            return self._connection.reach(place.port or containers.PORT)
        published = self._container.ports.get(f"{containers.PORT}/tcp")
        if not published:
            raise self._ended(log, served=False) or ServerFailure("engine", "the engine published no port", log)
        return self._connection.reach(int(published[0]["HostPort"]))

    def _ended(self, log: Path, served: bool) -> ServerFailure | None:
        """Why the server is gone, by inspection: neither the end of its log nor a broken connection proves it."""
        if self._container is None or self._software is None or self._connection is None:
            return None
        try:
            state = _state(self._connection, self._container.id)
        except Exception as problem:
            try:
                self._connection.check(_AGAIN_S)  # which may know why, or open a connection that was cut anew
                state = _state(self._connection, self._container.id)
            except Exception as again:
                known = again if isinstance(again, ServerFailure) else None
                failure = known or failures.of_engine(problem, "the container engine")
                failure.log, failure.served, failure.detail = log, served, tail(log)
                return failure
        if state is None:
            return failures.removed(log, served, tail(log))
        if state["Running"]:
            return None
        if self._logs is not None:
            self._logs.finish()
        return failures.ended(state, self._software.failure(failures.code_of(state), log, served), log)

    def _tokenizer(self, path: str, config: dict[str, Any], folder: Path) -> Path:
        """Its folder where it lies on this machine, else a copy."""
        assert self._connection is not None
        here = Path(path)
        if not self._connection.remote and here.is_absolute() and here.is_dir():
            mounts = containers.model_mounts(config)
            if any(here.is_relative_to(mount) for mount in mounts):
                return here
        try:
            return inside.copy_tokenizer(self._container, path, config["target"]["revision"], folder)
        except ServerFailure:
            raise
        except Exception as problem:
            raise failures.of_engine(problem, "the tokenizer's files cannot be read from the container") from problem

    def _watched(self, gpus: bool) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """(command that starts the sampler, empty: on this machine; the processes that it watches)."""
        assert self._connection is not None
        self._processes = self._tree()
        if self._processes:
            return (), tuple(process.pid for process in self._processes)
        try:
            return telemetry.command(self._connection, self._container, gpus)
        except Exception as problem:
            raise failures.of_engine(problem, "the sampler cannot be put into the container") from problem

    def _tree(self) -> list[psutil.Process]:
        """The container's processes as this machine numbers them; empty where they are another machine's."""
        assert self._connection is not None
        with suppress(psutil.Error, OSError):
            pid = self._container.attrs["State"]["Pid"]
            # An engine may be elsewhere though it answers here (DOCKER_HOST, a virtual machine): then the number is
            # that of any process.
            if not self._connection.remote and self._container.id in Path(f"/proc/{pid}/cgroup").read_text():
                first = psutil.Process(pid)
                return [first, *first.children(recursive=True)]
        return []

    def _end(self) -> None:
        """SIGTERM, some seconds of grace, SIGKILL, removal. Without its engine the processes are ended by hand, and the
        reaper goes on trying to remove the container."""
        container, self._container = self._container, None
        client, self._client = self._client, None
        removed = True
        if container is not None and self._connection is not None:
            try:
                self._connection.check()
                if client is not None:
                    remove(client)
                with suppress(NotFound):
                    container.stop(timeout=_GRACE_S)
                remove(container)
            except Exception:
                removed = False
                self._kill()
        if self._lock is not None and removed:  # else the server may still have its GPUs
            try:
                self._lock.release()
            except Exception:
                removed = False
        if self._logs is not None:
            self._logs.close()
        if self._reaper is not None:
            self._reaper.close(done=removed)
        if self._connection is not None:
            self._connection.close()
        self._connection = self._reaper = self._logs = self._lock = None
        self._processes = []

    def _kill(self) -> None:
        """A server that nobody can stop would keep its GPU."""
        for process in self._processes:
            with suppress(psutil.Error):  # ended, its number used again, or another user's
                process.kill()


def _gpus(place: containers.Place, machine: hardware.Machine) -> dict[str, Any]:
    """Names of the server's GPUs, and the driver."""
    if not place.gpus:
        return {}
    found = [position(gpu, machine.gpus) for gpu in place.gpus]
    return {"gpus": [machine.gpus.names[i] for i in found if i is not None], "driver": machine.gpus.driver}


def _for_machine(config: dict[str, Any], machine: hardware.Machine) -> dict[str, Any]:
    """The threads of the embedded engine are those of the machine that serves."""
    if config["engine"] != "embedded" or config["runner"]["threads"] is not None:
        return config
    return {**config, "runner": {**config["runner"], "threads": machine.cpu.cores}}


def _state(connection: Connection, container: str) -> dict[str, Any] | None:
    """``State`` of its inspection, None where it is not there any more. Not by ``reload``: this is asked often, and an
    engine that hangs has to be told from one that takes its time to make a container."""
    api = connection.client.api
    answer = api.get(f"{api.base_url}/v{api.api_version}/containers/{container}/json", timeout=_LOOK_S)
    if answer.status_code == 404:
        return None
    answer.raise_for_status()
    return dict(answer.json()["State"])
