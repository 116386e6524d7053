"""What a run's own noise makes of its figures is said."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from orchestrator.analysis.results import Finding, Summary
from orchestrator.analysis.summary import summarize
from orchestrator.measuring.records import RequestRecord
from tests import synthetic


def slowed(
    run: list[RequestRecord], factor: float, arms: tuple[str, ...] = ("plain", "dflash2", "dspine")
) -> list[RequestRecord]:
    """The run with requests of its second half taking ``factor`` times as long."""
    return [
        record.model_copy(update={"e2e_s": factor * (record.e2e_s or 0.0)})
        if record.repeat and record.arm in arms
        else record
        for record in run
    ]


def found(summary: Summary, code: str) -> list[Finding]:
    return [finding for finding in summary.findings if finding.code == code]


def test_a_run_at_rest_drifts_nowhere() -> None:
    summary = summarize(synthetic.records(), synthetic.facts())
    assert not found(summary, "drift") and not found(summary, "starts_unknown")
    for arm in summary.arms:
        assert arm.point is not None and arm.point.evidence is not None and arm.point.evidence.drift is not None
        assert arm.point.evidence.drift.value == pytest.approx(1.0, abs=0.02)


def test_arms_that_got_slower_are_named_with_their_interval() -> None:
    summary = summarize(slowed(synthetic.records(), 1.1, ("plain", "dspine")), synthetic.facts())
    (finding,) = found(summary, "drift")
    assert finding.severity == "warning"
    assert "plain 0.91 [0.9" in finding.text and "dspine 0.91 [0.9" in finding.text and "dflash2" not in finding.text


def test_a_drift_cancels_in_the_speedup_but_widens_nothing_that_is_common_to_all_arms() -> None:
    still, slow = (summarize(run, synthetic.facts()) for run in (synthetic.records(), slowed(synthetic.records(), 1.3)))
    one, other = (summary.arms[1].point for summary in (still, slow))
    assert one is not None and other is not None and one.speedup is not None and other.speedup is not None
    assert other.speedup.ratio == pytest.approx(one.speedup.ratio)
    assert (other.speedup.low, other.speedup.high) == (pytest.approx(one.speedup.low), pytest.approx(one.speedup.high))
    assert found(slow, "drift")


def test_an_arm_whose_second_start_is_slower_has_a_wider_interval() -> None:
    still, slow = (
        summarize(run, synthetic.facts())
        for run in (synthetic.records(), slowed(synthetic.records(), 1.3, ("dflash2",)))
    )
    one, other = (summary.arms[1].point for summary in (still, slow))
    assert one is not None and other is not None and one.speedup is not None and other.speedup is not None
    assert other.evidence is not None and other.evidence.restarts is not None
    # Six starts; of the three arms' changes one is log 1.3: their sum of squares, 2/3 of it, is 4 times the variance.
    assert other.evidence.restarts.sd == pytest.approx(math.log(1.3) / math.sqrt(6), rel=0.1)
    assert other.speedup.half is not None and one.speedup.half is not None
    assert other.speedup.half > 2 * one.speedup.half
    assert other.speedup.restarts_se is not None and other.speedup.prompts_se is not None
    assert other.speedup.restarts_se > other.speedup.prompts_se
    assert "interval of dflash2" in found(slow, "starts_rule")[0].text and not found(still, "starts_rule")


@pytest.mark.parametrize(("repeats", "order", "unbalanced"), [(1, "abba", True), (2, "abba", False), (2, "once", True)])
def test_an_order_that_does_not_balance_is_said(repeats: int, order: str, unbalanced: bool) -> None:
    facts = replace(synthetic.facts(repeats=repeats), order=order)
    summary = summarize(synthetic.records(repeats=repeats), facts)
    assert bool(found(summary, "drift_not_controlled")) is unbalanced


def test_one_start_per_arm_leaves_the_starts_out_of_the_interval_and_says_so() -> None:
    summary = summarize(synthetic.records(repeats=1), synthetic.facts(repeats=1))
    (finding,) = found(summary, "starts_unknown")
    assert finding.severity == "note"
    point = summary.arms[1].point
    assert point is not None and point.speedup is not None and point.evidence is not None
    assert (point.speedup.over_starts, point.evidence.restarts, point.evidence.drift) == (False, None, None)
    assert point.speedup.low is not None


def test_a_run_that_added_repeats_says_so() -> None:
    base = synthetic.facts()
    facts = replace(base, setting={**base.setting, "stop": "ci_width 0.05, at most 8 repeats"})
    assert "at most 8 repeats" in found(summarize(synthetic.records(), facts), "sequential")[0].text
    assert not found(
        summarize(synthetic.records(), replace(base, setting={**base.setting, "stop": "fixed"})), "sequential"
    )
