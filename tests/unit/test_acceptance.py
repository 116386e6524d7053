"""Every expected figure is worked out by hand from the counts in the test."""

from __future__ import annotations

import math

import pytest

from orchestrator.analysis.acceptance import (
    by_category,
    check_streams,
    disagreement,
    independent,
    pooled,
    positions,
    recount,
)
from tests.record_factory import counters, record

# Block of 4: three drafts a step. 10 steps: 2 with none correct, 3 with one, 1 with two, 4 with three.
SHORT = record(prompt_id="a", category="short", completion_tokens=27, spec=counters([2, 3, 1, 4], 30), arm="spec")
# 5 steps, all three drafts correct in each.
LONG = record(prompt_id="b", category="long", completion_tokens=21, spec=counters([0, 0, 0, 5], 15), arm="spec")


def test_tau_is_pooled_and_its_other_averages_stand_beside_it() -> None:
    result = pooled([SHORT, LONG])
    assert result is not None
    assert result.verify_steps == 15
    assert result.correct_drafts == (3 * 1 + 1 * 2 + 4 * 3) + 15 == 32
    assert result.tau == pytest.approx(1 + 32 / 15)
    assert result.tau_mean_of_requests == pytest.approx(((1 + 17 / 10) + (1 + 15 / 5)) / 2)
    assert result.tau_token_weighted == pytest.approx((27 * 2.7 + 21 * 4.0) / 48)
    assert result.committed_per_step == pytest.approx((26 + 20) / 15)
    assert result.rate == pytest.approx(32 / 45)
    assert result.proposed_per_step == 3
    assert result.histogram == [2, 3, 1, 9]
    assert result.requests == 2


def test_the_interval_of_tau_is_over_prompts() -> None:
    pairs = [(17, 10), (15, 5), (4, 8)]  # correct drafts and steps of three prompts; pooled: 36 / 23
    requests = [
        record(prompt_id=f"p{place}", spec=counters([steps - 1] + [0] * (correct - 1) + [1], 0))
        for place, (correct, steps) in enumerate(pairs)
    ]
    result = pooled(requests)
    assert result is not None and result.tau == pytest.approx(1 + 36 / 23)
    logs = [math.log(1 + left) for left in (19 / 13, 21 / 18, 32 / 15)]  # with one prompt left out
    spread = sum((one - sum(logs) / 3) ** 2 for one in logs)
    half = 4.302652729911275 * (2 / 3 * spread) ** 0.5  # t(0.975, 2)
    assert result.tau_low == pytest.approx(result.tau * math.exp(-half))
    assert result.tau_high == pytest.approx(result.tau * math.exp(half))
    twice = pooled(requests * 2)
    assert twice is not None and twice.tau_low == pytest.approx(result.tau_low), "a second pass is no new evidence"
    alone = pooled(requests[:1])
    assert alone is not None and (alone.tau_low, alone.tau_high) == (None, None)


def test_window_use_is_what_a_scored_token_gains() -> None:
    block, longer = pooled([SHORT]), pooled([record(spec=counters([2, 3, 1, 4], 150))])  # 3 and 15 drafts a step
    assert block is not None and longer is not None
    assert block.tau == longer.tau, "the longer block guesses no better"
    assert (block.window_mean, longer.window_mean) == (4, 16)
    assert block.window_use == pytest.approx(2.7 / 4) and longer.window_use == pytest.approx(2.7 / 16)


def test_a_server_that_counts_the_whole_block_where_windows_are_cut_is_corrected() -> None:
    # Block of 4; 6 of 10 windows were cut to the anchor and one draft, yet 30 drafts are reported as proposed.
    result = pooled([record(spec=counters([3, 5, 0, 2], 30, [0, 0, 6, 0, 4]))])
    assert result is not None
    assert result.proposed_drafts == 6 * 1 + 4 * 3
    assert result.rate == pytest.approx(11 / 18)
    assert result.window_mean == pytest.approx(2.8)


def test_static_positions_are_exact() -> None:
    first, second, third = positions([2, 3, 1, 4], None, proposed=30)
    assert (first.correct, first.reached, first.joint, first.conditional) == (8, 10, 0.8, 0.8)
    assert (second.correct, second.reached, second.joint) == (5, 10, 0.5)
    assert second.conditional == pytest.approx(5 / 8)
    assert (third.correct, third.joint) == (4, 0.4)
    assert third.conditional == pytest.approx(4 / 5)


def test_positions_that_were_proposed_and_never_correct_are_zero_not_missing() -> None:
    result = positions([4, 2], None, proposed=18)
    assert [place.joint for place in result] == [pytest.approx(2 / 6), 0.0, 0.0]
    assert [place.conditional for place in result] == [pytest.approx(2 / 6), 0.0, None]


def test_a_cut_window_is_not_counted_against_the_positions_it_left_out() -> None:
    # Windows count the anchor: 4 steps of 2 tokens (one draft), 6 steps of 4 tokens (three drafts).
    # Truth by step: the 4 cut steps were correct at position 1; of the 6 wide ones 1 had none, 2 had one, 3 had three.
    result = positions([1, 6, 0, 3], [0, 0, 4, 0, 6], proposed=4 * 1 + 6 * 3)
    assert [place.reached for place in result] == [10, 6, 6]
    assert [place.joint for place in result] == [0.9, 0.5, 0.5]
    true_conditional_at_2 = 3 / 5  # wide steps correct at 1: 5
    assert result[1].conditional == pytest.approx(3 / 6), "the most the denominator can be"
    assert result[1].conditional <= true_conditional_at_2
    assert result[2].conditional == 1.0


def test_a_step_without_a_proposal_is_no_miss() -> None:
    # Prompt lookup with blocks of 4: 6 steps without a match (a window of the anchor alone), 4 with three drafts each,
    # of which 1 had none correct, 2 had one and 1 had three.
    result = pooled([record(spec=counters([7, 2, 0, 1], 4 * 3, [0, 6, 0, 0, 4]))])
    assert result is not None and result.windows_vary
    assert [place.reached for place in result.positions] == [4, 4, 4]
    assert [place.joint for place in result.positions] == [3 / 4, 1 / 4, 1 / 4]
    assert result.tau == pytest.approx(1 + 5 / 10), "tau counts every step"


def test_windows_of_requests_are_pooled() -> None:
    with_windows = record(spec=counters([1, 1], 3, [0, 0, 1, 1]))
    both = pooled([with_windows, with_windows])
    assert both is not None and both.window_histogram == [0, 0, 2, 2] and both.windows_vary
    mixed = pooled([with_windows, SHORT])  # one that the server says nothing of had the same window in all 10 steps
    assert mixed is not None and mixed.window_histogram == [0, 0, 1, 1, 10] and mixed.windows_vary
    unknown = pooled([with_windows, record(spec=counters([1, 1], 3))])
    assert unknown is not None and unknown.window_histogram is None and not unknown.windows_vary
    static = pooled([SHORT, LONG])
    assert static is not None and static.window_histogram is None and not static.windows_vary


def test_a_plain_arm_has_no_acceptance() -> None:
    assert pooled([record()]) is None
    assert pooled([]) is None
    assert pooled([record(spec=counters([], 0))]) is None, "a request of one token has no verification step"


def test_categories_are_pooled_apart() -> None:
    result = by_category([SHORT, LONG, record(category="plain")])
    assert {name: value.tau for name, value in result.items()} == {"short": pytest.approx(2.7), "long": 4.0}


def test_a_greedy_repeat_adds_no_acceptance_and_a_sampled_one_does() -> None:
    records = [
        record(repeat=1),
        record(repeat=0),
        record(prompt_id="p1", outcome="timeout"),
        record(prompt_id="p1", repeat=1),
        record(prompt_id="p2", phase="warmup"),
    ]
    assert [(kept.prompt_id, kept.repeat) for kept in independent(records, 0.0)] == [("p0", 0), ("p1", 1)]
    assert len(independent(records, 0.7)) == 3


def test_counters_are_recounted_from_the_stream() -> None:
    stream = record(
        output_ids=list(range(12)),
        chunks=[(0.1, 1), (0.2, 5), (0.3, 6), (0.4, 9), (0.5, 12)],
        spec=counters([1, 0, 2, 1], 12),
    )
    seen = recount(stream)
    assert seen.verify_steps == 4
    assert seen.histogram == [1, 0, 2, 1]  # gains 4, 1, 3, 3
    assert seen.last_committed == 3
    assert disagreement(stream) is None


def test_only_the_last_step_may_hold_more_than_the_stream_shows() -> None:
    def ended_at(server: list[int], proposed: int = 12) -> str | None:
        chunks = [(0.1, 1), (0.2, 5), (0.3, 6), (0.4, 9), (0.5, 11)]  # gains 4, 1, 3 and a last one of 2
        return disagreement(record(output_ids=list(range(11)), chunks=chunks, spec=counters(server, proposed)))

    assert ended_at([1, 1, 1, 1]) is None
    assert ended_at([1, 0, 1, 2]) is None, "the last step had three correct drafts, one reached the output"
    assert "from the stream" in (ended_at([2, 0, 1, 1]) or ""), "fewer than the output shows"
    assert "from the stream" in (ended_at([0, 1, 2, 1]) or ""), "another step than the last"
    assert "spec_verify_ct is 5" in (ended_at([2, 1, 1, 1], 15) or "")


def test_a_last_token_decoded_without_drafts_is_no_verification_step() -> None:
    chunks = [(0.1, 1), (0.2, 4), (0.3, 6), (0.4, 7)]  # gains 3, 2 and a plain 1 up to the limit
    fields = {"output_ids": list(range(7)), "chunks": chunks, "finish_reason": "length"}
    assert disagreement(record(spec=counters([0, 1, 1], 6), **fields)) is None
    assert disagreement(record(spec=counters([1, 0, 1], 6), **fields)) is not None
    assert disagreement(record(spec=counters([0, 1, 1], 6), **(fields | {"finish_reason": "stop"}))) is not None
    result = pooled([record(spec=counters([0, 1, 1], 6), **fields)])
    assert result is not None and result.committed_per_step == pytest.approx((3 + 2) / 2)


def test_committed_per_step_is_cut_where_the_output_was() -> None:
    result = pooled([record(output_ids=list(range(11)), spec=counters([1, 0, 1, 2], 12))])
    assert result is not None
    assert result.tau == pytest.approx(1 + 8 / 4)
    assert result.committed_per_step == pytest.approx(10 / 4)


def test_counters_that_contradict_themselves_are_named() -> None:
    good = counters([1, 1], 6)
    chunks = [(0.1, 1), (0.2, 2), (0.3, 4)]
    bad = good.model_copy(update={"spec_num_correct_drafts": 2})
    assert "spec_num_correct_drafts is 2" in (disagreement(record(chunks=chunks, spec=bad)) or "")
    bad = good.model_copy(update={"spec_verify_ct": 3})
    assert "spec_verify_ct is 3" in (disagreement(record(chunks=chunks, spec=bad)) or "")
    assert "without speculation" in (disagreement(record(chunks=chunks)) or "")
    assert disagreement(record()) is None


def test_joined_chunks_are_told_from_counters_that_are_wrong() -> None:
    spec = counters([1, 1], 6)
    joined = record(chunks=[(0.1, 1), (0.3, 4)], spec=spec)
    assert check_streams([joined, record()]).model_dump() == {"merged": 1, "contradictions": 0, "first": None}
    assert check_streams([record(chunks=[(0.1, 1), (0.3, 4)])]).merged == 1, "a plain server's chunks are joined too"
    wrong = record(chunks=[(0.1, 1), (0.3, 4)], spec=spec.model_copy(update={"spec_num_correct_drafts": 2}))
    found = check_streams([wrong])
    assert (found.merged, found.contradictions) == (0, 1) and "p0: the histogram holds 1" in (found.first or "")
    before = pooled([joined])
    after = pooled([record(chunks=[(0.1, 1), (0.2, 2), (0.3, 4)], spec=spec)])
    assert before == after, "tau comes from the counters, so joined chunks do not move it"
