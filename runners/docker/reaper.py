"""Removes the containers of an orchestrator that died, however it died.

A child process in a session of its own (Ctrl-C at the terminal does not reach it) that blocks on a pipe of which only
the orchestrator holds the other end. When that closes without a word, the orchestrator is gone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import docker

_DONE = b"done"
_TRIES = 30
_PAUSE_S = 1.0
_EMPTY_LOOKS = 2
"""A container that was being made when the orchestrator died appears a moment later: look twice."""
_END_S = 5.0


class Reaper:
    """Watches over the containers with a label until it is closed; by then they have to be removed."""

    def __init__(self, node: dict[str, Any], label: str) -> None:
        reading, self._writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "runners.docker.reaper", json.dumps(node), label],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(reading)

    def close(self, done: bool = True) -> None:
        """``done``: nothing is left to remove; else it goes on trying after this process has ended."""
        if done:
            with suppress(BrokenPipeError):
                os.write(self._writing, _DONE)
        os.close(self._writing)
        if done:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def remove_by_label(client: docker.DockerClient, label: str) -> int:
    """Removes all containers with ``name=value`` in their labels; returns how many there were. Raises what the client
    raises where the engine does not answer."""
    found = client.containers.list(all=True, ignore_removed=True, filters={"label": label})
    for container in found:
        remove(container)
    return len(found)


def remove(container: Any) -> None:
    """Kill and remove, with its anonymous volumes; one that is gone, or being removed by another, is no error."""
    from docker.errors import APIError

    try:
        container.remove(force=True, v=True)
    except APIError as problem:
        if problem.status_code not in (404, 409):
            raise


def main() -> None:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    said = b""
    while chunk := os.read(0, 64):
        said += chunk
    if said != _DONE:
        _reap(json.loads(sys.argv[1]), sys.argv[2])


def _reap(node: dict[str, Any], label: str) -> None:
    """Until nothing is found twice; an engine that does not answer may be starting anew."""
    from runners.docker.connect import connect

    empty = 0
    for _ in range(_TRIES):
        try:
            with connect(node) as connection:
                empty = 0 if remove_by_label(connection.client, label) else empty + 1
        except Exception:
            empty = 0
        if empty == _EMPTY_LOOKS:
            return
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main()
