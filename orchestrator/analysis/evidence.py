"""What the headline figures of one arm under one load rest on: their intervals, and how steady the run was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from orchestrator.analysis import metrics
from orchestrator.frozen import Frozen
from orchestrator.measuring.records import RequestRecord
from orchestrator.stats import (
    Estimate,
    Observation,
    Restarts,
    between_starts,
    clustered_median,
    drift_over_run,
    ratio_of_sums,
    start_weights,
)

Span = Callable[[RequestRecord], tuple[int, float]]
"""(output tokens, seconds in which they were made) of a request; zeros where it has none."""


class Evidence(Frozen):
    """Intervals of the figures that a `Point` shows. tau's is beside tau; the speedup's in the ratio itself."""

    output_tok_s: Estimate | None
    """sum(output tokens) / sum(end-to-end time); over prompts and, where their spread is known, server starts."""
    ttft_s: Estimate | None
    tpot_s: Estimate | None
    """Medians over requests, s; intervals over prompts."""
    drift: Estimate | None
    """Throughput in the second half of the repeats over that in the first, paired by prompt."""
    restarts: Restarts | None
    """Spread between server starts, estimated from all arms under this load."""


def whole(record: RequestRecord) -> tuple[int, float]:
    """(output tokens, seconds) of the whole request; zeros where it has none."""
    return record.completion_tokens or 0, record.e2e_s or 0.0


def decode(record: RequestRecord) -> tuple[int, float]:
    """(tokens, seconds) after the first chunk."""
    if len(record.chunks) < 2:
        return 0, 0.0
    (first_s, first_tokens), (last_s, last_tokens) = record.chunks[0], record.chunks[-1]
    return last_tokens - first_tokens, last_s - first_s


def observations(records: Iterable[RequestRecord], comparison: str, span: Span) -> list[Observation]:
    """Well-ended measured requests as the statistics see them; a session of the plan is a start."""
    return [
        Observation(comparison, record.prompt_id, record.repeat, *span(record), record.session_index)
        for record in metrics.measured(records)
    ]


def restarts(arms: Mapping[str, Sequence[RequestRecord]], comparison: str, span: Span) -> Restarts | None:
    """Spread between server starts from the requests of all arms under one load."""
    return between_starts({arm: observations(records, comparison, span) for arm, records in arms.items()})


def evidence(records: Sequence[RequestRecord], comparison: str, between: Restarts | None) -> Evidence:
    """Of the measured requests of one arm under one load."""
    timed = [one for one in observations(records, comparison, whole) if one.tokens > 0 and one.seconds > 0]
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for one in timed:
        sums[one.prompt][0] += one.tokens
        sums[one.prompt][1] += one.seconds
    shared = [between.term(start_weights(timed))] if between else []
    return Evidence(
        output_tok_s=ratio_of_sums([(tokens, seconds) for tokens, seconds in sums.values()], extra=shared),
        ttft_s=_median(records, lambda record: record.ttft_s),
        tpot_s=_median(records, lambda record: record.tpot_s),
        drift=drift_over_run(timed),
        restarts=between,
    )


def _median(records: Sequence[RequestRecord], figure: Callable[[RequestRecord], float | None]) -> Estimate | None:
    by_prompt: defaultdict[str, list[float]] = defaultdict(list)
    for record in metrics.measured(records):
        if (value := figure(record)) is not None:
            by_prompt[record.prompt_id].append(value)
    return clustered_median(list(by_prompt.values()))
