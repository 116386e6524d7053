from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.analysis.facts import Facts
from orchestrator.analysis.results import Summary
from orchestrator.analysis.summary import summarize
from orchestrator.analysis.verdict import REFUSED, exit_code
from orchestrator.measuring.records import RequestRecord
from tests import synthetic

UNFAIR = {"target.dtype": {"plain": "float32", "dspine": "bfloat16"}}


@pytest.fixture(scope="module")
def run() -> list[RequestRecord]:
    return synthetic.records()


def summary(run: list[RequestRecord], **change: object) -> Summary:
    facts: Facts = replace(synthetic.facts(), **change)  # type: ignore[arg-type]
    return summarize(run, facts)


def test_a_refused_comparison_states_no_ratio_and_keeps_what_was_measured(run: list[RequestRecord]) -> None:
    fair, unfair = summary(run), summary(run, unfair=UNFAIR)
    assert (fair.withheld, unfair.withheld) == ([], ["unfair_precision"])
    for before, after in zip(fair.arms, unfair.arms, strict=True):
        assert before.point is not None and after.point is not None
        assert (after.point.speedup, after.point.decode_speedup, after.point.speedup_by_category) == (None, None, {})
        assert after.point.output_tok_s == before.point.output_tok_s
        assert after.point.acceptance == before.point.acceptance
    assert all(cell.speedup is None and cell.tok_s for row in unfair.prompts for cell in row.cells.values())
    assert (exit_code(fair), exit_code(unfair)) == (0, REFUSED)


def test_an_error_that_is_allowed_by_name_is_a_warning_and_refuses_nothing(run: list[RequestRecord]) -> None:
    found = summary(run, unfair=UNFAIR, allow=("unfair_precision",))
    finding = next(finding for finding in found.findings if finding.code == "unfair_precision")
    assert (finding.severity, finding.allowed, found.withheld) == ("warning", True, [])
    assert finding.text.endswith("Allowed by the config.") and "No ratio" not in finding.text
    assert found.arms[1].point is not None and found.arms[1].point.speedup is not None
    assert exit_code(found) == 0


def test_another_name_allows_nothing_and_is_told_as_unused(run: list[RequestRecord]) -> None:
    found = summary(run, unfair=UNFAIR, allow=("unfair_engine",))
    assert found.withheld == ["unfair_precision"]
    assert any(finding.code == "unused_allow" and "unfair_engine" in finding.text for finding in found.findings)


def test_an_error_that_leaves_ratios_standing_fails_the_run_all_the_same(run: list[RequestRecord]) -> None:
    found = summarize(synthetic.forked(run, "dspine", "long-2", 20), synthetic.facts())
    assert found.withheld == [] and exit_code(found) == 1
    allowed = summarize(
        synthetic.forked(run, "dspine", "long-2", 20), replace(synthetic.facts(), allow=("not_lossless",))
    )
    assert exit_code(allowed) == 0


def test_a_failed_request_fails_the_run(run: list[RequestRecord]) -> None:
    failed = [
        record.model_copy(update={"outcome": "timeout"}) if index == 3 else record for index, record in enumerate(run)
    ]
    assert exit_code(summarize(failed, synthetic.facts())) == 1
