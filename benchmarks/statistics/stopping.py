"""What looking at the intervals and stopping when they are narrow (stop.rule=ci_width) costs in coverage.

    python -m benchmarks.statistics.stopping [--experiments 1000] [--seed 1]

Three arms, rounds of two repeats from 2 to at most 8, the rule of `planning.stopping` after each. Coverage is that
of both speculative arms at the end, beside that of a plan that always measures 2 or 8 repeats; "repeats" is the mean at
the end; "hopeless" the share of runs that end because the prompts themselves differ by more than the width.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from benchmarks.statistics.simulate import World, experiment
from orchestrator.planning.plan import ROUND
from orchestrator.planning.stopping import decide
from orchestrator.stats import Observation, PairedRatio, between_starts, paired_ratio

MOST = 8
WORLDS = (
    World("prompts differ by 20%", rounds=MOST // ROUND),
    World("prompts alike to 5%, restarts 1%", spread=0.05, restart=0.01, rounds=MOST // ROUND),
    World("prompts alike to 5%, restarts 3%", spread=0.05, restart=0.03, rounds=MOST // ROUND),
    World("prompts alike to 5%, noise 10%", spread=0.05, noise=0.1, rounds=MOST // ROUND),
    World("busy machine: trials 10% apart", spread=0.1, trial=0.1, noise=0.1, rounds=MOST // ROUND),
)
WIDTHS = (0.15, 0.1, 0.05, 0.03)


class Ended(NamedTuple):
    covered: float
    repeats: float
    hopeless: float


def sequential(world: World, width: float, experiments: int, seed: int) -> Ended:
    """Runs that stop by the rule."""
    rng = np.random.default_rng(seed)
    hits, repeats, hopeless = [], [], []
    for _ in range(experiments):
        arms = experiment(world, rng)
        for count in range(ROUND, MOST + 1, ROUND):
            found = ratios(arms, count)
            decision = decide(found, count, width, MOST)
            if not decision.more:
                break
        hits += held(world, found)
        repeats.append(count)
        hopeless.append("cannot" in decision.text)
    return Ended(float(np.mean(hits)), float(np.mean(repeats)), float(np.mean(hopeless)))


def fixed(world: World, count: int, experiments: int, seed: int) -> float:
    """Coverage of runs of so many repeats, whatever they show."""
    rng = np.random.default_rng(seed)
    hits: list[bool] = []
    for _ in range(experiments):
        hits += held(world, ratios(experiment(world, rng), count))
    return float(np.mean(hits))


def ratios(arms: Mapping[str, list[Observation]], repeats: int) -> dict[str, PairedRatio]:
    """Speedups as they stand after so many repeats."""
    seen = {arm: [one for one in requests if one.repeat < repeats] for arm, requests in arms.items()}
    restarts = between_starts(seen)
    found = {arm: paired_ratio(requests, seen["plain"], restarts) for arm, requests in seen.items() if arm != "plain"}
    return {arm: ratio for arm, ratio in found.items() if ratio}


def held(world: World, found: Mapping[str, PairedRatio]) -> list[bool]:
    truth = dict(zip(world.arms, world.speedups, strict=True))
    return [one.low <= truth[arm] <= one.high for arm, one in found.items() if one.low and one.high]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"{options.experiments} experiments a line, seed {options.seed}")
    print("| | width | covered | repeats | hopeless | always 2 | always 8 |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for world in WORLDS:
        always = [f"{100 * fixed(world, count, options.experiments, options.seed):.1f}" for count in (ROUND, MOST)]
        for width in WIDTHS:
            ended = sequential(world, width, options.experiments, options.seed)
            cells = [f"±{100 * width:.0f}%", f"{100 * ended.covered:.1f}", f"{ended.repeats:.1f}"]
            cells += [f"{100 * ended.hopeless:.0f}%", *always]
            print(f"| {world.name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
