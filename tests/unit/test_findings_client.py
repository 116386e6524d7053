"""A client that is too slow, provoked for real, is told; one with time to spare is not."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from orchestrator.analysis.metrics import percentile
from orchestrator.analysis.results import Finding
from orchestrator.analysis.summary import summarize
from orchestrator.load.loops import closed_loop
from orchestrator.load.request import Limits
from orchestrator.load.self_check import ClientUsage, Watch
from orchestrator.measuring.records import RequestRecord
from orchestrator.telemetry import samples, window
from orchestrator.telemetry.window import TrialUsage
from tests.fake_server import Fake, serve
from tests.record_factory import request
from tests.synthetic import facts, records
from tests.telemetry_factory import tenths, write

RUN = records()
"""SYNTHETIC: TTFT, TPOT and lengths are known."""
FIGURES = summarize(RUN, facts()).arms[0].points[0].metrics


def late(lag_s: float, cpu_share: float = 0.05) -> ClientUsage:
    return ClientUsage(
        wall_s=10, cpu_s=10 * cpu_share, loop_cpu_s=0, lag_p99_s=lag_s, lag_max_s=lag_s, chunk_gap_p50_s=0.04
    )


def node(tmp_path: Path, server: float, others: float) -> dict[str, TrialUsage]:
    """Every trial on a node of two cores, of which the server used so many and strangers so many."""
    used = {}
    for key in facts().trials:
        own = [record for record in RUN if record.trial_key == key]
        span = window.span(own)
        assert span is not None
        path = write(
            tmp_path / f"{key}.jsonl",
            tenths(-1, span[1] + 1),
            server=lambda t: {"pids": [1], "rss_bytes": 1, "cpu_s": server * t},
            host=lambda t: {"busy_s": 9 + (server + 0.01 + others) * t, "client_cpu_s": 0.0},
        )
        found = window.usage(samples.read(path), own)
        assert found is not None
        used[key] = found
    return used


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


def found(*clients: tuple[str, ClientUsage], usage: dict[str, TrialUsage] | None = None) -> list[Finding]:
    summary = summarize(RUN, replace(facts(), clients=clients, usage=usage or {}))
    return [finding for finding in summary.findings if finding.code == "client_bottleneck"]


def test_a_loop_that_is_kept_busy_is_told_of_the_arm_it_measured() -> None:
    slow = measured(burn_s=0.03)
    (finding,) = found(("plain", spare(slow)), ("dspine", slow), ("dspine", spare(slow)))
    assert (finding.severity, finding.arm) == ("warning", "dspine")
    assert "The load client may have set the pace (dspine in 1 of 2 trials)" in finding.text
    assert "its event loop was up to" in finding.text or "of a core" in finding.text
    assert "needs cores that nothing else uses" in finding.text


def spare(usage: ClientUsage) -> ClientUsage:
    """The same trial on a machine with nothing else to do."""
    return usage.model_copy(update={"cpu_s": 0.01 * usage.wall_s, "lag_p99_s": 0.0002})


def test_a_client_with_time_to_spare_is_not_mentioned() -> None:
    assert found(("plain", spare(measured(burn_s=0.0)))) == [] and found() == []


def test_late_trials_of_several_arms_are_one_finding() -> None:
    (finding,) = found(("plain", late(1.0)), ("dflash2", late(2.5)), ("dspine", late(1.0)), ("dspine", late(0.0)))
    assert "(plain in 1 of 1 trials, dflash2 in 1 of 1 trials, dspine in 1 of 2 trials)" in finding.text
    assert finding.arm is None and "at worst, dflash2, its event loop was up to 2500.0 ms late" in finding.text


@pytest.mark.parametrize(("share", "told"), [(0.19, False), (0.21, True)])
def test_a_lag_is_told_from_a_fifth_of_the_ttft(share: float, told: bool) -> None:
    ttft = FIGURES.ttft_s.p50
    assert ttft is not None
    texts = [finding.text for finding in found(("plain", late(share * ttft)))]
    assert [f"up to {share:.0%} of the TTFT" in text for text in texts] == [True] * told


@pytest.mark.parametrize(("share", "told"), [(0.045, False), (0.055, True)])
def test_a_lag_is_told_from_a_twentieth_of_the_tpot_over_an_output(share: float, told: bool) -> None:
    """A late last stamp is shared by the tokens before it."""
    tpot, tokens = FIGURES.tpot_s.p50, percentile(sorted(FIGURES.output_lengths), 50)
    assert tpot is not None and tokens > 1
    texts = [finding.text for finding in found(("plain", late(share * tpot * (tokens - 1))))]
    assert any("of the TPOT" in text for text in texts) == told


def test_an_engine_that_briefly_holds_both_cores_is_not_the_clients_fault(tmp_path: Path) -> None:
    """As seen of an idle machine of two cores and an engine of two threads: 9.4 ms with a chunk every 32 ms."""
    assert found(("plain", late(0.0094)), usage=node(tmp_path, 1.8, 0.0)) == []


@pytest.mark.parametrize(
    ("server", "others", "cpu_share", "machine"),
    [
        (0.9, 1.0, 0.05, True),  # strangers
        (1.7, 0.0, 0.05, True),  # the server itself, on every core
        (0.5, 0.0, 0.05, False),  # cores were free: the loop was blocked by something of its own
        (0.9, 1.0, 0.5, False),  # the client worked hard
    ],
)
def test_the_advice_is_about_the_machine_where_that_held_the_client_up(
    tmp_path: Path, server: float, others: float, cpu_share: float, machine: bool
) -> None:
    (finding,) = found(("plain", late(1.0, cpu_share)), usage=node(tmp_path, server, others))
    assert ("used 5% of a core at most, so it waited for cores that others held" in finding.text) == machine
    assert ("Its machine needs cores that nothing else uses" in finding.text) != machine
