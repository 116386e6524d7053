"""The spread between server starts: what is found, and what it adds to an interval."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.statistics.simulate import World, experiment
from orchestrator.planning.plan import session_order
from orchestrator.stats import Observation, Restarts, between_starts, paired_ratio

PROMPTS = 4


def arms(
    names: str, repeats: int, shifts: dict[tuple[str, int], float], order: str = "abba"
) -> dict[str, list[Observation]]:
    """Requests without noise; ``shifts``: (arm, repeat) -> log throughput added."""
    found: dict[str, list[Observation]] = {name: [] for name in names}
    for start, (name, served) in enumerate(session_order(list(names), repeats, order)):
        for repeat in served:
            seconds = math.exp(-shifts.get((name, repeat), 0.0))
            found[name] += [Observation("c", f"p{p}", repeat, 10 * (p + 1), seconds, start) for p in range(PROMPTS)]
    return found


def test_two_arms_twice_tell_it_from_one_contrast() -> None:
    found = between_starts(arms("AB", 2, {("A", 1): 0.04}))  # A B B A: B has one start
    assert found is not None
    # (A0 - A1) - (B0 - B1) = 0.04 is the difference of two starts of A: variance 2 sd^2, one degree of freedom.
    assert found.sd == pytest.approx(0.04 / math.sqrt(2))
    assert (found.df, found.starts) == (pytest.approx(1.0), 3)


def test_a_machine_that_is_slower_during_a_whole_repeat_is_no_spread_between_starts() -> None:
    slower = {(arm, 1): -0.3 for arm in "ABC"}
    found = between_starts(arms("ABC", 2, slower))
    assert found is not None
    assert found.sd == pytest.approx(0.0, abs=1e-9)
    assert found.starts == 5


@pytest.mark.parametrize(
    ("names", "repeats", "order"), [("AB", 1, "abba"), ("A", 4, "abba"), ("ABC", 3, "once"), ("AB", 0, "abba")]
)
def test_it_says_when_there_is_nothing_to_estimate_it_from(names: str, repeats: int, order: str) -> None:
    assert between_starts(arms(names, repeats, {}, order)) is None


def test_prompts_that_are_not_in_every_trial_are_left_out() -> None:
    whole = arms("AB", 2, {("A", 1): 0.04})
    cut = {"A": whole["A"], "B": [one for one in whole["B"] if (one.prompt, one.repeat) != ("p0", 1)]}
    assert between_starts(cut) == between_starts(
        {name: [one for one in requests if one.prompt != "p0"] for name, requests in whole.items()}
    )
    assert between_starts({"A": whole["A"], "B": [one for one in whole["B"] if one.prompt == "p0"]}) is None


def test_a_trial_that_two_starts_served_is_not_used() -> None:
    mixed = arms("AB", 2, {})
    mixed["A"][0] = mixed["A"][0]._replace(start="another")
    assert between_starts(mixed) is None


@pytest.mark.parametrize("speedups", [(1.0, 2.0), (1.0, 2.0, 2.3)])
def test_it_finds_the_spread_that_was_put_in_beside_the_noise_of_requests(speedups: tuple[float, ...]) -> None:
    world = World("", speedups=speedups, restart=0.03, noise=0.02, stalls=0.0)
    rng = np.random.default_rng(5)
    found = [between_starts(experiment(world, rng)) for _ in range(400)]
    assert np.mean([one.sd**2 for one in found if one]) == pytest.approx(0.03**2, rel=0.2)
    still = [between_starts(experiment(replace(world, restart=0.0), rng)) for _ in range(400)]
    assert np.mean([one.sd**2 for one in still if one]) < 0.01**2


def test_bursts_are_seldom_taken_for_noise_that_averages_out() -> None:
    world = World("", speedups=(1.0, 2.0), burst=0.2)
    rng = np.random.default_rng(3)
    found = [between_starts(experiment(world, rng)) for _ in range(200)]
    assert (
        np.mean([one is not None and one.sd == 0 for one in found]) < 0.18
    )  # 12%; 25% with noise taken as independent


def test_it_goes_by_the_order_in_which_requests_were_run() -> None:
    def run(order: str) -> Restarts:
        given = arms("AB", 2, {("A", 1): 0.5})
        for name, own in given.items():  # prompt p is slower by p * 20% in the second repeat of either arm
            slower = [o._replace(seconds=o.seconds * math.exp(0.2 * o.repeat * int(o.prompt[1]))) for o in own]
            given[name] = sorted(slower, key=lambda one: (one.repeat, order.index(one.prompt[1])))
        found = between_starts(given)
        assert found is not None
        return found

    # a machine that slows down from request to request shows in the trial's mean; one that jumps about averages out
    assert run("0123").sd > run("1302").sd > 0
    assert run("3210").sd == pytest.approx(run("0123").sd)


def test_the_interval_of_an_arm_with_one_start_is_wider_than_of_one_with_two() -> None:
    spread = Restarts(sd=0.02, df=2, starts=5)
    given = arms("ABC", 2, {})
    for name in "BC":  # prompts differ
        given[name] = [one._replace(seconds=one.seconds * (1 + 0.1 * int(one.prompt[1]))) for one in given[name]]
    two, one = (paired_ratio(given[name], given["A"], spread) for name in "BC")
    alone = paired_ratio(given["B"], given["A"])
    assert two is not None and one is not None and alone is not None
    assert two.restarts_se == pytest.approx(0.02 * math.sqrt(1 / 2 + 1 / 2))
    assert one.restarts_se == pytest.approx(0.02 * math.sqrt(1 + 1 / 2))
    assert (alone.restarts_se, alone.over_starts, one.over_starts) == (None, False, True)
    widths = [found.high / found.low for found in (alone, two, one) if found.low and found.high]
    assert widths == sorted(widths) and len(set(widths)) == 3
    assert alone.detectable is not None and one.detectable is not None
    assert one.detectable > alone.detectable > 1
