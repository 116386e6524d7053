"""Traps, continued from test_traps.py: whether the output is right, and whether the comparison is fair."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.analysis.summary import summarize
from orchestrator.analysis.verdict import REFUSED, exit_code
from orchestrator.measuring.records import RequestRecord
from orchestrator.planning.plan import session_order
from orchestrator.report import table
from orchestrator.stats import Observation, paired_ratio
from tests import synthetic
from tests.record_factory import counters
from tests.traps import arm, asked, changed, found, served


@pytest.fixture(scope="module")
def run() -> list[RequestRecord]:
    return synthetic.records()


# Whether the output is right -----------------------------------------------------------------------------------------


def probe(prompt: str, position: int, margin: float, other: int) -> RequestRecord:
    """The plain target asked again for its two best tokens, ``margin`` apart at the position."""
    plain = next(one for one in synthetic.records() if (one.arm, one.prompt_id) == ("plain", prompt))
    top2 = [((token, -0.5), (-1, -9.0)) for token in plain.output_ids]
    top2[position] = ((plain.output_ids[position], -0.5), (other, -0.5 - margin))
    return plain.model_copy(update={"phase": "probe", "top2": top2})


def test_losslessness_a_near_tie_is_excused_and_a_clear_choice_is_not(run: list[RequestRecord]) -> None:
    forked = synthetic.forked(run, "dspine", "long-2", 20)
    token = next(one for one in forked if (one.arm, one.prompt_id) == ("dspine", "long-2")).output_ids[20]
    facts = synthetic.facts()
    bfloat16 = replace(facts, setting={**facts.setting, "dtype": "bfloat16"})
    clear = summarize([*forked, probe("long-2", 20, 0.5, token)], bfloat16)
    assert found(clear, "not_lossless") == [("error", "dspine")] and exit_code(clear) == 1
    tie = summarize([*forked, probe("long-2", 20, 0.125, token)], bfloat16)
    assert found(tie, "not_lossless") == [] and found(tie, "near_tie") == [("note", "dspine")] * 2
    assert exit_code(tie) == 0
    in_float32 = summarize([*forked, probe("long-2", 20, 0.125, token)], facts)
    assert found(in_float32, "not_lossless") == [("error", "dspine")]


def test_batch_nondeterminism_of_the_plain_arm_is_the_floor_that_forks_are_weighed_against(
    run: list[RequestRecord],
) -> None:
    def noisy(one: RequestRecord) -> RequestRecord:
        late = one.repeat == 1 and one.arm == "plain" and one.prompt_id in ("long-1", "long-2", "long-3")
        return one.model_copy(update={"output_ids": [*one.output_ids[:-1], 7]}) if late else one

    floor = list(map(noisy, run))
    assert found(summarize(floor, synthetic.facts()), "not_deterministic") == [("warning", "plain")]
    few = summarize(synthetic.forked(floor, "dspine", "long-5", 9), synthetic.facts())
    assert found(few, "forks_like_plain") == [("warning", "dspine")] and found(few, "not_lossless") == []
    assert exit_code(few) == 0
    many = floor
    for prompt, _ in synthetic.PROMPTS[:12]:
        many = synthetic.forked(many, "dspine", prompt, 9)
    assert found(summarize(many, synthetic.facts()), "not_lossless") == [("error", "dspine")]


def test_losslessness_above_temperature_zero_is_not_expected_and_that_is_said(run: list[RequestRecord]) -> None:
    summary = summarize(run, replace(synthetic.facts(), temperature=0.7))
    assert found(summary, "sampled") == [("note", None)]
    assert all(one.lossless is None for one in summary.arms)


# Order, load, baseline -----------------------------------------------------------------------------------------------


def test_order_and_drift_arms_alternate_and_one_start_per_arm_is_told(run: list[RequestRecord]) -> None:
    assert [name for name, _ in session_order(["a", "b", "c"], 2, "abba")] == ["a", "b", "c", "b", "a"]
    summary = summarize(run, replace(synthetic.facts(), order="once"))
    assert found(summary, "drift_not_controlled") == [("warning", None)]
    slower = [one.model_copy(update={"e2e_s": 1.2 * (one.e2e_s or 0.0)}) if one.repeat else one for one in run]
    assert found(summarize(slower, synthetic.facts()), "drift") == [("warning", None)]


def test_al_over_concurrency_is_flat_and_where_it_is_not_that_is_told() -> None:
    loads = (1, 4)
    flat = summarize(synthetic.records(concurrencies=loads), synthetic.facts(concurrencies=loads))
    assert found(flat, "tau_moves_with_load") == []

    def worse(one: RequestRecord) -> RequestRecord:
        if one.spec is None or not one.trial_key.endswith("c4"):
            return one
        spec = counters([one.spec.spec_verify_ct - 1, 1], one.spec.spec_num_proposed_drafts)
        return one.model_copy(update={"spec": spec})

    moved = summarize(list(map(worse, synthetic.records(concurrencies=loads))), synthetic.facts(concurrencies=loads))
    assert found(moved, "tau_moves_with_load") == [("warning", "dflash2"), ("warning", "dspine")]


def test_synthetic_acceptance_is_labelled(run: list[RequestRecord]) -> None:
    server = {**synthetic.server(synthetic.ARMS[2]), "env": {"SGLANG_SIMULATE_ACC_LEN": "4"}}
    assert found(summarize(run, asked("dspine", server=server)), "simulated_acceptance") == [("warning", "dspine")]


def test_baseline_with_a_handicap_shows_as_a_speedup_above_tau_and_refuses(run: list[RequestRecord]) -> None:
    arms = synthetic.slower_plain(synthetic.ARMS, 6.0)
    summary = summarize(synthetic.records(arms), synthetic.facts(arms))
    assert found(summary, "speedup_above_tau") == [("error", "dflash2"), ("error", "dspine")]
    assert exit_code(summary) == REFUSED
    assert found(summarize(run, synthetic.facts()), "speedup_above_tau") == []


def test_baseline_without_graphs_or_overlap_refuses(run: list[RequestRecord]) -> None:
    for key, code in (("disable_cuda_graph", "unfair_cuda_graphs"), ("disable_overlap_schedule", "unfair_overlap")):
        facts = served("plain", **{key: True})
        sessions = [
            one if one.arm == "plain" else replace(one, identity={**one.identity, key: False}) for one in facts.sessions
        ]
        assert found(summarize(run, replace(facts, sessions=sessions)), code) == [("error", None)]


def test_drafter_memory_takes_room_from_requests_and_that_is_told(run: list[RequestRecord]) -> None:
    """What a real server reported: 41 requests at once without a drafter, 9 with one, at the same share of memory."""

    def room(tokens: int, requests: int) -> list[dict[str, Any]]:
        return [{"memory_usage": {"token_capacity": tokens}, "effective_max_running_requests_per_dp": requests}]

    summary = summarize(run, served("dspine", internal_states=room(9000, 3)))
    assert found(summary, "less_room") == [("note", "dspine")]
    loads = (1, 4)
    facts = replace(served("dspine", internal_states=room(9000, 3)), trials=synthetic.facts(concurrencies=loads).trials)
    more = summarize(synthetic.records(concurrencies=loads), facts)
    assert found(more, "queued") == [("warning", "dspine")], "four in flight, three at once"


def test_sglang_rewrites_its_limit_under_speculation_and_that_refuses(run: list[RequestRecord]) -> None:
    """Unset, a speculating server gets 48 and a plain one its own figure; the configuration says the same of both."""
    summary = summarize(run, served("dspine", max_running_requests=48))
    assert found(summary, "unfair_max_running_requests") == [("error", None)] and exit_code(summary) == REFUSED
    assert table.headline(summary).startswith("No verdict")
    told = next(finding.text for finding in summary.findings if finding.code == "unfair_max_running_requests")
    assert "plain 8, dflash2 8, dspine 48" in told


def test_lossy_thresholds_are_labelled_even_where_the_configuration_does_not_know_of_them(
    run: list[RequestRecord],
) -> None:
    summary = summarize(run, served("dspine", speculative_accept_threshold_single=0.3))
    assert found(summary, "lossy") == [("warning", "dspine")]
    assert arm(summary, "dspine").title == "dspine (lossy)"
    by_config = summarize(synthetic.forked(run, "dspine", "long-2", 3), asked("dspine", lossy=True))
    assert found(by_config, "lossy") == [("warning", "dspine")]
    assert found(by_config, "not_lossless") == [], "a lossy arm is not expected to be lossless"
    assert any("2 of 32 outputs differ" in finding.text for finding in by_config.findings)


def test_out_of_tree_algorithm_that_did_not_load_is_found(run: list[RequestRecord]) -> None:
    """A plugin that fails is only logged; the server may then serve without it, or with another drafter."""
    silent = summarize(run, served("dspine", speculative_algorithm=None))
    assert found(silent, "wrong_drafter") == [("error", "dspine")] and exit_code(silent) == REFUSED
    plain = summarize(changed(run, "dspine", lambda one: {"spec": None}), synthetic.facts())
    assert found(plain, "no_counters") == [("error", "dspine")]
    facts = synthetic.facts()
    mute = [
        replace(one, identity={key: value for key, value in one.identity.items() if not key.startswith("speculative")})
        for one in facts.sessions
    ]
    assert found(summarize(run, replace(facts, sessions=mute)), "drafter_unproven") == [
        ("warning", "dflash2"), ("warning", "dspine"),
    ]  # fmt: skip


def test_a_drafter_that_accepts_nothing_is_told_with_its_interval() -> None:
    """Quantized weights, another template, a wrong layer: it loads, it runs, and no draft is right."""
    arms = (synthetic.ARMS[0], replace(synthetic.ARMS[1], hit=-1.0))
    summary = summarize(synthetic.records(arms), synthetic.facts(arms))
    assert found(summary, "tau_near_one") == [("warning", "dflash2")]
    text = next(finding.text for finding in summary.findings if finding.code == "tau_near_one")
    assert "tau is 1.00 [1.00, 1.00] with 7.0 tokens proposed per step" in text


def test_throughput_formula_the_slowest_request_and_the_prefill_do_not_decide_the_speedup() -> None:
    """Total tokens over the wall time lets one slow tail count for all; here each prompt counts alike, and the time
    after the prefill is told apart."""

    def arm_of(times: list[float]) -> list[Observation]:
        return [Observation("c", f"p{place}", 0, 100, seconds) for place, seconds in enumerate(times)]

    plain, spec = arm_of([10, 10, 10, 100]), arm_of([5, 5, 5, 100])
    ratio = paired_ratio(spec, plain)
    assert ratio is not None
    assert ratio.ratio == pytest.approx(2**0.75)
    assert ratio.ratio_of_totals == pytest.approx(130 / 115), "where the two differ, the length decides"
    summary = summarize(synthetic.records(), synthetic.facts())
    point = arm(summary, "dspine").point
    assert point is not None and point.speedup is not None and point.decode_speedup is not None
    assert point.speedup.ratio < point.decode_speedup.ratio
