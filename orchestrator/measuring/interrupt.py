"""Ctrl-C and SIGTERM while servers run: noted at once, acted on where nothing can be lost."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, Self, TypeVar

import uvloop

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """The user or the system asked to stop. Not an Exception, so that no handler of failures takes it for one."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Interrupt:
    """Runs coroutines so that a signal cancels them; elsewhere ``check`` tells of it.

    The handler itself raises nothing: an exception out of nowhere could fall between a process's start and the note
    that it was started. Once a signal came, further ones are ignored, since stopping has begun and is bounded in time.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._task: asyncio.Task[Any] | None = None
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            self._before = {signum: signal.signal(signum, self._note) for signum in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._runner.close()

    def check(self) -> None:
        """Raises Interrupted if a signal came."""
        if self.signum is not None:
            raise Interrupted(self.signum)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Result of the coroutine. Raises Interrupted after it has ended because of a signal."""
        self.check()

        async def cancellable() -> T:
            self._task = asyncio.current_task()
            try:
                return await work
            finally:
                self._task = None

        try:
            return self._runner.run(cancellable())
        except asyncio.CancelledError:
            self.check()
            raise

    def _note(self, signum: int, _: FrameType | None) -> None:
        if self.signum is None:
            self.signum = signum
            if self._task is not None:
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)
