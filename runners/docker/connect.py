"""The container engine of a node: how its API and the ports it publishes are reached from here."""

from __future__ import annotations

import os
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import docker

from runners.base import ServerFailure
from runners.docker.failures import of_engine
from runners.starting import LOOPBACK

CALL_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10.0


class Connection:
    """An engine that answered. A context manager: leaving it closes what it opened."""

    client: docker.DockerClient
    remote = False
    """Whether the node is another machine: its files, processes and loopback are not those of this one."""
    shell = True
    """Whether ``words`` runs anything."""
    address: str
    """Where the engine is, in words for a person."""
    publish_on = LOOPBACK
    """Address of the node on which a container's port is published, so that ``reach`` finds it."""

    def reach(self, port: int) -> str:
        """URL on this machine of a port that a container publishes on ``publish_on``. Raises ServerFailure."""
        return f"http://{LOOPBACK}:{port}"

    def words(self, *command: str) -> list[str]:
        """A command line that runs ``command`` on the node. Raises ServerFailure (``no_shell``) where none can."""
        return list(command)

    def docker_words(self, *command: str) -> list[str]:
        """The command line of Docker's own client for this engine."""
        return ["docker", *command]

    def check(self, timeout_s: float = 5.0) -> None:
        """Ask the engine for a sign of life. Raises ServerFailure (``engine_gone``, ``engine_hung``)."""
        api = self.client.api
        try:
            api.get(api.base_url + "/_ping", timeout=timeout_s).raise_for_status()
        except Exception as problem:
            raise of_engine(problem, self.address) from problem

    def close(self) -> None:
        with suppress(Exception):
            self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(node: dict[str, Any]) -> Connection:
    """The engine of a node (``node`` of an arm's config). Raises ServerFailure (``engine_gone``, ``engine_hung``,
    ``node_unreachable`` and what else OpenSSH or TLS refuse)."""
    if node["kind"] == "ssh":
        from runners.docker.ssh import SshConnection

        return SshConnection(node["host"], node["docker_socket"])
    if node["kind"] == "tls":
        from runners.docker.tls import TlsConnection

        return TlsConnection(node["url"], node["certs"])
    return LocalConnection()


class LocalConnection(Connection):
    """The engine of this machine, where the Docker client would look: DOCKER_HOST, else the usual socket."""

    def __init__(self) -> None:
        self.address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        try:
            self.client = docker.from_env(timeout=CONNECT_TIMEOUT_S)
        except Exception as problem:
            raise of_engine(problem, self.address) from problem
        self.client.api.timeout = CALL_TIMEOUT_S


def unreachable(node: str, problem: BaseException | None) -> ServerFailure:
    """What a failed call means of an engine on another machine; ``problem``: what the client raised."""
    told = of_engine(problem if isinstance(problem, Exception) else OSError(str(problem)), node)
    if told.cause not in ("engine_gone", "engine_hung"):
        return told
    return ServerFailure("node_unreachable", f"{node} does not answer: its network, or its engine, is down ({problem})")
