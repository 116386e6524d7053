"""Acceptance of drafts, computed from the raw counters of each request and from nothing else.

Averages of averages are never taken: counts are summed first and divided once, except where a figure says otherwise.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise, zip_longest

from orchestrator.analysis import metrics
from orchestrator.frozen import Frozen
from orchestrator.measuring.records import RequestRecord, SpecCounters
from orchestrator.stats import ratio_of_sums


class Position(Frozen):
    """Acceptance at one place of the draft, 1-based."""

    position: int
    reached: int
    """Verification steps whose window held this position."""
    correct: int
    """Steps in which this draft token and all before it were correct."""
    joint: float | None
    """``correct / reached``; None where no step reached the position."""
    conditional: float | None
    """``correct`` / steps that reached the position with everything before it correct. Exact when every step proposes
    the same number of tokens. With windows that vary the two histograms do not say how many of the steps that were
    correct so far had been cut right there, so this is a lower bound: its denominator is the most it can be,
    ``min(correct at the position before, reached)``."""


class Acceptance(Frozen):
    """Acceptance of a set of requests. Lengths are tokens per verification step."""

    requests: int
    """Requests counted (the n of every figure here; at temperature 0 one per prompt)."""
    verify_steps: int
    correct_drafts: int
    proposed_drafts: int
    """Drafts that were verified. Where windows are cut, those inside the windows: a server may go on counting the whole
    block as proposed (SGLang's ``compact`` does)."""
    tau: float
    """Headline: 1 + sum(correct) / sum(verify steps); the 1 is the bonus token."""
    tau_low: float | None
    tau_high: float | None
    """Ends of the 95% interval over prompts (``stats.ratio_of_sums``): how much tau would move with other prompts like
    these. None with a single prompt."""
    tau_mean_of_requests: float
    tau_token_weighted: float
    """Mean of the requests' tau, weighted by their output tokens."""
    committed_per_step: float
    """Tokens that verification steps brought to the output / sum(verify steps). Per request these are the output tokens
    without the first, which the prefill brings; where a server decodes the last token plainly, that one is left out too
    (there are then more tokens than the steps can have brought)."""
    rate: float | None
    """sum(correct) / sum(proposed), bonus excluded; None where nothing was proposed."""
    proposed_per_step: float
    window_mean: float
    """Tokens the target scored per verification step, anchor included."""
    window_use: float
    """tau / ``window_mean``: tokens gained per token that the target scored. Comparable across block sizes, where tau
    alone rewards the longer block for work that it makes the target do."""
    histogram: list[int]
    """Index i: verification steps with i correct drafts."""
    window_histogram: list[int] | None
    """Index i: verification steps with a window of i tokens; None where the server does not vary it."""
    positions: list[Position]
    windows_vary: bool


def independent(records: Iterable[RequestRecord], temperature: float) -> list[RequestRecord]:
    """Requests that count as evidence for acceptance: well-ended ones, at temperature 0 the first of each prompt.

    A greedy repeat has the same text and the same drafts, so it adds timing and no acceptance.
    """
    ended = metrics.measured(records)
    if temperature > 0:
        return ended
    first: dict[str, RequestRecord] = {}
    for record in sorted(ended, key=lambda record: record.repeat):
        first.setdefault(record.prompt_id, record)
    return list(first.values())


def pooled(records: Sequence[RequestRecord]) -> Acceptance | None:
    """Acceptance over the records that hold counters; None where none does (a plain server)."""
    speculated = [record for record in records if record.spec is not None and record.spec.spec_verify_ct > 0]
    counted = [(record.completion_tokens or 0, record.spec) for record in speculated if record.spec is not None]
    if not counted:
        return None
    steps = sum(spec.spec_verify_ct for _, spec in counted)
    correct = sum(spec.spec_num_correct_drafts for _, spec in counted)
    tokens = sum(tokens for tokens, _ in counted)
    taus = [1 + spec.spec_num_correct_drafts / spec.spec_verify_ct for _, spec in counted]
    windows = _sum_windows(spec for _, spec in counted)
    proposed = (
        sum(spec.spec_num_proposed_drafts for _, spec in counted)
        if windows is None
        else sum((size - 1) * count for size, count in enumerate(windows) if size)
    )
    histogram = _sum(spec.spec_correct_drafts_histogram for _, spec in counted)
    estimate = ratio_of_sums(_by_prompt(speculated), offset=1)
    return Acceptance(
        requests=len(counted),
        verify_steps=steps,
        correct_drafts=correct,
        proposed_drafts=proposed,
        tau=1 + correct / steps,
        tau_low=estimate.low if estimate else None,
        tau_high=estimate.high if estimate else None,
        tau_mean_of_requests=sum(taus) / len(taus),
        tau_token_weighted=(
            sum(tau * weight for tau, (weight, _) in zip(taus, counted, strict=True)) / tokens
            if tokens
            else sum(taus) / len(taus)
        ),
        committed_per_step=sum(
            min(tokens - 1, spec.spec_num_correct_drafts + spec.spec_verify_ct) for tokens, spec in counted
        )
        / steps,
        rate=correct / proposed if proposed else None,
        proposed_per_step=proposed / steps,
        window_mean=1 + proposed / steps,
        window_use=(steps + correct) / (steps + proposed),
        histogram=histogram,
        window_histogram=windows,
        positions=positions(histogram, windows, proposed),
        windows_vary=windows is not None and sum(1 for count in windows if count) > 1,
    )


def by_category(records: Sequence[RequestRecord]) -> dict[str, Acceptance]:
    """``pooled`` for each category that has counters, in the order of first appearance."""
    groups: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in records:
        groups[record.category].append(record)
    results = {category: pooled(group) for category, group in groups.items()}
    return {category: result for category, result in results.items() if result is not None}


def positions(histogram: Sequence[int], windows: Sequence[int] | None, proposed: int) -> list[Position]:
    """Rates by draft position from the histogram of correct drafts.

    A step with i correct drafts was correct at positions 1..i, so the number correct at position j is the histogram's
    tail from j. Steps that reached j: all of them with a fixed window, and with windows of varying size those with a
    window of j + 1 tokens or more (the window counts the anchor). A step counts as reached only if its window held
    the position: a cut window, and a drafter that proposed nothing, say nothing about the tokens left out.
    """
    steps = sum(histogram)
    if not steps:
        return []
    widest = len(windows) - 2 if windows else math.ceil(proposed / steps)
    length = max(len(histogram) - 1, widest)
    result = []
    before = steps
    for position in range(1, length + 1):
        correct = sum(histogram[position:])
        reached = steps if windows is None else sum(windows[position + 1 :])
        eligible = min(before, reached)
        result.append(
            Position(
                position=position,
                reached=reached,
                correct=correct,
                joint=correct / reached if reached else None,
                conditional=correct / eligible if eligible else None,
            )
        )
        before = correct
    return result


class Recount(Frozen):
    """Counters recomputed from the stream of one request, one chunk per verification step after the first."""

    verify_steps: int
    histogram: list[int]
    """Correct drafts per step as they reached the output; the last step is cut at EOS or the token limit."""
    last_committed: int
    """Tokens that the last step brought to the output (0 without a step)."""


def recount(record: RequestRecord) -> Recount:
    """Count steps and correct drafts from the chunks alone: a step brings its correct drafts and one bonus token.

    Valid where the server streams after every step (``stream_interval`` 1) and merges no chunks.
    """
    return _recount([tokens for _, tokens in record.chunks])


def _recount(totals: Sequence[int]) -> Recount:
    gains = [after - before for before, after in pairwise(totals)]
    histogram = [0] * (max(gains, default=0))
    for gain in gains:
        histogram[gain - 1] += 1
    return Recount(verify_steps=len(gains), histogram=histogram, last_committed=gains[-1] if gains else 0)


def disagreement(record: RequestRecord) -> str | None:
    """What the server's counters say otherwise than the stream; None where they agree.

    They may differ in the last step, and only there: the server counts drafts past EOS or the token limit as correct,
    the stream ends before them. A server may also decode the last token of the limit without drafts, which is then no
    verification step.
    """
    spec = record.spec
    seen = recount(record)
    if spec is None:
        wide = sum(seen.histogram[1:])
        return f"{wide} chunks of several tokens from a server without speculation" if wide else None
    if contradiction := _contradiction(spec):
        return contradiction
    histogram = spec.spec_correct_drafts_histogram
    plain_last = (
        record.finish_reason == "length" and seen.last_committed == 1 and seen.verify_steps == spec.spec_verify_ct + 1
    )
    if plain_last:
        seen = _recount([tokens for _, tokens in record.chunks[:-1]])
    if seen.verify_steps != spec.spec_verify_ct:
        return f"{seen.verify_steps} chunks after the first, spec_verify_ct is {spec.spec_verify_ct}"
    excess = [server - stream for server, stream in zip_longest(histogram, seen.histogram, fillvalue=0)]
    moved = {index: value for index, value in enumerate(excess) if value}
    if not moved:
        return None
    cut = seen.last_committed - 1
    if not plain_last and moved.pop(cut, None) == -1 and list(moved.values()) == [1] and min(moved) > cut:
        return None  # one step moved from what reached the output to more: the last one was cut
    return f"histogram {histogram} from the server, {seen.histogram} from the stream"


class StreamCheck(Frozen):
    """How well the streams of a set of requests agree with the counters."""

    merged: int = 0
    """Streams with fewer chunks than the server took steps: somewhere on the way chunks were joined."""
    contradictions: int = 0
    """Requests whose counters contradict themselves, or say otherwise than a stream that has a chunk per step."""
    first: str | None = None
    """The first contradiction, in words."""


def check_streams(records: Iterable[RequestRecord]) -> StreamCheck:
    """``disagreement`` of every request; joined chunks are told apart, since they leave the counters as they are."""
    merged, found = 0, []
    for record in records:
        problem = disagreement(record)
        if problem is None:
            continue
        steps = record.spec.spec_verify_ct if record.spec else (record.completion_tokens or 0) - 1
        if recount(record).verify_steps < steps and not (record.spec and _contradiction(record.spec)):
            merged += 1
        else:
            found.append(f"{record.prompt_id}: {problem}")
    return StreamCheck(merged=merged, contradictions=len(found), first=found[0] if found else None)


def _contradiction(spec: SpecCounters) -> str | None:
    histogram = spec.spec_correct_drafts_histogram
    weighted = sum(correct * count for correct, count in enumerate(histogram))
    if sum(histogram) != spec.spec_verify_ct:
        return f"the histogram sums to {sum(histogram)} steps, spec_verify_ct is {spec.spec_verify_ct}"
    if weighted != spec.spec_num_correct_drafts:
        claimed = spec.spec_num_correct_drafts
        return f"the histogram holds {weighted} correct drafts, spec_num_correct_drafts is {claimed}"
    return None


def _by_prompt(records: Iterable[RequestRecord]) -> list[tuple[float, float]]:
    """(correct drafts, verification steps) by prompt: a second pass over a prompt is no new evidence."""
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for record in records:
        if record.spec is not None:
            sums[record.prompt_id][0] += record.spec.spec_num_correct_drafts
            sums[record.prompt_id][1] += record.spec.spec_verify_ct
    return [(correct, steps) for correct, steps in sums.values()]


def _sum(histograms: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*histograms, fillvalue=0)]


def _sum_windows(counters: Iterable[SpecCounters]) -> list[int] | None:
    """Sum of the window histograms; None where no request has one, or where one of them cannot be known."""
    counted = list(counters)
    if all(spec.spec_cap_lens_histogram is None for spec in counted):
        return None
    histograms = [_windows(spec) for spec in counted]
    known = [histogram for histogram in histograms if histogram is not None]
    return _sum(known) if len(known) == len(counted) else None


def _windows(spec: SpecCounters) -> list[int] | None:
    """A request's window histogram. Where the server left it out, all its windows had the same size."""
    if spec.spec_cap_lens_histogram is not None:
        return spec.spec_cap_lens_histogram
    drafts, rest = divmod(spec.spec_num_proposed_drafts, spec.spec_verify_ct)
    return None if rest else [0] * (drafts + 1) + [spec.spec_verify_ct]
