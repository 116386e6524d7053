"""What the orchestrator asks of whatever starts a server, and what that asks of the software it starts.

A runner is a place (a process here, a container, someone else's server); the software is what runs there (SGLang, the
embedded engine). Each runner works with each software.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    """What the server says of itself (``/server_info``): version, effective settings, weights hashes; and what only its
    runner knows: ``image``, ``image_digest``, ``gpus`` (names), ``driver``."""
    tokenizer: Path
    """Folder on this machine with the tokenizer's files (chat template) that the server loaded."""
    pids: tuple[int, ...] = field(default=())
    """Its processes, as numbered where ``sampler`` runs."""
    sampler: tuple[str, ...] = ()
    """Command that starts the telemetry sampler where the server runs; empty: on this machine."""
    client: tuple[str, ...] = ()
    """Command that starts the load client where the server runs; empty: requests are sent from this process."""
    client_url: str | None = None
    """The server as that client sees it."""


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


@dataclass(frozen=True)
class Launch:
    """How a server is entered."""

    words: list[str]
    env: dict[str, str]


Ask = Callable[[Sequence[str]], str]
"""Runs a short command where the server will run and returns what it printed; raises ServerFailure."""


class Software(Protocol):
    """What is known of a server's software, for one start of it. Made from a server config whose paths are those of the
    place where it runs."""

    def launch(self, host: str, port: int, ask: Ask) -> Launch:
        """Command line and environment. Raises ServerFailure where this version of the software would refuse it."""
        ...

    def feed(self, lines: Iterable[str]) -> str:
        """Read what its log said since the last call; returns what it is doing, in words for a person who waits."""
        ...

    def ready(self, url: str) -> bool:
        """Whether it takes requests, as far as what it was fed and what it answers tell."""
        ...

    def identify(self, url: str, pids: Sequence[int] | None) -> dict[str, Any]:
        """What it says of itself, proven to be what was asked for. ``pids``: the processes that were started, where
        they are numbered as the server numbers them. Raises ServerFailure (``identity``)."""
        ...

    def failure(self, code: int, log: Path, served: bool) -> ServerFailure:
        """Why it ended. ``code``: its exit code, or minus the signal that ended it."""
        ...


Prepare = Callable[[dict[str, Any], Callable[[str], None]], tuple[dict[str, Any], Software]]
"""Server config -> the config with the paths of the machine that serves, and its software for one start. May fetch a
model, which the second argument is told of. Raises ServerFailure."""
