"""Each known way to a wrong figure for speculative decoding, walked into, and the finding that tells of it: what is
counted and what is sent. The others are in test_traps_comparison.py.

A test is named after its trap. Where the trap cannot be walked into, the test shows why. What the traps are and what is
done about them is in docs/explanation/traps.md.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis import metrics
from orchestrator.analysis.acceptance import check_streams, pooled
from orchestrator.analysis.summary import summarize
from orchestrator.analysis.verdict import REFUSED, exit_code
from orchestrator.config.names import ConfigError
from orchestrator.load import generate
from orchestrator.load.request import Sampling
from orchestrator.load.window import full_load_tok_s
from orchestrator.measuring.records import RequestRecord
from orchestrator.measuring.server_totals import Reading, TrialTotals, check
from orchestrator.schema import Checkpoint, Suite
from tests import plan_factory, synthetic
from tests.record_factory import counters, record, request
from tests.traps import arm, changed, found, served


@pytest.fixture(scope="module")
def run() -> list[RequestRecord]:
    return synthetic.records()


# What the acceptance length is ---------------------------------------------------------------------------------------


def test_al_definition_completion_tokens_over_steps_is_another_figure_than_tau() -> None:
    # 4 output tokens, the first from the prefill; one step with two correct drafts brought the other three.
    result = pooled([record(spec=counters([0, 0, 1], 2))])
    assert result is not None
    assert result.tau == 3, "1 + correct / steps"
    assert result.committed_per_step == 3, "without the prefill's token; completion tokens / steps would say 4"


def test_al_definition_drafts_past_the_end_of_a_short_output_count_in_tau_and_not_in_what_is_committed() -> None:
    result = pooled([record(spec=counters([0, 0, 0, 0, 0, 1], 7))])  # five correct drafts, two of them past the end
    assert result is not None and (result.tau, result.committed_per_step) == (6, 3)


def test_bonus_token_is_in_tau_and_not_in_the_rate() -> None:
    none_right = pooled([record(spec=counters([3], 21))])
    assert none_right is not None and (none_right.tau, none_right.rate) == (1, 0)


def test_block_naming_another_block_than_asked_for_is_found(run: list[RequestRecord]) -> None:
    """Block 8 of one drafter proposes 7, of another 8, and a server may be told a third number."""
    eight = changed(run, "dflash2", lambda one: {"spec": _proposing(one, 8)})
    assert found(summarize(eight, synthetic.facts()), "wrong_block") == [("error", "dflash2")]
    three = changed(run, "dflash2", lambda one: {"spec": _proposing(one, 3)})
    assert found(summarize(three, served("dflash2", engine="sglang")), "wrong_block") == [("error", "dflash2")]
    report = served("dflash2", speculative_num_draft_tokens=9)
    assert found(summarize(run, report), "wrong_drafter") == [("error", "dflash2")]
    summary = summarize(run, synthetic.facts())
    assert (arm(summary, "dflash2").proposed_tokens, arm(summary, "dflash2").verify_window) == (7, 8)
    assert found(summary, "wrong_block") == found(summary, "wrong_drafter") == []


def _proposing(one: RequestRecord, drafts: int) -> Any:
    assert one.spec is not None
    return one.spec.model_copy(update={"spec_num_proposed_drafts": drafts * one.spec.spec_verify_ct})


def test_averaging_of_tau_all_three_ways_stand_side_by_side() -> None:
    long, short = record(completion_tokens=90, spec=counters([20, 10], 210)), record(spec=counters([0, 0, 0, 1], 7))
    result = pooled([long, short])
    assert result is not None
    assert result.tau == pytest.approx(1 + 13 / 31)
    assert result.tau_mean_of_requests == pytest.approx((1 + 10 / 30 + 4) / 2)
    assert result.tau_token_weighted == pytest.approx((90 * (1 + 10 / 30) + 4 * 4) / 94)


def test_server_averages_of_the_first_rank_or_of_earlier_work_disagree_and_are_found(run: list[RequestRecord]) -> None:
    facts = synthetic.facts()
    stale = {
        key: totals.model_copy(update={"after": totals.after.model_copy(update={"rank_tau": [1.7]})})
        for key, totals in facts.totals.items()
        if key.startswith("dspine")
    }
    summary = summarize(run, replace(facts, totals={**facts.totals, **stale}))
    assert found(summary, "totals_disagree") == [("warning", "dspine")]
    point = arm(summary, "dspine").point
    assert point is not None and point.acceptance is not None and point.acceptance.tau > 3, (
        "the headline is not touched"
    )
    one = record(completion_tokens=28, spec=counters([2, 3, 1, 4], 30))
    ranks = check([([one], TrialTotals(before=Reading(), after=Reading(rank_tau=[2.1, 3.3])))])
    assert ranks is not None and (ranks.ranks, ranks.tau) == (2, pytest.approx(2.7)), "every rank is read"


def test_server_averages_that_a_server_does_not_give_are_told(run: list[RequestRecord]) -> None:
    summary = summarize(run, replace(synthetic.facts(), totals={}))
    assert found(summary, "no_server_totals") == [("note", "dflash2"), ("note", "dspine")]


# Chunks --------------------------------------------------------------------------------------------------------------


def test_multi_token_chunks_are_weighted_by_their_tokens() -> None:
    """A gap between chunks is a step, not a token: four tokens 40 ms apart are 10 ms each."""
    one = record(output_ids=list(range(9)), chunks=[(0.1, 1), (0.14, 5), (0.18, 9)], e2e_s=0.18)
    figures = metrics.compute([one])
    assert figures.itl_s.n == 8 and figures.itl_s.mean == pytest.approx(0.01)
    assert figures.tpot_s.mean == pytest.approx(0.01)


def test_chunk_count_acceptance_joined_chunks_move_no_tau_and_are_told(run: list[RequestRecord]) -> None:
    joined = changed(run, "dspine", lambda one: {"chunks": one.chunks[:1] + one.chunks[2::2] + one.chunks[-1:]})
    summary = summarize(joined, synthetic.facts())
    assert found(summary, "chunks_merged") == [("note", "dspine")]
    before, after = arm(summarize(run, synthetic.facts()), "dspine").point, arm(summary, "dspine").point
    assert before is not None and after is not None and before.acceptance == after.acceptance
    assert check_streams(run).merged == 0


def test_counters_that_contradict_the_stream_are_an_error(run: list[RequestRecord]) -> None:
    def wrong(one: RequestRecord) -> dict[str, Any]:
        assert one.spec is not None
        more = one.spec.spec_num_correct_drafts + 1
        return {"spec": one.spec.model_copy(update={"spec_num_correct_drafts": more})}

    summary = summarize(changed(run, "dspine", wrong), synthetic.facts())
    assert found(summary, "counters_contradict") == [("error", "dspine")] and exit_code(summary) == 1


# What is sent --------------------------------------------------------------------------------------------------------


def test_random_prompts_cannot_be_sent_a_suite_holds_messages_and_the_template_is_applied() -> None:
    fields = set(Suite.model_fields)
    assert "prompts" in fields and not fields & {"random", "input_len", "dataset", "token_ids"}
    with pytest.raises(ValueError, match="at least 1 item"):
        Suite.model_validate({**plan_factory.suite().model_dump(), "prompts": []})


def test_chat_template_or_thinking_mode_that_differs_refuses_the_comparison(run: list[RequestRecord]) -> None:
    other = changed(run, "dspine", lambda one: {"prompt_sha256": "1" * 64})
    summary = summarize(other, synthetic.facts())
    assert found(summary, "unfair_prompts") == [("error", None)] and exit_code(summary) == REFUSED
    longer = changed(run, "dspine", lambda one: {"prompt_tokens": (one.prompt_tokens or 0) + 4})
    assert found(summarize(longer, synthetic.facts()), "unfair_prompts") == [("error", None)]
    for config, code in (
        ("suite.enable_thinking", "unfair_thinking"),
        ("target.chat_template", "unfair_chat_template"),
    ):
        facts = replace(synthetic.facts(), unfair={config: {"plain": None, "dspine": True}})
        assert found(summarize(run, facts), code) == [("error", None)]


def test_precision_of_the_target_that_differs_refuses_the_comparison(run: list[RequestRecord]) -> None:
    assert found(summarize(run, served("dspine", dtype="bfloat16")), "unfair_precision") == [("error", None)]
    summary = summarize(run, served("dspine", kv_cache_dtype="fp8_e4m3"))
    assert found(summary, "unfair_kv_cache_dtype") == [("error", None)] and exit_code(summary) == REFUSED


def test_a_drafter_of_another_target_cannot_be_chosen() -> None:
    drafter = plan_factory.arm("ngram", plan_factory.suite(), plan_factory.load()).drafter
    trained = drafter.model_copy(update={"checkpoints": {"qwen3_8b": Checkpoint(path="a/b")}})
    with pytest.raises(ConfigError, match="has no weights for target=smollm2_135m"):
        trained.checkpoint("smollm2_135m")


def test_prefix_cache_that_was_not_emptied_is_found(run: list[RequestRecord]) -> None:
    """A server that has seen the prompts before answers their first token too soon."""
    replayed = changed(run, "dflash2", lambda one: {"cached_tokens": (one.prompt_tokens or 0) - 1})
    summary = summarize(replayed, synthetic.facts())
    assert found(summary, "cached_prompts") == [("warning", "dflash2")]
    assert found(summary, "unfair_cache_hits") == [("warning", None)]
    assert found(summarize(run, synthetic.facts()), "cached_prompts") == []


def test_warm_up_smaller_than_the_batch_cannot_be_and_none_at_all_is_told(
    run: list[RequestRecord], tmp_path: Path
) -> None:
    _, plan = plan_factory.comparison(
        tmp_path, plan_factory.arm("plain", plan_factory.suite(64), plan_factory.load((64,)))
    )
    assert plan.trials[0].load.warmup_requests == 64
    facts = synthetic.facts()
    cold = summarize(run, replace(facts, setting={**facts.setting, "warm_up": False}))
    assert found(cold, "cold_start") == [("warning", None)]


def test_ramp_and_drain_are_not_in_the_throughput_at_full_load() -> None:
    """Four requests, two at a time; the last runs alone at a quarter of the speed: the whole trial makes less."""
    times = [(0.0, 1.0), (0.0, 1.0), (1.0, 1.0), (1.0, 5.0)]
    trial = [
        record(
            prompt_id=f"p{place}", sent_at=start, e2e_s=length, output_ids=list(range(100)), completion_tokens=100,
            chunks=[(length * (token + 1) / 100, token + 1) for token in range(100)],
        )
        for place, (start, length) in enumerate(times)
    ]  # fmt: skip
    whole = metrics.compute(trial).output_tok_s
    assert whole == pytest.approx(400 / 6)
    assert full_load_tok_s([trial], 2) == pytest.approx((100 + 100 + 100 + 20) / 2, rel=0.02)


def test_closed_loop_phase_lock_equal_lengths_under_load_are_told() -> None:
    loads = (1, 4)

    def same_length(one: RequestRecord) -> RequestRecord:
        return one.model_copy(update={"completion_tokens": 64, "finish_reason": "length"})

    records = list(map(same_length, synthetic.records(concurrencies=loads)))
    facts = synthetic.facts(concurrencies=loads)
    assert found(summarize(records, facts), "phase_locked") == [("warning", None)]
    assert found(summarize(synthetic.records(concurrencies=loads), facts), "phase_locked") == []
    alone = list(map(same_length, synthetic.records()))
    assert found(summarize(alone, synthetic.facts()), "phase_locked") == [], "one at a time there is nothing to lock"


def test_output_length_ignore_eos_and_unequal_lengths_are_told(run: list[RequestRecord]) -> None:
    facts = synthetic.facts()
    summary = summarize(run, replace(facts, setting={**facts.setting, "ignore_eos": True}))
    assert found(summary, "past_the_end") == [("warning", None)]
    shorter = changed(
        run, "dspine", lambda one: {"output_ids": one.output_ids[:-2], "completion_tokens": len(one.output_ids) - 2}
    )
    assert found(summarize(shorter, synthetic.facts()), "output_lengths") == [("warning", "dspine")]
    assert found(summarize(run, synthetic.facts()), "cut_outputs") == [("note", "plain")]


def test_output_that_loops_is_told(run: list[RequestRecord]) -> None:
    loops = changed(run, "dspine", lambda one: {"output_ids": [1, 2] * 20})
    assert found(summarize(loops, synthetic.facts()), "looping_text") == [("warning", "dspine")]


def test_sampling_every_parameter_is_sent_so_no_server_default_decides(run: list[RequestRecord]) -> None:
    asked = request(sampling=Sampling(max_new_tokens=8, temperature=0.7))
    sent = json.loads(generate.body(asked))["sampling_params"]
    assert {"temperature", "top_p", "top_k", "ignore_eos"} <= set(sent)
    assert sent["top_k"] == -1, "off, where a client's 1 would be greedy"
    facts = served("dspine", sampling_defaults="openai")
    assert found(summarize(run, served("dspine")), "unfair_sampling") == []
    plain = [replace(one, identity={**one.identity, "sampling_defaults": "model"}) for one in served("x").sessions]
    mixed = [two if two.arm == "dspine" else one for one, two in zip(plain, facts.sessions, strict=True)]
    assert found(summarize(run, replace(facts, sessions=mixed)), "unfair_sampling") == [("error", None)]


def test_sampling_top_k_of_one_at_a_temperature_is_told(run: list[RequestRecord]) -> None:
    facts = synthetic.facts()
    greedy = replace(facts, temperature=1.0, setting={**facts.setting, "top_k": 1})
    assert found(summarize(run, greedy), "greedy_in_effect") == [("warning", None)]
