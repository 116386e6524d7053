"""What the orchestrator asks of whatever starts a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


class ServerFailure(RuntimeError):
    """A server did not start or died.

    ``cause`` is one word for programs, the message a sentence that says what to do, ``detail`` what the log said last.
    ``served``: it had been ready, so that another start may well work.
    """

    def __init__(
        self, cause: str, message: str, log: Path | None = None, served: bool = False, detail: str = ""
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.log = log
        self.served = served
        self.detail = detail


@dataclass(frozen=True)
class ServerHandle:
    """A server that is ready and was proven to be the one asked for."""

    url: str
    log: Path
    command: list[str]
    identity: dict[str, Any]
    """What the server says of itself (``/server_info``): version, effective settings, weights hashes."""
    pids: tuple[int, ...] = field(default=())


class Runner(Protocol):
    """Starts one server at a time. ``start`` raises ServerFailure; ``stop`` never leaves a process behind."""

    def start(self, config: dict[str, Any], directory: Path, on_status: Callable[[str], None]) -> ServerHandle:
        """Start the server of a server config and wait until it is ready; its log lies in ``directory``.

        ``on_status`` is called several times a second with what the server is doing; what it raises ends the start.
        """
        ...

    def stop(self, handle: ServerHandle) -> None: ...

    def failure(self, handle: ServerHandle) -> ServerFailure | None:
        """Why the server died, with what its log said last; None while it runs."""
        ...

    def peak_memory_bytes(self, handle: ServerHandle) -> int | None:
        """Peak memory of the serving processes so far, bytes; None where it cannot be read."""
        ...
