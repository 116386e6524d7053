"""Latency, throughput and the shape of the output, from request records.

Definitions follow vLLM and SGLang: TTFT is send to first token, TPOT the time per token after the first chunk, E2E
send to last byte. Only well-ended requests of the measured phase count; the others are counted, not averaged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from orchestrator.frozen import Frozen
from orchestrator.measuring.records import RequestRecord

NGRAM = 4


class Percentiles(Frozen):
    """Seconds; None where nothing was measured."""

    n: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


class Metrics(Frozen):
    """Figures of a set of requests; the throughput ones only mean something inside one trial."""

    requests: int
    outcomes: dict[str, int]
    """Every request of the measured phase by how it ended."""
    ttft_s: Percentiles
    tpot_s: Percentiles
    e2e_s: Percentiles
    itl_s: Percentiles
    """Gap between chunks divided by the tokens it brought, weighted by those tokens."""
    request_tok_s: Percentiles
    """Tokens/s, not seconds: output tokens / E2E per request."""
    decode_tok_s: Percentiles
    """Tokens/s, not seconds: output tokens after the first chunk / time after the first chunk, per request."""
    output_tok_s: float | None
    """Output tokens of the set / (last byte of the last request - first send): the throughput of a trial."""
    wall_s: float | None
    output_tokens: int
    output_lengths: list[int]
    finish_reasons: dict[str, int]
    cached_tokens: int
    repeated_4grams: float | None
    """Share of 4-grams of the output that occurred before in the same output; looping text flatters a drafter."""

    @property
    def failed(self) -> dict[str, int]:
        """Requests that did not end well, by outcome."""
        return {outcome: count for outcome, count in self.outcomes.items() if outcome != "ok"}


def measured(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Well-ended requests of the measured phase."""
    return [record for record in records if record.phase == "measure" and record.outcome == "ok"]


def compute(records: Sequence[RequestRecord]) -> Metrics:
    """Metrics of one trial, or of a set of requests when the throughput of the whole is not read."""
    ok = measured(records)
    wall = wall_s(ok)
    tokens = sum(record.completion_tokens or 0 for record in ok)
    repeated, total = map(sum, zip(*(ngram_counts(record.output_ids) for record in ok), strict=True)) if ok else (0, 0)
    return Metrics(
        requests=len(ok),
        outcomes=dict(Counter(record.outcome for record in records if record.phase == "measure")),
        ttft_s=percentiles(record.ttft_s for record in ok),
        tpot_s=percentiles(record.tpot_s for record in ok),
        e2e_s=percentiles(record.e2e_s for record in ok),
        itl_s=percentiles(
            gap / tokens for record in ok for gap, tokens in inter_token_gaps(record) for _ in range(tokens)
        ),
        request_tok_s=percentiles(request_tok_s(record) for record in ok),
        decode_tok_s=percentiles(1 / record.tpot_s if record.tpot_s else None for record in ok),
        output_tok_s=tokens / wall if wall else None,
        wall_s=wall,
        output_tokens=tokens,
        output_lengths=[record.completion_tokens or 0 for record in ok],
        finish_reasons=dict(Counter(record.finish_reason or "unknown" for record in ok)),
        cached_tokens=sum(record.cached_tokens or 0 for record in ok),
        repeated_4grams=repeated / total if total else None,
    )


def request_tok_s(record: RequestRecord) -> float | None:
    """Output tokens/s of one request over its whole duration, prefill included."""
    return record.completion_tokens / record.e2e_s if record.e2e_s and record.completion_tokens else None


def inter_token_gaps(record: RequestRecord) -> list[tuple[float, int]]:
    """(seconds since the chunk before, tokens it brought) for each chunk after the first."""
    return [(later - earlier, after - before) for (earlier, before), (later, after) in pairwise(record.chunks)]


def ngram_counts(ids: Sequence[int], n: int = NGRAM) -> tuple[int, int]:
    """(n-grams that occurred before in the same sequence, all n-grams)."""
    grams = [tuple(ids[start : start + n]) for start in range(len(ids) - n + 1)]
    return len(grams) - len(set(grams)), len(grams)


def percentiles(values: Iterable[float | None]) -> Percentiles:
    """Mean and percentiles of the values that are there."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return Percentiles(n=0, mean=None, p50=None, p90=None, p99=None)
    return Percentiles(
        n=len(known),
        mean=math.fsum(known) / len(known),
        p50=percentile(known, 50),
        p90=percentile(known, 90),
        p99=percentile(known, 99),
    )


def percentile(ordered: Sequence[float], q: float) -> float:
    """Percentile ``q`` (0..100) of sorted values, linear between neighbours as in ``numpy.percentile``."""
    place = (len(ordered) - 1) * q / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def wall_s(records: Sequence[RequestRecord]) -> float | None:
    """From the first sending to the last byte, s; of one trial, since clocks are comparable inside it only."""
    if not records or any(record.e2e_s is None for record in records):
        return None
    start = min(record.sent_at for record in records)
    return max(record.sent_at + (record.e2e_s or 0.0) for record in records) - start
