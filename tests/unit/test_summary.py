from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.analysis import facts as facts_module
from orchestrator.analysis.facts import ArmFacts, Facts
from orchestrator.analysis.results import Summary, read_summary, write_summary
from orchestrator.analysis.summary import summarize
from orchestrator.config.masking import MASK, mask, mask_command
from orchestrator.measuring.records import RequestRecord
from orchestrator.measuring.store import ServerFacts, TrialEntry
from tests import plan_factory, synthetic


@pytest.fixture(scope="module")
def run() -> list[RequestRecord]:
    return synthetic.records()


@pytest.fixture(scope="module")
def summary(run: list[RequestRecord]) -> Summary:
    return summarize(run, synthetic.facts())


def codes(summary: Summary, arm: str | None = None) -> set[str]:
    return {finding.code for finding in summary.findings if arm is None or finding.arm == arm}


def changed(run: list[RequestRecord], arm: str, **fields: object) -> list[RequestRecord]:
    return [record.model_copy(update=fields) if record.arm == arm else record for record in run]


def test_figures_are_those_of_the_records(run: list[RequestRecord], summary: Summary) -> None:
    arm = next(arm for arm in summary.arms if arm.name == "dspine")
    mine = [record for record in run if record.arm == "dspine"]
    point = arm.point
    assert point is not None
    assert point.acceptance is not None
    first = [record.spec for record in mine if record.repeat == 0 and record.spec]
    assert len(first) == 16
    steps = sum(spec.spec_verify_ct for spec in first)
    assert point.acceptance.tau == pytest.approx(1 + sum(spec.spec_num_correct_drafts for spec in first) / steps)
    assert point.acceptance.requests == 16  # the second pass at temperature 0 adds timing only
    assert (point.n_prompts, point.repeats, point.metrics.requests) == (16, 2, 32)
    tokens = sum(record.completion_tokens or 0 for record in mine)
    assert point.output_tok_s == pytest.approx(tokens / sum(record.e2e_s or 0 for record in mine))
    short = [record for record in mine if record.category == "short"]
    assert point.tok_s_by_category["short"] == pytest.approx(
        sum(record.completion_tokens or 0 for record in short) / sum(record.e2e_s or 0 for record in short)
    )
    decode_s = sum(record.chunks[-1][0] - record.chunks[0][0] for record in mine)
    assert point.step_ms == pytest.approx(1000 * decode_s / (2 * steps))
    assert arm.memory is not None
    assert arm.memory.peak_bytes == 731 * 2**20 + 3 * 2**20  # the larger of its two sessions
    assert (arm.block_size, arm.proposed_tokens, arm.verify_window, arm.sessions) == (16, 15, 16, 2)


def test_a_step_of_the_plain_arm_is_a_token(run: list[RequestRecord], summary: Summary) -> None:
    plain = [record for record in run if record.arm == "plain"]
    decode_s = sum(record.chunks[-1][0] - record.chunks[0][0] for record in plain)
    tokens = sum((record.completion_tokens or 0) - 1 for record in plain)
    assert summary.baseline is not None
    assert summary.baseline.point is not None
    assert summary.baseline.point.step_ms == pytest.approx(1000 * decode_s / tokens)
    assert summary.baseline.point.speedup is None
    assert summary.baseline.point.acceptance is None


def test_speedup_is_paired_by_prompt_and_repeat(run: list[RequestRecord], summary: Summary) -> None:
    times = {(record.arm, record.prompt_id, record.repeat): record.e2e_s or 0.0 for record in run}
    logs = [math.log(times["plain", p, r] / times["dflash2", p, r]) for p, _ in synthetic.PROMPTS for r in (0, 1)]
    point = summary.arms[1].point
    assert point is not None
    assert point.speedup is not None
    assert point.speedup.ratio == pytest.approx(math.exp(sum(logs) / len(logs)))
    assert (point.speedup.n_prompts, point.speedup.n_pairs) == (16, 32)
    assert {category: ratio.n_prompts for category, ratio in point.speedup_by_category.items()} == {
        "short": 8,
        "long": 8,
    }
    cell = next(row for row in summary.prompts if row.prompt_id == "long-3").cells["dflash2"]
    pair = [math.log(times["plain", "long-3", r] / times["dflash2", "long-3", r]) for r in (0, 1)]
    assert cell.speedup == pytest.approx(math.exp(sum(pair) / 2))


def test_records_of_another_comparison_are_refused(run: list[RequestRecord]) -> None:
    foreign = [*run, run[0].model_copy(update={"trial_key": "of-another-run"})]
    with pytest.raises(ValueError, match="does not have: of-another-run"):
        summarize(foreign, synthetic.facts())


def test_warm_up_counts_nowhere(run: list[RequestRecord], summary: Summary) -> None:
    warm = [record.model_copy(update={"phase": "warmup", "e2e_s": 99.0}) for record in run]
    assert summarize(warm + run, synthetic.facts()) == summary


def test_load_points_are_kept_apart_and_the_lowest_is_the_headline() -> None:
    loads = (4, 1, 2)
    found = summarize(synthetic.records(concurrencies=loads), synthetic.facts(concurrencies=loads))
    for arm in found.arms:
        assert [point.concurrency for point in arm.points] == [1, 2, 4]
        assert arm.point is arm.points[0]
        assert all(point.metrics.requests == 32 for point in arm.points)
    assert all(point.speedup and point.speedup.n_pairs == 32 for point in found.arms[2].points)


def test_throughput_at_full_load_leaves_out_ramp_and_drain() -> None:
    loads = (1, 4)
    found = summarize(synthetic.records(concurrencies=loads), synthetic.facts(concurrencies=loads))
    for arm in found.arms:
        one, four = arm.points
        assert one.full_load_tok_s is not None and one.system_tok_s is not None
        assert one.full_load_tok_s == pytest.approx(one.system_tok_s), "one at a time there is neither"
        assert four.full_load_tok_s is not None and four.system_tok_s is not None
        assert four.full_load_tok_s > four.system_tok_s


def test_it_survives_the_way_to_disk(summary: Summary, tmp_path: Path) -> None:
    write_summary(summary, tmp_path / "summary.json")
    assert read_summary(tmp_path / "summary.json") == summary


def test_secrets_are_masked(summary: Summary) -> None:
    text = summary.model_dump_json()
    assert "not-a-real" not in text
    assert summary.config["env"] == {"HF_TOKEN": MASK}
    assert summary.arms[0].command[-2:] == ["--api-key", MASK]
    assert mask({"proposed_tokens": 7, "max_new_tokens": "64", "hf_token": None}) == {
        "proposed_tokens": 7,
        "max_new_tokens": "64",
        "hf_token": None,
    }
    assert mask_command(["docker", "-e", "HF_TOKEN=x", "--api-key=x", "--token", "x", "--port", "1"]) == [
        "docker", "-e", f"HF_TOKEN={MASK}", f"--api-key={MASK}", "--token", MASK, "--port", "1",
    ]  # fmt: skip


def test_a_fair_and_correct_run_has_notes_only(summary: Summary) -> None:
    assert {finding.severity for finding in summary.findings} == {"note"}
    assert codes(summary) == {"embedded", "cut_outputs"}


def test_a_drafter_that_guesses_nothing_is_found() -> None:
    arms = (synthetic.ARMS[0], replace(synthetic.ARMS[1], hit=-1.0))
    found = summarize(synthetic.records(arms), synthetic.facts(arms))
    assert "tau_near_one" in codes(found, "dflash2")


def test_a_speedup_above_tau_is_an_error() -> None:
    arms = synthetic.slower_plain(synthetic.ARMS, 4.0)
    found = summarize(synthetic.records(arms), synthetic.facts(arms))
    assert [finding.severity for finding in found.findings if finding.code == "speedup_above_tau"] == ["error", "error"]
    assert found.findings[0].severity == "error"  # the most severe first


def test_other_tokens_than_the_plain_arm_are_an_error_with_their_place(run: list[RequestRecord]) -> None:
    found = summarize(synthetic.forked(run, "dspine", "long-2", 20), synthetic.facts())
    finding = next(finding for finding in found.findings if finding.code == "not_lossless")
    assert (finding.severity, finding.arm) == ("error", "dspine")
    assert "prompt long-2 at position 20" in finding.text
    assert "2 of 32" in finding.text
    row = next(row for row in found.prompts if row.prompt_id == "long-2")
    assert (row.cells["dspine"].identical, row.cells["dflash2"].identical) == (False, True)


def test_a_plain_arm_that_differs_from_itself_is_a_warning(run: list[RequestRecord]) -> None:
    plain = [
        r.model_copy(update={"output_ids": [*r.output_ids[:-1], 7]}) if r.repeat and r.arm == "plain" else r
        for r in run
    ]
    assert "not_deterministic" in codes(summarize(plain, synthetic.facts()), "plain")


def test_lengths_failures_and_loops_are_found(run: list[RequestRecord]) -> None:
    shorter = [
        record.model_copy(
            update={"output_ids": record.output_ids[:-2], "completion_tokens": len(record.output_ids) - 2}
        )
        if record.arm == "dspine"
        else record
        for record in run
    ]
    assert "output_lengths" in codes(summarize(shorter, synthetic.facts()), "dspine")
    failed = [r.model_copy(update={"outcome": "timeout", "e2e_s": None}) if r.prompt_id == "long-1" else r for r in run]
    found = summarize(failed, synthetic.facts())
    assert codes(found) >= {"failed_requests"}
    assert found.arms[0].point is not None
    assert found.arms[0].point.n_prompts == 15
    loops = summarize(changed(run, "dflash2", output_ids=[1, 2] * 20), synthetic.facts())
    assert "looping_text" in codes(loops, "dflash2")


def test_a_busy_machine_is_found(run: list[RequestRecord]) -> None:
    slow = [
        record.model_copy(update={"e2e_s": 1.5 * (record.e2e_s or 0)}) if record.repeat else record for record in run
    ]
    found = summarize(slow, synthetic.facts())
    assert "unsteady_machine" in codes(found)
    cell = found.prompts[0].cells["plain"]
    assert cell.repeat_spread is not None
    assert cell.repeat_spread == pytest.approx(1.5, rel=0.1)


def test_a_server_that_did_not_speculate_is_an_error(run: list[RequestRecord]) -> None:
    assert "no_counters" in codes(summarize(changed(run, "dspine", spec=None), synthetic.facts()), "dspine")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"order": "once"}, "drift_not_controlled"),
        ({"status": "interrupted"}, "incomplete"),
        ({"sources": ("", "../earlier")}, "measured_apart"),
        ({"sources": ("../earlier",)}, "adopted"),
        ({"unfair": {"attention.backend": {"plain": "fa3", "dspine": "triton"}}}, "unfair_attention"),
        ({"baseline": None}, "no_plain_arm"),
    ],
)
def test_what_the_facts_say_is_found(run: list[RequestRecord], change: dict[str, object], code: str) -> None:
    found = summarize(run, replace(synthetic.facts(), **change))  # type: ignore[arg-type]
    assert code in codes(found)


def test_a_missing_and_a_lossy_arm_are_found(run: list[RequestRecord]) -> None:
    base = synthetic.facts()
    arms = [*base.arms[:2], replace(base.arms[2], lossy=True), ArmFacts("eagle3", "eagle3", missing="no weights")]
    found = summarize(run, replace(base, arms=arms))
    assert "missing_arm" in codes(found, "eagle3")
    assert "lossy" in codes(found, "dspine")
    assert found.arms[3].point is None


def test_sampled_output_is_not_compared_token_by_token(run: list[RequestRecord]) -> None:
    found = summarize(run, replace(synthetic.facts(), temperature=1.0))
    assert all(arm.lossless is None for arm in found.arms)
    assert found.arms[1].point is not None
    assert found.arms[1].point.acceptance is not None
    assert found.arms[1].point.acceptance.requests == 32  # now every request is evidence


def test_nothing_measured_is_a_summary_too() -> None:
    found = summarize([], replace(synthetic.facts(), status="failed", sessions=[]))
    assert all(arm.points == [] for arm in found.arms)
    assert codes(found) >= {"incomplete", "no_plain_arm"}


def entry(key: str, index: int, arm: str, started: float, peak: int, source: str | None = None) -> TrialEntry:
    server = ServerFacts(
        session_index=index, arm=arm, command=["serve", arm], identity={}, started=started, ready_s=1.0,
        peak_memory_bytes=peak,
    )  # fmt: skip
    return TrialEntry(key=key, records="r.jsonl", count=4, server=server, source=source)


def test_facts_come_from_experiment_plan_and_trials(tmp_path: Path) -> None:
    suite, load = plan_factory.suite(), plan_factory.load((1, 4))
    plain, ngram = plan_factory.arm("plain", suite, load), plan_factory.arm("ngram", suite, load)
    experiment, plan = plan_factory.comparison(tmp_path, plain, ngram)
    entries = [
        entry(trial.key, session.index, session.arm.name, 100.0 + session.index, 10 + trial.position)
        for session in reversed(plan.sessions)
        for trial in session.trials
    ]
    found: Facts = facts_module.gather(experiment, plan, entries, "finished", "a CPU", {"python": "3"})
    assert (found.engine, found.baseline, found.memory_kind) == ("embedded", "plain", "rss")
    assert [(arm.drafter, arm.block_size, arm.proposed_tokens, arm.verify_window) for arm in found.arms] == [
        ("none", None, None, 1),
        ("ngram", 4, 3, 4),
    ]
    assert [session.arm for session in found.sessions] == ["plain", "ngram", "plain"]
    assert max(session.peak_memory_bytes or 0 for session in found.sessions) == 10 + len(plan.trials) - 1
    assert Counter(trial.concurrency for trial in found.trials.values()) == {1: 4, 4: 4}
    assert found.setting["suite"] == "test_suite"
    assert found.sources == [""]
