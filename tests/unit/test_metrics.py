from __future__ import annotations

import pytest

from orchestrator.analysis.metrics import compute, inter_token_gaps, measured, ngram_counts, percentile, percentiles
from tests.record_factory import record


def test_latency_and_throughput_of_a_trial() -> None:
    fast = record(  # 5 tokens, first two at 0.2 s, last at 0.5 s, last byte at 0.6 s
        sent_at=10.0, output_ids=[1, 2, 3, 4, 5], chunks=[(0.2, 2), (0.5, 5)], e2e_s=0.6, finish_reason="stop"
    )
    slow = record(
        prompt_id="p1", sent_at=10.6, output_ids=[1, 2, 3], chunks=[(0.4, 1), (1.4, 3)], e2e_s=1.4, cached_tokens=2
    )
    result = compute([fast, slow, record(outcome="timeout", e2e_s=None), record(phase="warmup")])
    assert result.requests == 2
    assert result.outcomes == {"ok": 2, "timeout": 1}
    assert result.ttft_s.mean == pytest.approx(0.3)
    assert result.tpot_s.p50 == pytest.approx((0.3 / 3 + 1.0 / 2) / 2)
    assert result.e2e_s.p99 == pytest.approx(0.6 + 0.99 * 0.8)
    assert result.request_tok_s.mean == pytest.approx((5 / 0.6 + 3 / 1.4) / 2)
    assert result.decode_tok_s.mean == pytest.approx((10 + 2) / 2)
    assert result.itl_s.n == 5
    assert result.itl_s.mean == pytest.approx((3 * 0.1 + 2 * 0.5) / 5)
    assert result.wall_s == pytest.approx(2.0)
    assert result.output_tok_s == pytest.approx(8 / 2.0)
    assert result.output_lengths == [5, 3]
    assert result.finish_reasons == {"stop": 1, "length": 1}
    assert result.cached_tokens == 2


def test_nothing_measured_is_none_and_not_zero() -> None:
    result = compute([record(outcome="error", e2e_s=None)])
    assert (result.requests, result.output_tok_s, result.ttft_s.p50, result.repeated_4grams) == (0, None, None, None)
    assert result.outcomes == {"error": 1}


def test_concurrent_requests_share_the_wall_time() -> None:
    pair = [record(sent_at=0.0, e2e_s=2.0), record(prompt_id="p1", sent_at=0.5, e2e_s=2.0)]
    assert compute(pair).output_tok_s == pytest.approx(8 / 2.5)


def test_gaps_carry_the_tokens_of_their_chunk() -> None:
    gaps = inter_token_gaps(record(chunks=[(0.1, 1), (0.3, 5), (0.4, 6)]))
    assert gaps == [(pytest.approx(0.2), 4), (pytest.approx(0.1), 1)]


def test_repeated_4grams() -> None:
    assert ngram_counts([1, 2, 3, 4, 5, 6]) == (0, 3)
    assert ngram_counts([7] * 8) == (4, 5), "five times the same 4-gram: four repeats"
    assert ngram_counts([1, 2, 3, 4, 1, 2, 3, 4]) == (1, 5)
    assert ngram_counts([1, 2]) == (0, 0)
    looping, fresh = record(output_ids=[7] * 8), record(output_ids=[1, 2, 3, 4])
    assert compute([looping, fresh]).repeated_4grams == pytest.approx(4 / 6)


def test_percentiles_are_linear_between_neighbours() -> None:
    assert percentile([1.0, 2.0, 4.0], 50) == 2.0
    assert percentile([1.0, 2.0, 4.0], 75) == 3.0
    assert percentile([5.0], 99) == 5.0
    assert percentiles([3.0, None, 1.0]).p90 == pytest.approx(2.8)


def test_only_well_ended_requests_of_the_measured_phase_count() -> None:
    records = [record(), record(phase="warmup"), record(phase="probe"), record(outcome="truncated")]
    assert measured(records) == records[:1]
