"""Drift over the run: found when it is there, not when it is not; and what the order of measurement makes of it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks.statistics import drift as simulated
from benchmarks.statistics.simulate import World
from orchestrator.stats import Estimate, Observation, drift_over_run, drifts


def requests(rates: dict[int, float], prompts: int = 4) -> list[Observation]:
    """``rates``: repeat -> tokens/s."""
    return [
        Observation("c", f"p{p}", repeat, 10 + p, (10 + p) / rate)
        for repeat, rate in rates.items()
        for p in range(prompts)
    ]


def test_it_is_the_second_half_over_the_first() -> None:
    found = drift_over_run(requests({0: 20.0, 1: 18.0}))
    assert found is not None
    assert (found.value, found.low, found.high, found.n) == (*[pytest.approx(0.9)] * 3, 4)
    four = drift_over_run(requests({0: 20.0, 1: 20.0, 2: 10.0, 3: 40.0}))
    assert four is not None and four.value == pytest.approx(1.0)  # geometric mean of the second half


def test_the_middle_of_an_odd_number_of_repeats_is_in_neither_half() -> None:
    found = drift_over_run(requests({0: 20.0, 1: 1.0, 2: 22.0}))
    assert found is not None and found.value == pytest.approx(1.1)


def test_what_has_no_second_half_has_no_drift() -> None:
    assert drift_over_run(requests({0: 20.0})) is None
    assert drift_over_run([]) is None
    apart = [Observation("c", "a", 0, 10, 1.0), Observation("c", "b", 1, 10, 1.0)]
    assert drift_over_run(apart) is None
    one = drift_over_run(requests({0: 20.0, 1: 10.0}, prompts=1))
    assert one is not None and one.low is None and not drifts(one)


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [(0.99, 1.05, False), (1.01, 1.05, False), (1.03, 1.05, True), (0.9, 0.97, True), (0.9, 0.985, False)],
)
def test_it_counts_where_the_whole_interval_lies_beyond_two_percent(low: float, high: float, found: bool) -> None:
    assert drifts(Estimate(value=math.sqrt(low * high), low=low, high=high, n=16)) is found


def test_alarms_are_rare_without_drift_and_sure_with_it() -> None:
    quiet = World("", noise=0.003, restart=0.003)
    assert simulated.alarms(quiet, 200, seed=3) <= 0.01
    assert simulated.alarms(World("", restart=0.01), 200, seed=3) <= 0.09  # 5% measured, 1.5 points of standard error
    assert simulated.alarms(replace(quiet, drift=0.05), 50, seed=3) >= 0.98


@pytest.mark.parametrize("drift", [0.02, 0.05, 0.1, 0.2])
def test_abba_keeps_the_bias_of_a_linear_drift_under_one_percent_and_aabb_does_not(drift: float) -> None:
    assert max(map(abs, simulated.bias("abba", 2, drift))) < 0.01
    assert max(map(abs, simulated.bias("abba", 4, drift))) < 0.01
    assert max(map(abs, simulated.bias("once", 2, drift))) > 0.01
