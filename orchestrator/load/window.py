"""The part of a trial in which the load was full, from its records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from orchestrator.measuring.records import RequestRecord


def full_load(records: Sequence[RequestRecord], concurrency: int | None) -> tuple[float, float] | None:
    """(start, end) of full load on the client's clock, s; ``records`` are all those of one trial's measured phase.

    Closed loop: from the sending of the request that filled it to the first end of a request without a successor. Open
    loop (``concurrency`` None): from the first end to the last sending. None where there is no such time, or where a
    request did not end well, since the load it made is not known.
    """
    if not records or any(record.e2e_s is None for record in records):
        return None
    sent = sorted(record.sent_at for record in records)
    ended = sorted(record.sent_at + (record.e2e_s or 0.0) for record in records)
    if concurrency is None:
        start, end = ended[0], sent[-1]
    elif len(records) < concurrency:
        return None
    else:
        start, end = sent[concurrency - 1], ended[len(records) - concurrency]
    return (start, end) if end > start else None


def tokens_between(records: Sequence[RequestRecord], start: float, end: float) -> int:
    """Output tokens that arrived after ``start`` and no later than ``end`` (s, client's clock)."""
    return sum(
        tokens - before
        for record in records
        for (_, before), (seconds, tokens) in pairwise([(0.0, 0), *record.chunks])
        if start < record.sent_at + seconds <= end
    )


def full_load_tok_s(trials: Iterable[Sequence[RequestRecord]], concurrency: int | None) -> float | None:
    """Output tokens/s while the load was full, over all trials that had such a time; None where none had."""
    spans = [(trial, span) for trial in trials if (span := full_load(trial, concurrency))]
    seconds = math.fsum(end - start for _, (start, end) in spans)
    return sum(tokens_between(trial, *span) for trial, span in spans) / seconds if seconds else None
