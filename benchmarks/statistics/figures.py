"""How often the 95% intervals of the other headline figures hold the truth, and whether what a run calls detectable is.

    python -m benchmarks.statistics.figures [--experiments 1000] [--seed 1]

tok/s and the median are those of the last of three arms; the truth is that of 400,000 prompts on a machine without
noise. tau: every prompt has its own chance that one of 7 drafts is right, and about 20 verification steps. Detectable:
the speedup is set to what runs without any call detectable (their median), and the intervals that then exclude 1 are
counted.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from dataclasses import replace

import numpy as np

from benchmarks.statistics.simulate import World, experiment, suite
from orchestrator.stats import between_starts, clustered_median, paired_ratio, ratio_of_sums, start_weights

PROMPTS = 400_000
WORLDS = (
    World("normal"),
    World("skewed", shape="skewed"),
    World("skewed and heavy tails", shape="skewed and heavy"),
    World("restarts 3%", restart=0.03),
    World("2% of requests stall", stalls=0.02),
    World("prompts alike to 4%, restarts 1%", spread=0.04, restart=0.01),
)
DRAFTS = 7


def figures(world: World, experiments: int, seed: int) -> tuple[float, float]:
    """Share of intervals that hold the truth: of tok/s, and of the median time per token."""
    rng = np.random.default_rng(seed)
    last = world.arms[-1]
    tokens, rates = suite(replace(world, prompts=PROMPTS), rng)
    rate = tokens.sum() / (tokens / np.exp(rates[last])).sum()
    middle = float(np.median(np.exp(-rates[last])))
    hits = []
    for _ in range(experiments):
        arms = experiment(world, rng)
        requests, restarts = arms[last], between_starts(arms)
        by_prompt = defaultdict(list)
        for one in requests:
            by_prompt[one.prompt].append(one)
        sums = [(sum(one.tokens for one in own), sum(one.seconds for one in own)) for own in by_prompt.values()]
        found = ratio_of_sums(sums, extra=[restarts.term(start_weights(requests))] if restarts else [])
        median = clustered_median([[math.exp(-one.log_rate) for one in own] for own in by_prompt.values()])
        assert found and found.low and found.high and median and median.low and median.high
        hits.append((found.low <= rate <= found.high, median.low <= middle <= median.high))
    shares = np.mean(hits, axis=0)
    return float(shares[0]), float(shares[1])


def tau(experiments: int, seed: int, prompts: int = 16) -> float:
    """Share of intervals of the pooled tau, clustered by prompt, that hold the truth."""
    rng = np.random.default_rng(seed)

    def draw(count: int) -> list[tuple[float, float]]:
        chances = np.minimum(0.97, rng.beta(6, 3, count))
        steps = np.maximum(3, rng.lognormal(math.log(20), 0.6, count)).astype(int)
        # Steps all see the prompt's chance; correct drafts of a step are geometric, cut at the block.
        return [
            (float(np.minimum(DRAFTS, rng.geometric(1 - chance, number) - 1).sum()), float(number))
            for chance, number in zip(chances, steps, strict=True)
        ]

    many = draw(PROMPTS // 4)
    truth = 1 + sum(correct for correct, _ in many) / sum(steps for _, steps in many)
    found = [ratio_of_sums(draw(prompts), offset=1.0) for _ in range(experiments)]
    return float(np.mean([one.low <= truth <= one.high for one in found if one and one.low and one.high]))


def power(world: World, experiments: int, seed: int) -> tuple[float, float]:
    """(median detectable speedup of runs without one, share of runs with that speedup whose interval excludes 1)."""
    rng = np.random.default_rng(seed)

    def run(speedup: float) -> list[tuple[float, bool]]:
        found = []
        for _ in range(experiments):
            arms = experiment(replace(world, speedups=(1.0, *[speedup] * (len(world.speedups) - 1))), rng)
            ratio = paired_ratio(arms[world.arms[-1]], arms["plain"], between_starts(arms))
            assert ratio and ratio.low and ratio.high and ratio.detectable
            found.append((ratio.detectable, not ratio.low <= 1 <= ratio.high))
        return found

    detectable = float(np.median([one for one, _ in run(1.0)]))
    return detectable, float(np.mean([seen for _, seen in run(detectable)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print("| | tok/s | median time per token | detectable speedup | seen at that speedup |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for world in WORLDS:
        rate, middle = figures(world, options.experiments, options.seed)
        detectable, seen = power(world, options.experiments, options.seed)
        print(
            f"| {world.name} | {100 * rate:.1f} | {100 * middle:.1f} | {detectable:.3f} | {100 * seen:.1f} |",
            flush=True,
        )
    print(f"\ntau: {100 * tau(options.experiments, options.seed):.1f}")


if __name__ == "__main__":
    main()
