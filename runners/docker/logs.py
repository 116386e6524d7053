"""Brings a container's log into a file on this machine while it grows."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

_REOPEN_S = 0.5
_END_S = 5.0


class LogFollower:
    """A thread that writes to ``file`` until the container has ended or it is closed.

    An end of the stream proves nothing: an engine that is killed ends it as a container that exits does. So the stream
    is opened anew until inspection says that the container has ended; what is there already is skipped.
    """

    def __init__(self, container: Any, file: Path) -> None:
        self._container = container
        self._file = file.open("wb")
        self._written = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="container log", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until the whole log of a container that has ended is in the file."""
        self._thread.join(_END_S)

    def close(self) -> None:
        self._closed.set()
        self._thread.join(_END_S)
        if not self._thread.is_alive():  # else its engine hangs, and the thread ends with the process
            self._file.close()

    def _follow(self) -> None:
        ended = False
        while True:
            with suppress(Exception):  # of the engine: whether the server lives is asked elsewhere
                self._read(follow=not ended)
            if ended or self._closed.is_set():
                return
            ended = self._ended()
            if not ended:
                self._closed.wait(_REOPEN_S)

    def _read(self, follow: bool) -> None:
        skip = self._written
        for chunk in self._container.logs(stream=True, follow=follow):
            if skip >= len(chunk):
                skip -= len(chunk)
                continue
            self._file.write(chunk[skip:])
            self._file.flush()
            self._written += len(chunk) - skip
            skip = 0

    def _ended(self) -> bool:
        """Whether the container has ended, or is not there any more."""
        from docker.errors import NotFound

        try:
            self._container.reload()
            return not self._container.attrs["State"]["Running"]
        except NotFound:
            return True
        except Exception:
            return False
