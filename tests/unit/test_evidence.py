"""Intervals of the headline figures: taken from the records, shown in table and report."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from orchestrator.analysis import evidence
from orchestrator.analysis.results import Summary
from orchestrator.analysis.summary import summarize
from orchestrator.report import evidence as shown
from orchestrator.report import table
from orchestrator.stats import Estimate, Restarts, ratio_of_sums, start_weights
from tests import synthetic


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarize(synthetic.records(), synthetic.facts())


def test_figures_are_those_of_the_point_with_an_interval_around_them(summary: Summary) -> None:
    for arm in summary.arms:
        point = arm.point
        assert point is not None and point.evidence is not None
        found = point.evidence
        assert found.output_tok_s is not None and found.ttft_s is not None and found.tpot_s is not None
        assert found.output_tok_s.value == pytest.approx(point.output_tok_s)
        assert found.ttft_s.value == pytest.approx(point.metrics.ttft_s.p50)
        assert found.tpot_s.value == pytest.approx(point.metrics.tpot_s.p50)
        for one in (found.output_tok_s, found.ttft_s, found.tpot_s, found.drift):
            assert one is not None and one.low is not None and one.high is not None
            assert one.low < one.value < one.high and one.n == 16


def test_tok_s_contains_the_starts_where_their_spread_is_known() -> None:
    run = [one for one in synthetic.records() if one.arm == "dspine"]
    requests = evidence.observations(run, "c", evidence.whole)
    prompts = sorted({one.prompt for one in requests})
    sums = [
        (float(sum(one.tokens for one in requests if one.prompt == name)),
         float(np.sum([one.seconds for one in requests if one.prompt == name])))
        for name in prompts
    ]  # fmt: skip
    alone = evidence.evidence(run, "c", None).output_tok_s
    expected = ratio_of_sums(sums)
    assert alone is not None and expected is not None
    assert (alone.low, alone.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    spread = Restarts(sd=0.2, df=2, starts=6)
    wider = evidence.evidence(run, "c", spread).output_tok_s
    with_starts = ratio_of_sums(sums, extra=[spread.term(start_weights(requests))])
    assert wider is not None and wider.high is not None and alone.high is not None and with_starts is not None
    assert wider.high == pytest.approx(with_starts.high)
    assert wider.high > 1.2 * alone.high


def test_a_start_is_a_session_of_the_plan_and_failed_requests_are_no_evidence() -> None:
    run = synthetic.records()
    failed = [one.model_copy(update={"outcome": "timeout"}) if one.prompt_id == "long-1" else one for one in run]
    requests = evidence.observations(failed, "c", evidence.whole)
    assert {one.start for one in requests} == set(range(6))
    assert "long-1" not in {one.prompt for one in requests}
    one = evidence.evidence([one for one in failed if one.arm == "plain"], "c", None)
    assert one.output_tok_s is not None and one.output_tok_s.n == 15


def test_without_records_there_is_nothing() -> None:
    nothing = evidence.evidence([], "c", None)
    assert set(nothing.model_dump().values()) == {None}
    assert evidence.restarts({}, "c", evidence.whole) is None


def test_the_report_lists_every_headline_figure_with_its_ends_and_n(summary: Summary) -> None:
    lines = {line.figure: line for line in shown.intervals(summary.arms[2])}
    assert set(lines) == {
        "speedup", "output tok/s", "TTFT p50, ms", "TPOT p50, ms", "speed, 2nd half / 1st half",
        "acceptance length tau", "peak memory, GiB",
    }  # fmt: skip
    assert lines["speedup"].over == "prompts, server starts" and lines["TTFT p50, ms"].over == "prompts"
    assert {line.n for name, line in lines.items() if name != "peak memory, GiB"} == {16}
    memory = lines["peak memory, GiB"]
    assert (memory.n, memory.low < memory.high == memory.value) == (2, True)
    assert all(float(line.low) <= float(line.value) <= float(line.high) for line in lines.values())


def test_cells_say_how_wide_an_interval_is(summary: Summary) -> None:
    estimate = Estimate(value=0.2, low=0.15, high=0.23, n=16)
    assert shown.interval(estimate, 0, 1000) == "200 ±25%"  # the longer arm
    assert shown.interval(Estimate(value=2.0, low=1.99, high=2.01, n=3), 2) == "2.00 ±0.5%"
    assert shown.interval(Estimate(value=2.0, low=None, high=None, n=1), 2) == "2.00"
    assert shown.interval(None, 2) == shown.ABSENT
    assert shown.without_interval("200 ±25%") == "200" and shown.without_interval("1.8 [1, 2]") == "1.8 [1, 2]"
    rows = {row.label: row.cells for row in table.rows(summary)}
    assert rows["server starts"] == ["2", "2", "2"]
    assert rows["detectable speedup"][0] == shown.ABSENT and float(rows["detectable speedup"][1]) > 1
    one = summarize(synthetic.records(repeats=1), synthetic.facts(repeats=1))
    rows = {row.label: row.cells for row in table.rows(one)}
    assert rows["spread between starts"] == [shown.UNKNOWN] * 3
    assert "over 16 prompts only, not over server starts" in table.headline(one)


def test_the_two_fastest_arms_are_compared_with_each_other(summary: Summary) -> None:
    assert summary.lead is not None
    assert (summary.lead.arm, summary.lead.over, summary.lead.ratio.n_pairs) == ("dspine", "dflash2", 32)
    ratios = [arm.point.speedup.ratio for arm in summary.arms if arm.point and arm.point.speedup]
    assert summary.lead.ratio.ratio == pytest.approx(ratios[1] / ratios[0])
    assert table.duel(summary).startswith("dspine over dflash2: 1.")
    close = (*synthetic.ARMS[:2], replace(synthetic.ARMS[1], name="copy"))
    same = summarize(synthetic.records(close), synthetic.facts(close))
    assert same.lead is not None and not same.lead.shown
    assert "is not shown to beat" in table.duel(same)
    alone = summarize(synthetic.records(synthetic.ARMS[:2]), synthetic.facts(synthetic.ARMS[:2]))
    assert alone.lead is None and table.duel(alone) == ""
