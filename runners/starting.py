"""Waiting until a server that was started is ready; and what every runner needs of its log and its port."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from orchestrator.load.get import get
from runners.base import ServerFailure, Software

LOOPBACK = "127.0.0.1"
_POLL_S = 0.1
_TAIL_LINES = 12
_LINE = 1000
"""Characters shown of a line."""
_PIECE = 2**20
"""Bytes that are read of a log at a time, and twice that of either end of a whole one: servers of a broken image have
filled disks, which need not fill the memory, too."""


def wait_until_ready(
    software: Software,
    url: str,
    log: Path,
    ended: Callable[[], ServerFailure | None],
    on_status: Callable[[str], None],
    timeout_s: float,
    listens: Callable[[], bool] = lambda: True,
) -> None:
    """Returns once the server takes requests.

    ``ended``: why it is gone, None while it runs. ``listens``: whether what has the port is ours, where that can be
    told. Raises ServerFailure: what ``ended`` says, or ``ready_timeout``; and what ``on_status`` raises.
    """
    deadline = time.monotonic() + timeout_s
    lines = LogLines(log)
    while True:
        on_status(f"starting the server: {stage}" if (stage := software.feed(lines)) else "starting the server")
        if (failure := ended()) is not None:
            raise failure
        if listens() and software.ready(url):
            return
        if time.monotonic() > deadline:
            raise ServerFailure(
                "ready_timeout",
                f"the server was not ready within {timeout_s:g} s (runner.ready_timeout_s)"
                + (f"; it was {stage}" if stage else ""),
                log,
                detail=tail(log),
            )
        time.sleep(_POLL_S)


class LogLines:
    """The whole lines that a growing log got since it was last iterated."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._position = 0

    def __iter__(self) -> Iterator[str]:
        if not self._log.exists():
            return
        with self._log.open("rb") as file:
            file.seek(self._position)
            piece = file.read(_PIECE)
        whole, newline, _ = piece.rpartition(b"\n")
        if not newline and len(piece) == _PIECE:  # a line without an end
            whole = piece
        self._position += len(whole) + len(newline)
        yield from whole.decode(errors="replace").splitlines()


def log_text(log: Path) -> str:
    """The whole of it, without the middle of one that is very long; "" where there is none."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        first = file.read(2 * _PIECE)
        left = log.stat().st_size - len(first)
        if left > 2 * _PIECE:
            file.seek(-2 * _PIECE, 2)
            first += b"\n(the middle is left out)\n"
        return (first + file.read()).decode(errors="replace")


def log_lines(log: Path) -> list[str]:
    """Its lines that are not empty; a progress bar's updates count as lines."""
    return [line for line in log_text(log).replace("\r", "\n").splitlines() if line.strip()]


def tail(log: Path) -> str:
    """What it said last."""
    return "\n".join(line[:_LINE] for line in log_lines(log)[-_TAIL_LINES:])


def get_json(url: str, timeout_s: float = 30.0) -> dict[str, Any]:
    """Raises OSError where nothing answers, ValueError where the answer is not a JSON object."""
    body = get(url, timeout_s)
    try:
        told = json.loads(body)
    except RecursionError as problem:
        raise ValueError("the answer is not JSON of a server's") from problem
    if not isinstance(told, dict):
        raise ValueError(f"the answer is not a JSON object: {body[:60]!r}")
    return told


def not_in_form(url: str, problem: Exception) -> ServerFailure:
    """What answers `/server_info` with JSON, and not with that of the engine that was asked for."""
    told = f"{url}/server_info is not what this engine answers ({type(problem).__name__}: {problem}): is it one?"
    return ServerFailure("identity", told)


def answers(url: str, timeout_s: float = 5.0) -> bool:
    """Whether a GET is answered with 200."""
    try:
        get(url, timeout_s)
    except OSError:
        return False
    return True


def free_port(wanted: int | None = None) -> int:
    """``wanted`` if nothing listens there (ServerFailure otherwise), else any free port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, wanted or 0))
        except OSError as problem:
            raise ServerFailure(
                "port_in_use",
                f"runner.port={wanted} cannot be used ({problem.strerror}): stop what listens there, choose another, "
                "or leave runner.port=null for any free port",
            ) from problem
        return int(probe.getsockname()[1])
