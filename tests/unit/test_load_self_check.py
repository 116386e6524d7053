"""The client measures itself: provoked by burning CPU and by blocking the loop, for real."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from orchestrator.load.self_check import PERIOD_S, ClientUsage, Watch
from tests.record_factory import record


def watch(work: Callable[[], Coroutine[Any, Any, None]]) -> ClientUsage:
    async def go() -> ClientUsage:
        with Watch() as watch:
            await work()
        # A chunk every 100 ms.
        return watch.usage([record(late_s=0.001), record(late_s=0.003)])

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(go())


async def idle() -> None:
    await asyncio.sleep(0.3)


async def burn() -> None:
    """All of a core, in pieces too short to make the loop late."""
    end = time.thread_time() + 0.3  # of this thread: others of the tests' process may be at work
    while time.thread_time() < end:
        busy = time.thread_time() + 0.0005
        while time.thread_time() < busy:
            pass
        await asyncio.sleep(0)


async def block() -> None:
    await asyncio.sleep(0.1)
    time.sleep(0.5)
    await asyncio.sleep(0.1)


def test_a_client_that_waits_uses_little() -> None:
    usage = watch(idle)
    assert usage.cpu_share < 0.5 and usage.wall_s >= 0.29  # timers count in whole milliseconds
    assert usage.loop_cpu_s <= usage.cpu_s
    assert usage.chunk_gap_p50_s == pytest.approx(0.1)
    assert (usage.late_p99_s, usage.late_max_s) == (pytest.approx(0.00298), 0.003)


def test_the_gap_between_releases_is_that_of_their_planned_times() -> None:
    async def go() -> ClientUsage:
        with Watch() as watch:
            pass
        sent = [(1.0, 0.0), (1.3, 0.1), (1.4, 0.0)]  # due at 1.0, 1.2 and 1.4
        return watch.usage([record(sent_at=at, late_s=late) for at, late in sent])

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        usage = runner.run(go())
    assert usage.release_gap_s == pytest.approx(0.2)
    assert usage.late == "up to 98.0 ms late (p99, 100.0 ms at most), with one due every 200.0 ms"


@pytest.mark.parametrize(
    ("late_s", "gap_s", "late"),
    [
        (None, None, False),  # a closed loop
        (0.0049, 1.0, False),
        (0.0051, 1.0, True),
        (0.0011, 0.01, True),  # of a request every 10 ms
        (0.0009, 0.01, False),
        (0.0049, None, False),
        (0.0051, None, True),
    ],
)
def test_where_a_release_is_late(late_s: float | None, gap_s: float | None, late: bool) -> None:
    usage = ClientUsage(
        wall_s=10, cpu_s=1, loop_cpu_s=1, lag_p99_s=0, lag_max_s=0, chunk_gap_p50_s=0.02, late_p99_s=late_s,
        late_max_s=late_s, release_gap_s=gap_s,
    )  # fmt: skip
    assert (usage.late is not None) == late


def test_a_client_that_burns_its_core_sees_it() -> None:
    usage = watch(burn)
    assert usage.loop_cpu_s >= 0.3
    assert usage.cpu_s >= usage.loop_cpu_s and usage.cpu_share == pytest.approx(usage.cpu_s / usage.wall_s)


def test_a_blocked_loop_counts_for_every_moment_it_was_blocked() -> None:
    usage = watch(block)
    assert usage.lag_max_s >= 0.5 - PERIOD_S and usage.cpu_share < 0.5
    late = usage.lag_p99_s
    assert late >= 0.4, "one timer out of some thirty was called late, but some twenty-five were due meanwhile"
