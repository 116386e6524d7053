"""Points in time to the microsecond, where the loop's own timers (asyncio's and uvloop's) count whole milliseconds.

Both the moment at which a request is released and the lag of the loop are fractions of a millisecond, so they are taken
from a Linux timerfd on CLOCK_MONOTONIC, which is the clock of ``time.perf_counter``.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import os
import time
from collections.abc import Callable
from typing import Self

_CLOCK_MONOTONIC = 1
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC  # TFD_NONBLOCK, TFD_CLOEXEC
_TFD_TIMER_ABSTIME = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Timer:
    """Calls ``callback`` on the running loop once after each ``at``. Python 3.13 has these calls in ``os``."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._fired)

    def at(self, due: float) -> None:
        """Fire at ``due`` (seconds, ``time.perf_counter``), at once where that is past; replaces an earlier one."""
        nanoseconds = max(1, round(due * 1e9))  # zero would switch it off
        value = _Timespec(*divmod(nanoseconds, 1_000_000_000))
        if self._libc.timerfd_settime(
            self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(_Itimerspec(_Timespec(), value)), None
        ):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _fired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # set anew after it had fired
            return
        self._callback()


class Alarm:
    """Wakes any number of tasks, each at its time."""

    def __init__(self) -> None:
        self._timer = Timer(self._wake)
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.close()

    async def until(self, due: float) -> None:
        """Wait until ``due`` (seconds, ``time.perf_counter``)."""
        future = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._waiting, (due, self._count, future))
        if self._waiting[0][2] is future:
            self._timer.at(due)
        await future

    def _wake(self) -> None:
        now = time.perf_counter()
        while self._waiting and self._waiting[0][0] <= now:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)
        if self._waiting:
            self._timer.at(self._waiting[0][0])
