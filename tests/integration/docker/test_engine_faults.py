"""Engines that die, hang, are full, or give GPUs: what the runner says, and that nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from orchestrator.config.names import ConfigError
from runners.base import ServerFailure
from runners.docker import owner
from runners.docker.connect import connect
from runners.docker.sweep import sweep
from tests import base_image
from tests.command_process import eventually
from tests.container_server import config, make_runner
from tests.docker_engine import DockerEngine
from tests.integration.docker.test_runner import get, quiet


def reapers() -> list[psutil.Process]:
    """Those that go on trying to remove a container."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.ZombieProcess):
            if "runners.docker.reaper" in child.cmdline():
                found.append(child)
    return found


def cause(failure: ServerFailure | None) -> str | None:
    return failure.cause if failure else None


def test_no_engine_at_all(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{place}/none.sock")
    with pytest.raises(ServerFailure) as raised:
        make_runner(place).start(config(), place, quiet)
    assert raised.value.cause == "engine_gone" and "systemctl start docker" in str(raised.value)


def test_an_engine_that_is_killed_takes_no_server_along_unseen(own_engine: DockerEngine, place: Path) -> None:
    runner = make_runner(place)
    handle = runner.start(config(), place, quiet)
    server = psutil.Process(handle.pids[-1])
    own_engine.signal(signal.SIGKILL)
    assert cause(runner.failure(handle)) == "engine_gone" and server.is_running()
    runner.stop(handle)  # without its engine, by hand: a server that nobody can stop would keep its GPU
    eventually(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, 10)
    own_engine.start()
    eventually(lambda: own_engine.containers() == [] and not reapers(), 30)  # the reaper went on trying


def test_a_container_that_outlives_its_engine_is_followed_on(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    with DockerEngine("--live-restore") as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.address)
        client = engine.client()
        base_image.make(client, engine.folder)
        client.close()
        runner = make_runner(place)
        handle = runner.start(config(), place, quiet)
        get(handle.url, "/say")
        engine.signal(signal.SIGKILL)
        assert cause(runner.failure(handle)) == "engine_gone"
        engine.start()
        assert runner.failure(handle) is None  # the log's stream broke as it does when a container ends
        get(handle.url, "/say")
        eventually(lambda: handle.log.read_text().split() == ["ready", "said", "said"], 10)
        runner.stop(handle)
        assert engine.containers() == []


def test_an_engine_that_stops_and_comes_back(own_engine: DockerEngine, place: Path) -> None:
    runner = make_runner(place)
    handle = runner.start(config(), place, quiet)
    own_engine.signal(signal.SIGTERM)
    own_engine.start()
    assert cause(runner.failure(handle)) in ("stopped", "killed")
    runner.stop(handle)
    assert own_engine.containers() == []


def test_an_engine_that_hangs(own_engine: DockerEngine, place: Path) -> None:
    runner = make_runner(place)
    handle = runner.start(config(), place, quiet)
    began = time.monotonic()
    own_engine.signal(signal.SIGSTOP)
    try:
        assert cause(runner.failure(handle)) == "engine_hung" and time.monotonic() - began < 10
        began = time.monotonic()
        runner.stop(handle)
        assert time.monotonic() - began < 20
    finally:
        own_engine.signal(signal.SIGCONT)
    eventually(lambda: own_engine.containers() == [] and not reapers(), 30)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own for an engine, with room for one image."""
    folder = Path(f"/tmp/spec-small-{tmp_path.name[:20]}-{time.time_ns() % 10**6}")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=420m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


def test_a_node_whose_disk_is_full(small_disk: Path, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    with DockerEngine(folder=small_disk) as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.address)
        client = engine.client()
        base_image.make(client, engine.folder)
        client.close()
        room = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        (small_disk / "filler").write_bytes(bytes(room))
        with pytest.raises(ServerFailure) as raised:
            make_runner(place).start(config(), place, quiet)
        assert raised.value.cause == "disk_full" and "make room" in str(raised.value)
        (small_disk / "filler").unlink()
        runner = make_runner(place)
        runner.stop(runner.start(config(), place, quiet))
        assert engine.containers() == []


def test_gpus_are_given_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """With a stand-in for NVIDIA's hook, which is all that Docker needs to accept a request for GPUs."""
    hook = tmp_path / "bin" / "nvidia-container-runtime-hook"
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\nexit 0\n")
    hook.chmod(0o755)
    with DockerEngine(first_on_path=hook.parent) as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.address)
        client = engine.client()
        base_image.make(client, engine.folder)
        client.close()
        for chosen, tp_size, seen in (([2, "GPU-abc"], 1, "2,GPU-abc"), (None, 2, "0,1"), ([0], 1, "0")):
            asked = config()
            asked["node"]["gpus"], asked["target"]["tp_size"] = chosen, tp_size
            runner = make_runner(place)
            handle = runner.start(asked, place, quiet)
            assert handle.identity["env"]["NVIDIA_VISIBLE_DEVICES"] == seen
            assert f'--gpus "device={seen}"' in " ".join(handle.command)
            runner.stop(handle)
        hook.write_text("#!/bin/sh\necho nvidia-container-cli: initialization error: driver not loaded >&2\nexit 1\n")
        asked = config()
        asked["node"]["gpus"] = [0]
        with pytest.raises(ServerFailure) as raised:
            make_runner(place).start(asked, place, quiet)
        assert raised.value.cause == "gpu_driver" and "nvidia-smi" in str(raised.value)
        assert engine.containers() == []


def test_what_a_dead_orchestrator_left_is_swept_and_nothing_else(engine: DockerEngine) -> None:
    client = engine.client()

    def made(**labels: str) -> str:
        return str(client.containers.create(base_image.NAME, ["true"], labels=labels).name)

    mine = owner.me()
    where, _, started = mine.rpartition(":")
    another = f"other-machine/1:2:{where.rpartition(':')[2]}:{started}"
    gone, lives, elsewhere, unlabelled = (
        made(**{owner.OWNER: f"{where}:1"}),
        made(**{owner.OWNER: mine}),
        made(**{owner.OWNER: another}),
        made(),
    )
    try:
        with connect({"kind": "local"}) as connection:
            assert sweep(connection.client) == [gone]
            assert set(engine.containers()) == {lives, elsewhere, unlabelled}
    finally:
        for name in (lives, elsewhere, unlabelled):
            client.containers.get(name).remove()


def test_a_comparison_is_refused_before_it_starts(engine: DockerEngine, tmp_path: Path) -> None:
    from orchestrator.config.compose import load
    from orchestrator.job import refuse

    command = ["preset=embedded", "+experiment=embedded_drafters", "runner=docker_embedded", f"output={tmp_path}"]
    refuse(load(command))
    with pytest.raises(ConfigError, match=r"(?s)runner.image=no/such.*docker pull no/such"):
        refuse(load([*command, "runner.image=no/such"]))
