"""A client that is too slow, provoked for real, is told; one with time to spare is not."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import uvloop

from orchestrator.analysis.results import Finding
from orchestrator.analysis.summary import summarize
from orchestrator.load.loops import closed_loop
from orchestrator.load.request import Limits
from orchestrator.load.self_check import ClientUsage, Watch
from orchestrator.measuring.records import RequestRecord
from tests.fake_server import Fake, serve
from tests.synthetic import facts, records
from tests.unit.test_load_client import request


def measured(burn_s: float) -> ClientUsage:
    """A trial of six requests with a chunk every 20 ms, beside something that keeps the loop busy."""
    kept: list[RequestRecord] = []

    async def trial(url: str) -> ClientUsage:
        async def burn() -> None:
            while True:
                end = time.thread_time() + burn_s
                while time.thread_time() < end:
                    pass
                await asyncio.sleep(0.005)

        with Watch() as watch:
            task = asyncio.create_task(burn())
            await closed_loop(url, [request() for _ in range(6)], 2, Limits(20, 20), kept.append)
            task.cancel()
        return watch.usage(kept)

    with serve(Fake(delay_s=0.02)) as fake, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        usage = runner.run(trial(fake.url))
    assert [one.outcome for one in kept] == ["ok"] * 6
    return usage


def found(*clients: tuple[str, ClientUsage]) -> list[Finding]:
    summary = summarize(records(), replace(facts(), clients=clients))
    return [finding for finding in summary.findings if finding.code == "client_bottleneck"]


def test_a_loop_that_is_kept_busy_is_told_of_the_arm_it_measured() -> None:
    slow = measured(burn_s=0.03)
    (finding,) = found(("plain", spare(slow)), ("dspine", slow), ("dspine", spare(slow)))
    assert (finding.severity, finding.arm) == ("warning", "dspine")
    assert "in 1 of 2 trials the load client may have set the pace" in finding.text
    assert "its event loop was up to" in finding.text or "of a core" in finding.text


def spare(usage: ClientUsage) -> ClientUsage:
    """The same trial on a machine with nothing else to do."""
    return usage.model_copy(update={"cpu_s": 0.01 * usage.wall_s, "lag_p99_s": 0.0002})


def test_a_client_with_time_to_spare_is_not_mentioned() -> None:
    assert found(("plain", spare(measured(burn_s=0.0)))) == [] and found() == []
