"""The shipped interval holds a known truth about as often as it says; benchmarks/statistics has the whole table."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.statistics.coverage import bootstrap_t, prompt_means
from benchmarks.statistics.figures import figures, tau
from benchmarks.statistics.simulate import SHAPES, World, experiment
from orchestrator.stats import between_starts, paired_ratio

EXPERIMENTS = 400
SLACK = 0.025
"""2.3 standard errors of a share of 0.95 in 400."""


def covered(world: World, with_starts: bool = True) -> float:
    """Share of intervals of all speculative arms that hold the truth."""
    rng = np.random.default_rng(11)
    hits = []
    for _ in range(EXPERIMENTS):
        arms = experiment(world, rng)
        restarts = between_starts(arms) if with_starts else None
        for arm, truth in list(zip(world.arms, world.speedups, strict=True))[1:]:
            found = paired_ratio(arms[arm], arms["plain"], restarts)
            assert found is not None and found.low is not None and found.high is not None
            hits.append(found.low <= truth <= found.high)
    return float(np.mean(hits))


@pytest.mark.parametrize(
    "world",
    [
        World("skewed", shape="skewed"),
        World("quiet GPU", noise=0.003, restart=0.003),
        World("restarts rule", spread=0.02, noise=0.003, restart=0.01),
        World("stalls and drift", restart=0.01, stalls=0.02, drift=0.03),
        World("bursts", burst=0.2),
        World("two arms", speedups=(1.0, 2.0), restart=0.01),
    ],
    ids=lambda world: world.name,
)
def test_the_shipped_interval_covers(world: World) -> None:
    assert 0.93 - SLACK <= covered(world) <= 0.97 + SLACK


def test_an_interval_over_prompts_alone_misses_what_starts_change() -> None:
    world = World("restarts rule", spread=0.02, noise=0.003, restart=0.01)
    assert covered(world, with_starts=False) < 0.75


def test_intervals_of_the_other_figures_cover() -> None:
    rate, median = figures(World("", restart=0.01), EXPERIMENTS, seed=2)
    assert 0.93 - SLACK <= rate <= 0.98
    assert 0.93 - SLACK <= median <= 0.98
    assert 0.92 - SLACK <= tau(EXPERIMENTS, seed=2) <= 0.97


def test_made_up_prompts_have_mean_zero_and_variance_one() -> None:
    rng = np.random.default_rng(0)
    for draw in SHAPES.values():
        values = draw(rng, 400_000)
        assert abs(values.mean()) < 0.01
        assert values.var() == pytest.approx(1.0, rel=0.1)


def test_the_bootstrap_t_of_the_table_is_wider_than_its_values_are_apart_by_chance() -> None:
    rng = np.random.default_rng(0)
    arms = experiment(World(""), rng)
    values = prompt_means(arms["drafter2"], arms["plain"])
    assert values.shape == (16,)
    low, high = bootstrap_t(values, rng)
    assert low < values.mean() < high
    assert (high - low) / 2 == pytest.approx(2.1 * values.std(ddof=1) / 4, rel=0.25)
