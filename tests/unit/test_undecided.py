"""Where no arm is called faster: few prompts, a machine that was busy or changed; and loads that cannot be reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.analysis.results import Summary
from orchestrator.analysis.summary import summarize
from orchestrator.findings.finding import finding
from orchestrator.report import evidence, table
from orchestrator.schema.suite import FEW_PROMPTS
from orchestrator.stats import PairedRatio
from tests import plan_factory, synthetic


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarize(synthetic.records(), synthetic.facts())


def few(count: int) -> Summary:
    records = synthetic.records()
    kept = sorted({record.prompt_id for record in records})[:count]
    return summarize([record for record in records if record.prompt_id in kept], synthetic.facts())


def test_with_few_prompts_no_arm_is_called_faster() -> None:
    found = few(FEW_PROMPTS - 1)
    assert "few_prompts" in [one.code for one in found.findings]
    assert f"rest on {FEW_PROMPTS - 1} prompts" in next(one.text for one in found.findings if one.code == "few_prompts")
    assert table.duel(found).startswith("No verdict between") and "few_prompts" in table.duel(found)


def test_with_enough_prompts_and_a_steady_machine_one_is(summary: Summary) -> None:
    calm = summary.model_copy(update={"findings": []})
    assert "few_prompts" not in [one.code for one in summary.findings]
    assert not table.duel(calm).startswith("No verdict")
    for code in ("unsteady_machine", "busy_machine", "drift"):
        doubtful = calm.model_copy(update={"findings": [finding(code, "something")]})
        assert table.duel(doubtful).startswith("No verdict between") and code in table.duel(doubtful)


def test_a_load_that_the_suite_cannot_fill_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"load.concurrency: 5 requests are never in flight.*allowed: 1 to 4"):
        plan_factory.comparison(tmp_path, plan_factory.arm("plain", plan_factory.suite(4), plan_factory.load((1, 5))))
    plan_factory.comparison(tmp_path, plan_factory.arm("plain", plan_factory.suite(5), plan_factory.load((1, 5))))


def test_intervals_that_say_nothing_are_not_written_out(summary: Summary) -> None:
    point = next(arm.point for arm in summary.arms if not arm.baseline and arm.point)
    assert point.speedup is not None
    wild = point.speedup.model_copy(update={"ratio": 2.0, "low": 1e-5, "high": 54965.6})
    assert isinstance(wild, PairedRatio) and table.ratio(wild, "x") == "2.00x [<0.01, >100]"
    assert evidence.without_interval("20.0 ±>100%") == "20.0"
    assert evidence._spread(20.0, 1.0, 300.0, 1) == "20.0 ±>100%"
