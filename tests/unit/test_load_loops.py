"""Closed and open loop, precise timers, and the part of a trial in which the load is full."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from itertools import pairwise
from typing import Any

import pytest
import uvloop

from orchestrator.load.arrivals import schedule
from orchestrator.load.http import clock
from orchestrator.load.loops import LEAD_S, closed_loop, open_loop
from orchestrator.load.request import Limits
from orchestrator.load.timer import Alarm, Timer
from orchestrator.load.window import full_load, full_load_tok_s, tokens_between
from orchestrator.measuring.records import RequestRecord
from tests.fake_server import Fake, serve
from tests.record_factory import record, request

LIMITS = Limits(timeout_s=20, stall_timeout_s=20)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(asyncio.wait_for(work, 30))


def sent_at(fake: Fake, times: Sequence[float], **limits: float) -> list[RequestRecord]:
    kept: list[RequestRecord] = []
    requests = [request(prompt_id=f"p{number}") for number in range(len(times))]
    run(open_loop(fake.url, requests, times, LIMITS, kept.append))
    return sorted(kept, key=lambda one: one.sent_at)


# Arrivals -----------------------------------------------------------------------------------------------------------


def test_constant_arrivals_have_equal_gaps() -> None:
    assert schedule("constant", 4.0, 4, seed=1, repeat=0) == [0.0, 0.25, 0.5, 0.75]


def test_poisson_arrivals_are_exponential_and_follow_from_the_seed() -> None:
    times = schedule("poisson", 5.0, 20_000, seed=1, repeat=0)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert times[0] == 0.0 and mean == pytest.approx(0.2, rel=0.03)
    above = sum(gap > 0.4 for gap in gaps) / len(gaps)
    assert above == pytest.approx(0.1353, abs=0.01), "exp(-2) exceed twice the mean"
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.06), "sd = mean"
    assert schedule("poisson", 5.0, 100, seed=1, repeat=0) == times[:100]
    assert schedule("poisson", 10.0, 100, seed=1, repeat=0) == pytest.approx([time / 2 for time in times[:100]])
    for seed, repeat in ((2, 0), (1, 1)):
        assert schedule("poisson", 5.0, 3, seed, repeat)[1] != times[1]


# Timers -------------------------------------------------------------------------------------------------------------


def test_an_alarm_wakes_each_task_at_its_time_and_never_before() -> None:
    woken: dict[float, float] = {}

    async def go() -> None:
        start = clock()

        async def wait(alarm: Alarm, after: float) -> None:
            await alarm.until(start + after)
            woken[after] = clock() - start

        with Alarm() as alarm:
            left = asyncio.create_task(wait(alarm, 5.0))
            await asyncio.sleep(0)
            await asyncio.gather(*(wait(alarm, after) for after in (0.0301, 0.0102, 0.0203, 0.0102, -1.0)))
            left.cancel()

    run(go())
    assert list(woken) == [-1.0, 0.0102, 0.0203, 0.0301], "in the order of their times, the past at once"
    assert all(at >= after for after, at in woken.items())


def test_a_timer_that_is_set_again_fires_at_the_new_time_only() -> None:
    fired: list[float] = []

    async def go() -> None:
        start = clock()
        timer = Timer(lambda: fired.append(clock() - start))
        timer.at(start + 5.0)
        timer.at(start + 0.02)
        await asyncio.sleep(0.06)
        timer.close()

    run(go())
    assert len(fired) == 1 and fired[0] >= 0.02


# Open loop ----------------------------------------------------------------------------------------------------------


def test_an_open_loop_sends_at_the_planned_times_whatever_the_server_does() -> None:
    times = [0.0, 0.05, 0.06, 0.2]
    with serve(Fake(delay_s=0.3)) as fake:  # an answer takes 2 s
        records = sent_at(fake, times)
    assert fake.most_in_flight == 4
    assert [one.outcome for one in records] == ["ok"] * 4
    late = [one.late_s for one in records if one.late_s is not None]
    assert len(late) == 4 and min(late) >= 0
    starts = [one.sent_at - one.late_s for one in records if one.late_s is not None]
    assert [start - starts[0] for start in starts] == pytest.approx(times, abs=1e-6), "lateness is against the plan"


def test_what_an_open_loop_cannot_send_is_told_by_its_request_at_its_time() -> None:
    with serve(Fake()) as fake:
        pass
    records = sent_at(fake, [0.0, 0.1])
    assert [one.outcome for one in records] == ["error", "error"]
    assert all(one.late_s is not None and one.late_s >= 0 for one in records)
    assert records[1].sent_at - records[0].sent_at >= 0.05


def test_a_cancelled_open_loop_has_records_of_what_was_sent_only() -> None:
    kept: list[RequestRecord] = []

    async def go(fake: Fake) -> None:
        requests = [request(prompt_id=f"p{number}") for number in range(3)]
        times = [0.0, 0.0, LEAD_S / 2 + 0.3]  # of the third, the connection is open already
        task = asyncio.create_task(open_loop(fake.url, requests, times, LIMITS, kept.append))
        while len(fake.bodies) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with serve(Fake(fault=lambda body: "stall")) as fake:
        run(go(fake))
        assert len(fake.bodies) == 2
    assert [one.outcome for one in kept] == ["cancelled", "cancelled"]


def test_a_failure_of_the_caller_ends_the_loop() -> None:
    def keep(one: RequestRecord) -> None:
        raise RuntimeError("the disk is full")

    with serve(Fake()) as fake, pytest.raises(RuntimeError, match="the disk is full"):
        run(open_loop(fake.url, [request(), request()], [0.0, 9.0], LIMITS, keep))


# Full load ----------------------------------------------------------------------------------------------------------


def test_in_a_closed_loop_the_load_is_full_until_a_connection_finds_no_more_work() -> None:
    kept: list[RequestRecord] = []
    lengths = [2, 6, 4, 9, 3]  # with two in flight: p0 p2 | p1 p3 | p4 alone at its end
    requests = [request(tokens=length, prompt_id=f"p{number}") for number, length in enumerate(lengths)]
    with serve(Fake(delay_s=0.05)) as fake:
        run(closed_loop(fake.url, requests, 2, LIMITS, kept.append))
    ended = [one.prompt_id for one in sorted(kept, key=lambda one: one.sent_at + (one.e2e_s or 0))]
    steady = {one.prompt_id for one in kept if one.steady}
    assert steady == set(ended[:4]), "all that ended while both connections were busy"
    span = full_load(kept, 2)
    assert span is not None
    by_name = {one.prompt_id: one for one in kept}
    assert span == (by_name["p1"].sent_at, by_name[ended[3]].sent_at + (by_name[ended[3]].e2e_s or 0))


def test_with_fewer_requests_than_places_the_load_is_never_full() -> None:
    kept: list[RequestRecord] = []
    with serve(Fake()) as fake:
        run(closed_loop(fake.url, [request(), request()], 3, LIMITS, kept.append))
    assert [one.steady for one in kept] == [False, False]
    assert full_load(kept, 3) is None and full_load_tok_s([kept], 3) is None


def test_in_an_open_loop_the_load_is_full_from_the_first_end_to_the_last_sending() -> None:
    # An answer takes 0.35 s: p0 is the ramp up; p1 is sent after its end and ends before p2 is sent.
    with serve(Fake(delay_s=0.05)) as fake:
        records = sent_at(fake, [0.0, 1.5, 3.0])
    assert [one.steady for one in records] == [False, True, False]
    assert full_load(records, None) == (records[0].sent_at + (records[0].e2e_s or 0), records[2].sent_at)


def test_tokens_count_by_when_they_arrived() -> None:
    one = record(sent_at=10.0, chunks=[(0.5, 1), (1.0, 4), (2.0, 8)], output_ids=list(range(8)), e2e_s=2.0)
    two = record(sent_at=11.0, chunks=[(0.5, 3), (2.0, 5)], output_ids=list(range(5)), e2e_s=2.0)
    assert tokens_between([one, two], 10.5, 12.0) == 3 + 4 + 3
    assert full_load([one, two], 2) == (11.0, 12.0) and full_load_tok_s([[one, two]], 2) == (4 + 3) / 1.0
    assert full_load([one, two], 1) == (10.0, 13.0)
    assert full_load([one, record(e2e_s=None, outcome="timeout")], 1) is None, "its load is not known"
    assert full_load([], 1) is None
