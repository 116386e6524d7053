"""What a machine that slows down during the run does to the speedup, by order of measurement; and when it is noticed.

    python -m benchmarks.statistics.drift [--experiments 1000] [--seed 1]

Bias: a machine whose log throughput falls linearly in time, without other noise, so that what is left is the order's
own; starts and trials follow `session_order` of the plan on a clock that a slower arm takes longer of. AABB is
order=once: every arm runs all of its repeats before the next one starts.
Alarms: how often the finding `drift` appears, per experiment of three arms.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Literal

import numpy as np

from benchmarks.statistics.simulate import World, experiment
from orchestrator.stats import drift_over_run, drifts, paired_ratio

DRIFTS = (0.02, 0.05, 0.1, 0.2)
ORDERS: tuple[tuple[str, Literal["abba", "once"], int], ...] = (
    ("ABBA, 2 repeats", "abba", 2),
    ("ABBA, 4 repeats", "abba", 4),
    ("ABBA, 3 repeats", "abba", 3),
    ("AABB, 2 repeats", "once", 2),
    ("AABB, 4 repeats", "once", 4),
)


def bias(order: Literal["abba", "once"], repeats: int, drift: float, seed: int = 1) -> list[float]:
    """Estimated over true speedup, minus 1, of each speculative arm."""
    world = World("", order=order, repeats=repeats, drift=drift, noise=0.0, restart=0.0, spread=0.0)
    arms = experiment(world, np.random.default_rng(seed))
    found = [paired_ratio(arms[arm], arms["plain"]) for arm in world.arms[1:]]
    return [one.ratio / truth - 1 for one, truth in zip(found, world.speedups[1:], strict=True) if one]


def alarms(world: World, experiments: int, seed: int) -> float:
    """Share of experiments in which at least one arm is said to drift."""
    rng = np.random.default_rng(seed)
    raised = 0
    for _ in range(experiments):
        raised += any(drifts(drift_over_run(requests)) for requests in experiment(world, rng).values())
    return raised / experiments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print("bias of the speedup of the second and the third of three arms, by drift over the whole run")
    print("| order | " + " | ".join(f"{100 * drift:.0f}%" for drift in DRIFTS) + " |")
    print("| --- |" + " ---: |" * len(DRIFTS))
    for name, order, repeats in ORDERS:
        cells = [", ".join(f"{100 * one:+.2f}%" for one in bias(order, repeats, drift)) for drift in DRIFTS]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print(f"\nexperiments with the finding `drift`, of {options.experiments}")
    print("| machine | " + " | ".join(f"drift {100 * drift:.0f}%" for drift in (0.0, *DRIFTS)) + " |")
    print("| --- |" + " ---: |" * (len(DRIFTS) + 1))
    for world in (
        World("GPU: noise 0.3%, restarts 0.3%", noise=0.003, restart=0.003),
        World("CPU: noise 3%, restarts 0.5%"),
        World("noise 3%, restarts 1%", restart=0.01),
        World("noise 10%, restarts 0.5%", noise=0.1),
    ):
        found = [alarms(replace(world, drift=drift), options.experiments, options.seed) for drift in (0.0, *DRIFTS)]
        print(f"| {world.name} | " + " | ".join(f"{100 * share:.1f}%" for share in found) + " |", flush=True)


if __name__ == "__main__":
    main()
