"""Intervals of single figures, against scipy, numpy and arithmetic by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from orchestrator.stats import clustered_median, ratio_of_sums
from orchestrator.stats.intervals import Term, detectable, half_width, mean_term


def test_one_term_is_students_t() -> None:
    values = [0.3, 0.1, 0.4, 0.15, 0.9]
    term = mean_term(values)
    assert term is not None
    low, high = scipy_stats.t.interval(0.95, 4, np.mean(values), scipy_stats.sem(values))
    assert half_width([term]) == pytest.approx((high - low) / 2)
    assert mean_term([1.0]) is None


def test_two_terms_lie_between_their_own_t_and_are_exact_where_one_rules() -> None:
    prompts, starts = Term(4e-4, 15), Term(4e-4, 1.6)
    low, high = (scipy_stats.t.ppf(0.975, term.df) * math.sqrt(8e-4) for term in (prompts, starts))
    assert low < half_width([prompts, starts]) < high
    assert half_width([prompts, Term(0.0, 1.0)]) == pytest.approx(half_width([prompts]))
    assert half_width([Term(0.0, 15), starts]) == pytest.approx(half_width([starts]))
    # Cochran: quantiles weighted by variance
    quantiles = [scipy_stats.t.ppf(0.975, df) for df in (15, 1.6)]
    expected = (3e-4 * quantiles[0] + 1e-4 * quantiles[1]) / 4e-4 * math.sqrt(4e-4)
    assert half_width([Term(3e-4, 15), Term(1e-4, 1.6)]) == pytest.approx(expected)
    assert half_width([Term(0.0, 15)]) == 0.0


def test_a_term_of_variance_never_narrows_the_interval() -> None:
    alone = [Term(1.0, 1)]
    for variance in (0.01, 0.1, 1.0, 3.0, 30.0):
        for df in (1, 3, 15):
            two = [*alone, Term(variance, df)]
            assert half_width(two) >= half_width(alone)
            assert detectable(two) >= detectable(alone)
            assert half_width([*two, Term(0.5, 100)]) >= half_width(two)
    assert half_width([Term(1, 1), Term(1, 3)]) == pytest.approx(scipy_stats.t.ppf(0.975, 1))


def test_detectable_effect_is_the_critical_value_and_the_power_in_standard_errors() -> None:
    expected = (scipy_stats.t.ppf(0.975, 15) + scipy_stats.t.ppf(0.8, 15)) * 0.05
    assert detectable([Term(0.05**2, 15)]) == pytest.approx(expected)
    assert detectable([Term(0.05**2, 15), Term(0.01**2, 1.6)]) > expected


def test_a_ratio_of_sums_has_the_jackknife_interval_of_its_logarithm() -> None:
    prompts = [(10.0, 4.0), (30.0, 11.0), (5.0, 3.0), (22.0, 6.0)]
    found = ratio_of_sums(prompts)
    assert found is not None and found.low is not None and found.high is not None
    assert (found.value, found.n) == (pytest.approx(67 / 24), 4)
    logs = [math.log((67 - a) / (24 - b)) for a, b in prompts]
    half = scipy_stats.t.ppf(0.975, 3) * math.sqrt(3 / 4 * sum((one - np.mean(logs)) ** 2 for one in logs))
    assert (found.low, found.high) == (
        pytest.approx(67 / 24 * math.exp(-half)),
        pytest.approx(67 / 24 * math.exp(half)),
    )


def test_a_ratio_of_sums_with_offset_and_further_variance() -> None:
    same = [(6.0, 3.0)] * 5
    found = ratio_of_sums(same, offset=1.0)
    assert found is not None
    assert (found.value, found.low, found.high) == (pytest.approx(3.0),) * 3
    wider = ratio_of_sums(same, extra=[Term(0.01**2, 2)])
    assert wider is not None and wider.high is not None
    assert wider.high == pytest.approx(2 * math.exp(0.01 * scipy_stats.t.ppf(0.975, 2)))


def test_a_ratio_of_sums_without_what_it_needs_says_so() -> None:
    assert ratio_of_sums([]) is None
    assert ratio_of_sums([(0.0, 0.0)]) is None
    single = ratio_of_sums([(6.0, 3.0)])
    assert single is not None and (single.value, single.low, single.high, single.n) == (2.0, None, None, 1)
    lone = ratio_of_sums([(6.0, 3.0), (0.0, 0.0)])
    assert lone is not None and (lone.value, lone.low) == (2.0, None), "all of it comes from one prompt"


def test_the_median_is_of_all_values_and_its_ends_are_values_seen() -> None:
    rng = np.random.default_rng(0)
    groups = [list(rng.lognormal(0, 1, 2)) for _ in range(16)]
    found = clustered_median(groups)
    assert found is not None and found.low is not None and found.high is not None
    values = [value for group in groups for value in group]
    assert found.value == pytest.approx(np.median(values))
    assert min(values) <= found.low < found.value < found.high <= max(values)
    assert found.n == 16
    # The share of values below the median, +- t standard errors over prompts, read off as quantiles: of all at 95%, and
    # of each repeat alone at 90%; the farthest of them.
    lows, highs = [], []
    for own, level in ((groups, 0.975), *(([[group[at]] for group in groups], 0.95) for at in (0, 1))):
        pooled = [value for group in own for value in group]
        shares = [np.mean([value < np.median(pooled) for value in group]) for group in own]
        half = scipy_stats.t.ppf(level, 15) * scipy_stats.sem(shares)
        lows.append(np.quantile(pooled, 0.5 - half))
        highs.append(np.quantile(pooled, 0.5 + half))
    assert (found.low, found.high) == (pytest.approx(min(lows)), pytest.approx(max(highs)))


def test_repeats_that_lie_apart_as_a_whole_widen_the_interval_of_the_median() -> None:
    found = clustered_median([[0.100 + i * 0.001, 0.150 + i * 0.001] for i in range(16)])
    assert found is not None and found.low is not None and found.high is not None
    # every prompt has half of its values below: the medians of the repeats, 0.1075 and 0.1575, are inside
    assert found.low < 0.1075 < found.value < 0.1575 < found.high
    mixed = clustered_median([[0.1, 0.2], [0.2, 0.1]] * 8)
    assert mixed is not None and (mixed.low, mixed.high) == (0.1, 0.2)


def test_an_interval_of_no_width_comes_only_from_equal_values() -> None:
    equal = clustered_median([[1.0, 1.0]] * 8)
    assert equal is not None and (equal.low, equal.high) == (1.0, 1.0)
    differing = clustered_median([[1.0]] * 15 + [[2.0]])
    assert differing is not None and (differing.low, differing.high) == (None, None)


def test_repeats_of_a_prompt_do_not_narrow_the_interval_of_the_median() -> None:
    once = [[float(value)] for value in range(16)]
    eight_times = [group * 8 for group in once]
    first, second = clustered_median(once), clustered_median(eight_times)
    assert first is not None and second is not None
    assert first.low is not None and second.low is not None and first.high is not None and second.high is not None
    assert second.high - second.low >= first.high - first.low - 1


def test_few_prompts_have_a_median_without_interval() -> None:
    assert clustered_median([]) is None
    assert clustered_median([[], []]) is None
    for prompts in (1, 2, 3, 5):
        for repeats in (1, 2):
            found = clustered_median([[float(value), value + 0.7][:repeats] for value in range(prompts)])
            assert found is not None and (found.low, found.high, found.n) == (None, None, prompts)
    six = clustered_median([[float(value)] for value in range(6)])
    assert six is not None and (six.low, six.high) == (0.0, 5.0)  # sign test: 1 - 2 / 2**6 = 97%
