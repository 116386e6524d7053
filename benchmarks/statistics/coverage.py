"""How often a 95% interval of the speedup holds the truth, by estimator and by what the machine and the suite do.

    python -m benchmarks.statistics.coverage [--experiments 1000] [--seed 1]

Estimators over prompts only, on the mean log ratio of each prompt: Student's t, bootstrap-t (999 resamples), percentile
and BCa bootstrap (`scipy.stats.bootstrap`, 999 resamples). Shipped: `orchestrator.stats.paired_ratio` with
`between_starts`, for an arm that was started twice and for the last arm of an ABBA plan, whose repeats share a start.
Satterthwaite: the same two variances with one t quantile. All but "shipped" are those of the last arm. "width" is the
median of high / low - 1, halved.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from scipy.special import stdtrit
from scipy.stats import bootstrap

from benchmarks.statistics.simulate import World, experiment
from orchestrator.stats import Observation, PairedRatio, Restarts, between_starts, mean_interval, paired_ratio

Ends = tuple[float, float]
RESAMPLES = 999

REALISTIC = (
    World("prompts differ, normal"),
    World("prompts differ, skewed", shape="skewed"),
    World("prompts differ, skewed left", shape="skewed left"),
    World("prompts differ, heavy tails", shape="heavy"),
    World("skewed and heavy tails", shape="skewed and heavy"),
    World("quiet GPU: noise 0.3%", noise=0.003, restart=0.003, shape="skewed"),
    World("restarts 1%", restart=0.01),
    World("restarts 3%", restart=0.03),
    World("prompts nearly alike, noise 5%", spread=0.03, noise=0.05),
    World("prompts alike to 4%, restarts 1%", spread=0.04, restart=0.01),
    World("prompts alike to 2%, restarts 1%, GPU", spread=0.02, noise=0.003, restart=0.01),
    World("2% of requests stall", stalls=0.02),
    World("drift 3%", drift=0.03),
    World("busy machine: trials 10% apart", trial=0.1, noise=0.1),
    World("all: skewed, 1% restarts, stalls, drift 3%", shape="skewed", restart=0.01, stalls=0.02, drift=0.03),
    World("busy machine: bursts of 20%", burst=0.2),
)
TWO_ARMS = tuple(
    replace(world, name=f"two arms: {world.name}", speedups=(1.0, 2.0))
    for world in (REALISTIC[0], REALISTIC[4], REALISTIC[6], REALISTIC[10], REALISTIC[11], *REALISTIC[14:])
)
BEYOND = (
    World("a few prompts apart from all others", shape="outliers"),
    World("drift 10%", drift=0.1),
    World("drift 10%, prompts alike to 5%", spread=0.05, drift=0.1),
    World("order once, restarts 1%, alike to 4%", order="once", spread=0.04, restart=0.01),
    World("4 prompts", prompts=4),
    World("4 repeats, restarts 3%", repeats=4, restart=0.03),
)


def estimators(arms: dict[str, list[Observation]], rng: np.random.Generator) -> Iterator[tuple[str, str, Ends]]:
    """(estimator, arm, ends of its interval of the mean log ratio)."""
    restarts = between_starts(arms)
    *others, last = list(arms)
    for arm in (others[-1], last) if len(others) > 1 else (last,):
        found = paired_ratio(arms[arm], arms["plain"], restarts)
        assert found is not None and found.low is not None and found.high is not None
        name = "shipped" if arm != last else "shipped, one start"
        yield name, arm, (math.log(found.low), math.log(found.high))
        if arm == last:
            yield "Satterthwaite", arm, satterthwaite(found, restarts)
    values = prompt_means(arms[last], arms["plain"])
    mean, half = mean_interval(list(values))
    assert half is not None
    yield "t", last, (mean - half, mean + half)
    yield "bootstrap-t", last, bootstrap_t(values, rng)
    for name, method in (("percentile", "percentile"), ("BCa", "BCa")):
        ends = bootstrap((values,), np.mean, method=method, n_resamples=RESAMPLES, rng=rng).confidence_interval
        yield name, last, (float(ends.low), float(ends.high))


def satterthwaite(found: PairedRatio, restarts: Restarts | None) -> Ends:
    """The shipped variances with one t quantile, at the degrees of freedom of their sum (Satterthwaite 1946)."""
    prompts, starts = (found.prompts_se or 0.0) ** 2, (found.restarts_se or 0.0) ** 2
    mean, total = math.log(found.ratio), prompts + starts
    df = total**2 / (prompts**2 / (found.n_prompts - 1) + (starts**2 / restarts.df if restarts else 0.0))
    half = float(stdtrit(df, 0.975)) * math.sqrt(total)
    return mean - half, mean + half


def prompt_means(arm: Iterable[Observation], plain: Iterable[Observation]) -> np.ndarray:
    """[prompts]: mean over repeats of the log ratio."""
    base = {(one.prompt, one.repeat): one.log_rate for one in plain}
    logs: defaultdict[str, list[float]] = defaultdict(list)
    for one in arm:
        logs[one.prompt].append(one.log_rate - base[one.prompt, one.repeat])
    return np.array([np.mean(values) for values in logs.values()])


def bootstrap_t(values: np.ndarray, rng: np.random.Generator) -> Ends:
    """Efron's interval: quantiles of the resamples' t statistics in place of Student's."""
    n = len(values)
    drawn = values[rng.integers(0, n, (RESAMPLES, n))]
    spread = drawn.std(axis=1, ddof=1)
    drawn, spread = drawn[spread > 0], spread[spread > 0]
    low, high = np.quantile((drawn.mean(axis=1) - values.mean()) / spread * math.sqrt(n), [0.025, 0.975])
    error = values.std(ddof=1) / math.sqrt(n)
    return float(values.mean() - high * error), float(values.mean() - low * error)


def coverage(world: World, experiments: int, seed: int) -> dict[str, tuple[float, float]]:
    """Estimator -> (share of intervals that hold the truth, median half width as a share of the ratio)."""
    rng = np.random.default_rng(seed)
    truth = dict(zip(world.arms, map(math.log, world.speedups), strict=True))
    hits: defaultdict[str, list[bool]] = defaultdict(list)
    widths: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(experiments):
        for name, arm, (low, high) in estimators(experiment(world, rng), rng):
            hits[name].append(low <= truth[arm] <= high)
            widths[name].append(math.expm1(min(high - low, 100.0)) / 2)  # bootstrap-t knows no bounds
    return {name: (float(np.mean(hits[name])), float(np.median(widths[name]))) for name in hits}


COLUMNS = ("t", "bootstrap-t", "percentile", "BCa", "Satterthwaite", "shipped", "shipped, one start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"{options.experiments} experiments a line, seed {options.seed}; 16 prompts x 2, ABBA, three arms")
    print("| | " + " | ".join(COLUMNS) + " | width of t | of shipped, one start |")
    print("| --- |" + " ---: |" * (len(COLUMNS) + 2))
    for title, worlds in (("realistic", REALISTIC), ("two arms (A B A)", TWO_ARMS), ("beyond", BEYOND)):
        print(f"| **{title}** |" + " |" * (len(COLUMNS) + 2))
        for world in worlds:
            found = coverage(world, options.experiments, options.seed)
            cells = [f"{100 * found[name][0]:.1f}" if name in found else "" for name in COLUMNS]
            cells += [f"{100 * found[name][1]:.1f}%" for name in ("t", "shipped, one start")]
            print(f"| {world.name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
