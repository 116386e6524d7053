"""Paired ratio between two arms of one comparison, and its interval."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

from orchestrator.frozen import Frozen
from orchestrator.stats.intervals import LEVEL, Term, detectable, half_width, mean_term
from orchestrator.stats.observation import Observation, by_pair
from orchestrator.stats.restarts import Restarts


class PairedRatio(Frozen):
    """How much faster one arm makes output tokens than the other, on the same prompts."""

    ratio: float
    """exp(mean over prompts of the mean over repeats of log(tokens/s of the arm / tokens/s of the baseline))."""
    low: float | None
    high: float | None
    """Ends of the ``level`` interval, taken on the mean log ratio and mapped back by exp. Its variance is that of the
    mean over prompts (n_prompts - 1 degrees of freedom) and, where ``restarts`` is known, that of the server starts.
    None with a single prompt: there is nothing to estimate a spread from."""
    level: float = LEVEL
    n_prompts: int
    """Prompts with at least one pair: the n of the interval."""
    n_pairs: int
    """Pairs of requests (prompt and repeat); at temperature 0 repeats are not independent evidence."""
    n_repeats: float
    """Pairs per prompt, mean."""
    ratio_of_totals: float
    """(all tokens / all seconds) of the arm over the same of the baseline, paired requests only: long answers weigh
    more here, so a gap between the two says that the speedup depends on the length."""
    detectable: float | None = None
    """The true ratio above 1 that a run like this one tells from 1 in 80 of 100 cases; smaller effects are missed."""
    prompts_se: float | None = None
    """Standard error of the mean log ratio over prompts."""
    restarts_se: float | None = None
    """What the server starts add to it, combined as the root of the sum of squares. None where their spread cannot be
    estimated: the interval then covers other prompts, not other starts."""

    narrowest: float | None = None
    """What ``half`` comes to with ever more repeats of these prompts: how far the prompts themselves lie apart. Only
    more prompts go below it. None with a single repeat."""

    @property
    def half(self) -> float | None:
        """The longer arm of the interval as a share of the ratio: 0.05 is +-5%."""
        return None if self.high is None else self.high / self.ratio - 1

    @property
    def over_starts(self) -> bool:
        """Whether the interval covers the spread between server starts."""
        return self.restarts_se is not None


def paired_ratio(
    arm: Iterable[Observation],
    baseline: Iterable[Observation],
    restarts: Restarts | None = None,
    level: float = LEVEL,
) -> PairedRatio | None:
    """Ratio of output throughput, arm over baseline, paired by (prompt, repeat); None where no pair exists.

    ``restarts``: spread between starts (`between_starts`), None where it is not known. Requests without tokens or time
    are left out, as is a request whose partner is missing.
    Raises ValueError for requests of more than one comparison and for a pair key that occurs twice in an arm.
    """
    ours, theirs = list(arm), list(baseline)
    comparisons = {observation.comparison for observation in ours + theirs}
    if len(comparisons) > 1:
        raise ValueError(f"requests of different comparisons are never paired: {', '.join(sorted(comparisons))}")
    left, right = by_pair(ours), by_pair(theirs)
    pairs = sorted(left.keys() & right.keys())
    if not pairs:
        return None
    logs: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for prompt, repeat in pairs:
        logs[prompt][repeat] = left[prompt, repeat].log_rate - right[prompt, repeat].log_rate
    means = [_mean(values.values()) for values in logs.values()]
    mean = _mean(means)
    prompts = mean_term(means)
    own = None if prompts is None else _of_prompts(prompts, logs)
    starts: Term | None = None
    if restarts is not None:
        starts = restarts.term(
            [*start_weights(left[pair] for pair in pairs), *start_weights(right[pair] for pair in pairs)]
        )
    terms = [term for term in (prompts, starts) if term is not None]
    half = None if prompts is None else half_width(terms, level)
    return PairedRatio(
        ratio=math.exp(mean),
        low=None if half is None else math.exp(mean - half),
        high=None if half is None else math.exp(mean + half),
        level=level,
        n_prompts=len(means),
        n_pairs=len(pairs),
        n_repeats=len(pairs) / len(means),
        ratio_of_totals=_total_rate(left, pairs) / _total_rate(right, pairs),
        detectable=None if prompts is None else math.exp(detectable(terms, level)),
        prompts_se=None if prompts is None else math.sqrt(prompts.variance),
        restarts_se=None if starts is None else math.sqrt(starts.variance),
        narrowest=None if own is None else math.expm1(half_width([own], level)),
    )


def _of_prompts(whole: Term, logs: Mapping[str, Mapping[int, float]]) -> Term | None:
    """What is left of the prompts' term without the noise of their requests, which more repeats average out."""
    repeats = sorted({repeat for values in logs.values() for repeat in values})
    full = [[values[repeat] for repeat in repeats] for values in logs.values() if len(values) == len(repeats)]
    if len(repeats) < 2 or len(full) < 2:
        return None
    shifts = [_mean(column) for column in zip(*full, strict=True)]
    grand = _mean(shifts)
    left = math.fsum(
        (value - _mean(row) - shift + grand) ** 2 for row in full for value, shift in zip(row, shifts, strict=True)
    )
    noise = left / (len(full) - 1) / (len(repeats) - 1) / len(repeats) / len(logs)
    return Term(max(0.0, whole.variance - noise), whole.df)


def _mean(values: Collection[float]) -> float:
    return math.fsum(values) / len(values)


def start_weights(observations: Iterable[Observation]) -> list[float]:
    """Share of an arm's requests that each of its server starts served."""
    counts = Counter(observation.start for observation in observations)
    return [count / counts.total() for count in counts.values()]


def _total_rate(found: dict[tuple[str, int], Observation], pairs: list[tuple[str, int]]) -> float:
    return sum(found[pair].tokens for pair in pairs) / math.fsum(found[pair].seconds for pair in pairs)
