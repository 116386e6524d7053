"""What is told of the run as a whole: requests that left late, arms without a finished trial."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.analysis.facts import ArmFacts
from orchestrator.analysis.summary import summarize
from orchestrator.findings.finding import Finding
from orchestrator.load.self_check import ClientUsage
from orchestrator.measuring.records import RequestRecord
from tests import synthetic


@pytest.fixture(scope="module")
def run() -> list[RequestRecord]:
    return synthetic.records()


def client(late_p99_s: float | None) -> ClientUsage:
    return ClientUsage(
        wall_s=10, cpu_s=0.1, loop_cpu_s=0.1, lag_p99_s=0, lag_max_s=0, chunk_gap_p50_s=0.05, late_p99_s=late_p99_s,
        late_max_s=late_p99_s and 2 * late_p99_s, release_gap_s=late_p99_s and 0.5,
    )  # fmt: skip


def late(run: list[RequestRecord], *clients: tuple[str, ClientUsage]) -> list[Finding]:
    summary = summarize(run, replace(synthetic.facts(), clients=clients))
    return [one for one in summary.findings if one.code == "late_releases"]


def test_requests_of_an_open_loop_that_left_late_are_told_of_their_arm(run: list[RequestRecord]) -> None:
    (found,) = late(
        run, ("plain", client(0.001)), ("dspine", client(0.02)), ("dspine", client(0.001)), ("dspine", client(0.04))
    )
    assert (found.severity, found.arm) == ("warning", "dspine")
    assert "sent late in 2 of 3 trials, at worst up to 40.0 ms late (p99, 80.0 ms at most)" in found.text
    assert "with one due every 500.0 ms" in found.text


def test_a_closed_loop_and_requests_in_time_are_not_mentioned(run: list[RequestRecord]) -> None:
    assert late(run, ("plain", client(None)), ("dspine", client(0.004))) == []


def test_an_arm_whose_server_ended_in_its_first_trial_is_not_said_to_have_never_run(run: list[RequestRecord]) -> None:
    base = synthetic.facts()
    why = "the server ended while it served (signal SIGKILL)"
    facts = replace(base, status="failed", arms=[*base.arms, ArmFacts("ngram", "ngram", missing=why)])
    (found,) = [one for one in summarize(run, facts).findings if one.code == "missing_arm"]
    assert found.text == f"ngram has no finished trial: {why}" and "not run" not in found.text
