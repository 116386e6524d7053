"""The load client as a process of its own: the same records as from this process, and nothing lost when it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Coroutine
from typing import Any

import psutil
import pytest

from orchestrator.load.http import clock
from orchestrator.load.job import Job
from orchestrator.load.remote import ClientLost, load_client
from orchestrator.load.request import Limits, Request
from orchestrator.load.self_check import ClientUsage
from orchestrator.measuring.records import RequestRecord
from tests.fake_server import Fake, serve
from tests.record_factory import request

LIMITS = Limits(timeout_s=10.0, stall_timeout_s=10.0)
WORKER = (sys.executable, "-m", "orchestrator.load.worker")
HOURS_APART = (
    sys.executable, "-c",
    "import time; real = time.perf_counter; time.perf_counter = lambda: real() + 7200\n"
    "import asyncio, orchestrator.load.worker as worker; asyncio.run(worker.main())",
)  # fmt: skip


def requests(count: int) -> tuple[Request, ...]:
    return tuple(request(prompt_id=f"p{index}") for index in range(count))


def sent(job: Job, command: tuple[str, ...] = WORKER) -> tuple[list[RequestRecord], ClientUsage]:
    records: list[RequestRecord] = []

    async def go() -> ClientUsage:
        async with load_client(command) as send:
            return await send(job, records.append)

    return records, run(go())


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def said(record: RequestRecord) -> dict[str, Any]:
    """All of a record but its times, and what depends on them."""
    found = record.model_dump(exclude={"sent_at", "sent_wall_time", "e2e_s", "late_s", "steady"})
    return found | {"chunks": [tokens for _, tokens in record.chunks]}


@pytest.mark.parametrize("drafts", [0, 3])
def test_the_records_are_those_that_this_process_makes(drafts: int) -> None:
    with serve(Fake(drafts=drafts)) as fake:
        job = Job(fake.url, requests(6), LIMITS, concurrency=2)
        here, usage_here = sent(job, ())
        there, usage_there = sent(job)
    by_prompt = {record.prompt_id: said(record) for record in here}
    assert len(there) == 6 and {record.prompt_id: said(record) for record in there} == by_prompt
    assert len(by_prompt) == 6 and all(record.outcome == "ok" for record in there)
    assert (usage_here.where, usage_there.where) == ("here", "node")
    assert 0 < usage_there.cpu_s < 10 and usage_there.wall_s > 0


def test_an_open_loop_keeps_its_times() -> None:
    with serve(Fake()) as fake:
        records, usage = sent(Job(fake.url, requests(4), LIMITS, times=(0.0, 0.1, 0.2, 0.3)))
    due = sorted(record.sent_at - (record.late_s or 0.0) for record in records)
    assert [round(time - due[0], 3) for time in due] == [0.0, 0.1, 0.2, 0.3]
    assert usage.release_gap_s == pytest.approx(0.1)


@pytest.mark.parametrize("command", [WORKER, HOURS_APART])
def test_records_are_stamped_by_the_clock_of_this_process(command: tuple[str, ...]) -> None:
    with serve(Fake()) as fake:
        began = clock()
        records, _ = sent(Job(fake.url, requests(3), LIMITS, concurrency=1), command)
        ended = clock()
    assert all(began < record.sent_at < ended for record in records)


def test_two_jobs_one_after_another() -> None:
    async def go() -> list[int]:
        counts = []
        async with load_client(WORKER) as send:
            for count in (2, 3):
                records: list[RequestRecord] = []
                await send(Job(fake.url, requests(count), LIMITS, concurrency=1), records.append)
                counts.append(len(records))
        return counts

    with serve(Fake()) as fake:
        assert run(go()) == [2, 3]


def test_a_cancelled_job_keeps_what_was_in_flight() -> None:
    records: list[RequestRecord] = []

    async def go() -> None:
        async with load_client(WORKER) as send:
            job = asyncio.create_task(send(Job(fake.url, requests(4), LIMITS, concurrency=2), records.append))
            while len(fake.bodies) < 2:  # both are in flight
                await asyncio.sleep(0.02)
            job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await job

    with serve(Fake(delay_s=0.5)) as fake:
        run(go())
    assert [record.outcome for record in records] == ["cancelled", "cancelled"]
    assert workers() == []


def test_what_keep_raises_ends_the_job() -> None:
    def keep(record: RequestRecord) -> None:
        raise RuntimeError("no room")

    async def go() -> None:
        async with load_client(WORKER) as send:
            await send(Job(fake.url, requests(50), LIMITS, concurrency=1), keep)

    with serve(Fake()) as fake, pytest.raises(RuntimeError, match="no room"):
        run(go())
    assert workers() == []


def test_a_killed_client_is_told_and_its_records_are_kept() -> None:
    records: list[RequestRecord] = []

    def keep(record: RequestRecord) -> None:
        records.append(record)
        if len(records) == 1:
            os.kill(workers()[0], signal.SIGKILL)

    async def go() -> None:
        async with load_client(WORKER) as send:
            await send(Job(fake.url, requests(500), LIMITS, concurrency=1), keep)

    with serve(Fake()) as fake, pytest.raises(ClientLost, match="the load client ended, and said nothing"):
        run(go())
    assert records and records[0].outcome == "ok"


def test_a_client_that_does_not_start_says_why() -> None:
    async def go(*command: str) -> None:
        async with load_client(command):
            raise AssertionError("it started")

    with pytest.raises(ClientLost, match=r"did not start: .*no-such-program"):
        run(go("no-such-program"))
    with pytest.raises(ClientLost, match=r"(?s)ended: .*ModuleNotFoundError: No module named 'nothing_of_the_kind'"):
        run(go(sys.executable, "-c", "import nothing_of_the_kind"))
    with pytest.raises(ClientLost, match="what is no line of it: b'Hello"):
        run(go(sys.executable, "-c", "print('Hello')"))


def workers() -> list[int]:
    """Of this process; one that has just been told to end may take a moment."""
    deadline = time.monotonic() + 5
    while True:
        found = [child.pid for child in psutil.Process().children() if "orchestrator.load.worker" in _words(child)]
        if not found or time.monotonic() > deadline or any(_runs(pid) for pid in found):
            return found
        time.sleep(0.02)


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
