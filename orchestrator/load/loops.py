"""Which request is sent when: closed loop (so many in flight) and open loop (at planned times).

Each record says whether the request ran under full load from its first to its last moment (``steady``); those of the
ramp up and down are marked, not dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any

from orchestrator.load.http import Address, Broken, Line, clock
from orchestrator.load.request import Limits, Request
from orchestrator.load.send import send
from orchestrator.load.timer import Alarm
from orchestrator.measuring.records import RequestRecord

LEAD_S = 0.5
"""How long before its time a request of an open loop opens its connection."""
_FILES_BESIDE = 256
"""Open files that are not connections: generous."""
Keep = Callable[[RequestRecord], None]


async def closed_loop(url: str, requests: Iterable[Request], concurrency: int, limits: Limits, keep: Keep) -> None:
    """Send the requests in order with ``concurrency`` of them in flight, on connections that are opened before the
    first; ``keep`` gets each record as it ends.

    Load is full until a connection finds no further request. When cancelled, the records of the requests in flight
    (outcome ``cancelled``) are kept before this returns.
    """
    _allow_files(concurrency)
    lines = [Line(Address.of(url)) for _ in range(concurrency)]
    queue = iter(requests)
    full = True

    async def worker(line: Line) -> None:
        nonlocal full
        for request in queue:
            record = await send(line, request, limits)
            keep(record.model_copy(update={"steady": full}))
            if record.outcome == "cancelled":
                raise asyncio.CancelledError
        full = False

    try:
        await asyncio.gather(*map(_open, lines))
        with _no_collection():
            await _all(worker(line) for line in lines)
    finally:
        for line in lines:
            line.close()


async def open_loop(url: str, requests: Sequence[Request], times: Sequence[float], limits: Limits, keep: Keep) -> None:
    """Send each request at its time (s after the first), however many are in flight; ``keep`` gets each record as it
    ends, with how late it was sent.

    Every request has a connection of its own that is open before its time. Load is full from the first end of an
    answer to the last sending. Cancelled as ``closed_loop`` is: what was not sent yet leaves no record.
    """
    _allow_files(len(requests))
    address = Address.of(url)
    left = len(requests)
    first_end: float | None = None

    async def one(alarm: Alarm, request: Request, due: float) -> None:
        nonlocal left, first_end
        await alarm.until(due - LEAD_S)
        line = Line(address)
        sent = False

        async def release() -> float:
            nonlocal left, sent
            await alarm.until(due)
            left, sent = left - 1, True
            return due

        try:
            record = await send(line, request, limits, release)
        finally:
            line.close()
        if not sent:
            raise asyncio.CancelledError
        steady = first_end is not None and record.sent_at >= first_end and left > 0
        first_end = clock() if first_end is None else first_end
        keep(record.model_copy(update={"steady": steady}))
        if record.outcome == "cancelled":
            raise asyncio.CancelledError

    with Alarm() as alarm, _no_collection():
        start = clock() + 2 * LEAD_S
        await _all(one(alarm, request, start + time) for request, time in zip(requests, times, strict=True))


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """The collector walks all that this process has loaded, for some hundredths of a second; it can wait."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all at once; the first failure, or a cancellation, ends the others before this returns."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _open(line: Line) -> None:
    with contextlib.suppress(Broken):  # it fails its requests, not the loop
        await line.open()


def _allow_files(connections: int) -> None:
    """Shells often allow 1024 open files, which a thousand requests in flight need for themselves."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _FILES_BESIDE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
