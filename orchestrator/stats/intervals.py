"""Intervals from values that are independent between prompts and related inside one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, combinations
from typing import NamedTuple

from scipy.special import stdtrit

from orchestrator.analysis.metrics import percentile
from orchestrator.frozen import Frozen

LEVEL = 0.95
POWER = 0.8


class Estimate(Frozen):
    """A figure with its interval, in the figure's own unit."""

    value: float
    low: float | None
    high: float | None
    """Ends of the 95% interval; None where there is nothing to estimate a spread from."""
    n: int
    """Prompts: the independent values behind the interval."""


class Term(NamedTuple):
    """One source of the variance of a mean."""

    variance: float
    df: float
    """Degrees of freedom of the estimate of ``variance``."""


def half_width(terms: Sequence[Term], level: float = LEVEL) -> float:
    """Half the width of the interval of a mean whose variance is a sum of terms that are known unequally well.

    The critical value is the mean of the terms' t quantiles, weighted by their variances (Cochran 1964, Biometrics 20,
    for the Behrens-Fisher problem): exact where one term rules, a little wide in between. Satterthwaite's degrees of
    freedom are too many where one term has only one or two of its own (benchmarks/statistics).
    A term added never narrows the interval, which the weighted mean alone would do where it brings the better known
    part of the variance: the result is the largest over all choices of the terms.
    """
    return _widest(terms, [0.5 + level / 2])


def detectable(terms: Sequence[Term], level: float = LEVEL, power: float = POWER) -> float:
    """Smallest true mean that a repetition of the experiment would tell from 0 with probability ``power``.

    Minimum detectable effect, (t(1 - alpha/2) + t(power)) standard errors (Bloom 1995, Evaluation Review 19).
    """
    return _widest(terms, [0.5 + level / 2, power])


def _widest(terms: Sequence[Term], probabilities: Sequence[float]) -> float:
    """Sum of the critical values at ``probabilities`` times the standard error, the largest over all sets of terms."""
    weighted = [
        (term.variance, term.variance * sum(float(stdtrit(term.df, probability)) for probability in probabilities))
        for term in terms
        if term.variance
    ]
    sets = chain.from_iterable(combinations(weighted, size + 1) for size in range(len(weighted)))
    return max((math.fsum(b for _, b in one) / math.sqrt(math.fsum(a for a, _ in one)) for one in sets), default=0.0)


def mean_term(values: Sequence[float]) -> Term | None:
    """Variance of the mean of independent values; None for a single one."""
    n = len(values)
    if n < 2:
        return None
    mean = math.fsum(values) / n
    return Term(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n, n - 1)


def mean_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float | None]:
    """Mean and half width of its Student t interval (n - 1 degrees of freedom); None as width for a single value."""
    term = mean_term(values)
    return math.fsum(values) / len(values), None if term is None else half_width([term], level)


def ratio_of_sums(
    prompts: Sequence[tuple[float, float]], offset: float = 0.0, extra: Sequence[Term] = ()
) -> Estimate | None:
    """offset + sum(numerators) / sum(denominators), one pair per prompt; None where the denominators sum to 0.

    The interval is taken on the logarithm, from the jackknife over prompts (leave one prompt out), with Student's t.
    ``extra``: further terms of the logarithm's variance, such as that of server starts. The figure must be above 0.
    """
    above, below = math.fsum(a for a, _ in prompts), math.fsum(b for _, b in prompts)
    if not below or offset + above / below <= 0:
        return None
    value, n = offset + above / below, len(prompts)
    left_out = [offset + (above - a) / (below - b) for a, b in prompts if below > b]
    if n < 2 or len(left_out) < n or min(left_out) <= 0:
        return Estimate(value=value, low=None, high=None, n=n)
    logs = [math.log(other) for other in left_out]
    mean = math.fsum(logs) / n
    own = Term(math.fsum((one - mean) ** 2 for one in logs) * (n - 1) / n, n - 1)
    half = half_width([own, *extra])
    return Estimate(value=value, low=value * math.exp(-half), high=value * math.exp(half), n=n)


FEWEST = 6
"""Prompts that an interval of a median takes: the least and the largest of n values miss it in 2 / 2**n of cases, which
is under 5% from six on."""
REPEAT_LEVEL = 0.9
"""Level of the interval of each repeat alone that a median's interval holds: at 0.95 it would be too wide on a machine
at rest (98 to 99% instead of 95 to 97), at 0.8 it holds too little of a busy one."""


def clustered_median(prompts: Sequence[Sequence[float]]) -> Estimate | None:
    """Median of all values, given by prompt, each prompt's in the order of the repeats; None where there is no value.

    Woodruff's interval (1952, JASA 47): that of the share of values below the median, clustered by prompt, read off as
    quantiles. Where whole repeats lie apart every prompt has half of its values below, and the shares say that all is
    known; so the interval also holds that of each repeat alone, at `REPEAT_LEVEL`: it is about repeats like those seen.
    There are no ends with fewer than `FEWEST` prompts, nor where they would meet though the values differ.
    """
    groups = [group for group in prompts if group]
    ordered = sorted(value for group in groups for value in group)
    if not ordered:
        return None
    middle, n = percentile(ordered, 50), len(groups)
    if n < FEWEST:
        return Estimate(value=middle, low=None, high=None, n=n)
    repeats = [[[group[at]] for group in groups if at < len(group)] for at in range(max(map(len, groups)))]
    ends = [_woodruff(groups, LEVEL), *(_woodruff(one, REPEAT_LEVEL) for one in repeats if len(one) >= FEWEST)]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    if low == high and ordered[0] < ordered[-1]:
        return Estimate(value=middle, low=None, high=None, n=n)
    return Estimate(value=middle, low=low, high=high, n=n)


def _woodruff(groups: Sequence[Sequence[float]], level: float) -> tuple[float, float]:
    """Ends of the interval of the median of all values of ``groups``, one of them per prompt, none empty."""
    ordered = sorted(value for group in groups for value in group)
    middle = percentile(ordered, 50)
    shares = [sum((value < middle) + (value == middle) / 2 for value in group) / len(group) for group in groups]
    half = min(0.5, mean_interval(shares, level)[1] or 0.0)
    return percentile(ordered, 100 * (0.5 - half)), percentile(ordered, 100 * (0.5 + half))
