"""Paired ratios between two arms of one comparison, and the interval of their mean.

The unit of evidence is the prompt, not the request: at temperature 0 a second run of a prompt repeats its text and
its acceptance, so it adds timing and nothing else. Repeats are therefore averaged inside a prompt and the interval is
taken over prompts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict
from scipy.special import stdtrit

LEVEL = 0.95


class Observation(NamedTuple):
    """One request as the statistics see it."""

    comparison: str
    """Key of the comparison that measured it; requests of two comparisons are never paired."""
    prompt: str
    repeat: int
    tokens: int
    """Output tokens produced in ``seconds``."""
    seconds: float


class PairedRatio(BaseModel):
    """How much faster one arm makes output tokens than the other, on the same prompts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ratio: float
    """exp(mean over prompts of the mean over repeats of log(tokens/s of the arm / tokens/s of the baseline))."""
    low: float | None
    high: float | None
    """Ends of the ``level`` interval: Student's t with n_prompts - 1 degrees of freedom on the mean log ratio, mapped
    back by exp. None with a single prompt: there is nothing to estimate a spread from."""
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


def paired_ratio(
    arm: Iterable[Observation], baseline: Iterable[Observation], level: float = LEVEL
) -> PairedRatio | None:
    """Ratio of output throughput, arm over baseline, paired by (prompt, repeat); None where no pair exists.

    Requests without tokens or time are left out, as is a request whose partner is missing.
    Raises ValueError for requests of more than one comparison and for a pair key that occurs twice in an arm.
    """
    ours, theirs = list(arm), list(baseline)
    comparisons = {observation.comparison for observation in ours + theirs}
    if len(comparisons) > 1:
        raise ValueError(f"requests of different comparisons are never paired: {', '.join(sorted(comparisons))}")
    left, right = _by_pair(ours), _by_pair(theirs)
    pairs = sorted(left.keys() & right.keys())
    if not pairs:
        return None
    logs: defaultdict[str, list[float]] = defaultdict(list)
    for prompt, repeat in pairs:
        a, b = left[prompt, repeat], right[prompt, repeat]
        logs[prompt].append(math.log(a.tokens / a.seconds) - math.log(b.tokens / b.seconds))
    means = [math.fsum(values) / len(values) for values in logs.values()]
    mean, half = mean_interval(means, level)
    return PairedRatio(
        ratio=math.exp(mean),
        low=None if half is None else math.exp(mean - half),
        high=None if half is None else math.exp(mean + half),
        level=level,
        n_prompts=len(means),
        n_pairs=len(pairs),
        n_repeats=len(pairs) / len(means),
        ratio_of_totals=_total_rate(left, pairs) / _total_rate(right, pairs),
    )


def mean_interval(values: list[float], level: float = LEVEL) -> tuple[float, float | None]:
    """Mean and half width of its Student t interval (n - 1 degrees of freedom); None as width for a single value."""
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return mean, None
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    return mean, float(stdtrit(n - 1, 0.5 + level / 2)) * math.sqrt(variance / n)


def _by_pair(observations: list[Observation]) -> dict[tuple[str, int], Observation]:
    found: dict[tuple[str, int], Observation] = {}
    for observation in observations:
        key = (observation.prompt, observation.repeat)
        if key in found:
            raise ValueError(f"prompt {key[0]!r}, repeat {key[1]} occurs twice in one arm: it cannot be paired")
        if observation.tokens > 0 and observation.seconds > 0:
            found[key] = observation
    return found


def _total_rate(found: dict[tuple[str, int], Observation], pairs: list[tuple[str, int]]) -> float:
    return sum(found[pair].tokens for pair in pairs) / math.fsum(found[pair].seconds for pair in pairs)
