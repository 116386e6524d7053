"""The container engine of a node: how its API and the ports it publishes are reached from here."""

from __future__ import annotations

import os
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, Self

import docker

from runners.docker.failures import of_engine

CALL_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 10.0


class Connection(Protocol):
    """An engine that answered. A context manager: leaving it closes what it opened."""

    client: docker.DockerClient
    remote: bool
    """Whether the node is another machine: its files, processes and loopback are not those of this one."""

    def reach(self, port: int) -> str:
        """URL on this machine of a port that a container publishes on the node's loopback. Raises ServerFailure."""
        ...

    def words(self, *command: str) -> list[str]:
        """A command line that runs ``command`` on the node."""
        ...

    def check(self, timeout_s: float = 5.0) -> None:
        """Ask the engine for a sign of life. Raises ServerFailure (``engine_gone``, ``engine_hung``)."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def connect(node: dict[str, Any]) -> Connection:
    """The engine of a node (``node`` of an arm's config). Raises ServerFailure (``engine_gone``, ``engine_hung``)."""
    return LocalConnection()


class LocalConnection:
    """The engine of this machine, where the Docker client would look: DOCKER_HOST, else the usual socket."""

    remote = False

    def __init__(self) -> None:
        try:
            self.client = docker.from_env(timeout=_CONNECT_TIMEOUT_S)
        except Exception as problem:
            raise of_engine(problem, self.address) from problem
        self.client.api.timeout = CALL_TIMEOUT_S

    @property
    def address(self) -> str:
        return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"

    def reach(self, port: int) -> str:
        return f"http://127.0.0.1:{port}"

    def words(self, *command: str) -> list[str]:
        return list(command)

    def check(self, timeout_s: float = 5.0) -> None:
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
