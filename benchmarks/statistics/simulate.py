"""Made-up experiments with a known truth: requests of every arm in the order of the plan, on a machine that misbehaves.

Nothing here is measured. The magnitudes follow runs of this project on two shared CPU cores: speedups spread by 0.1 to
0.25 between 16 prompts (standard deviation of the log), requests repeat to 2 or 3% when the machine is quiet, and whole
trials lie 10% and more apart when it is busy. A GPU is taken to be ten times steadier.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Literal

import numpy as np

from orchestrator.planning.plan import session_order
from orchestrator.stats import Observation

CARRIED = 0.9
"""Correlation of bursts from one request to the next (autoregressive, first order)."""

Draws = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class World:
    """A suite and a machine. Spreads are standard deviations of log throughput."""

    name: str
    speedups: tuple[float, ...] = (1.0, 2.0, 2.3)
    """The truth: geometric mean over all prompts there could be, by arm; the first is the plain arm."""
    prompts: int = 16
    repeats: int = 2
    rounds: int = 1
    """So many times the repeats, as `orchestrator.planning.plan.extended` appends them."""
    order: Literal["abba", "once"] = "abba"
    spread: float = 0.2
    """Of the log speedup between prompts."""
    shape: str = "normal"
    """Its distribution, a key of ``SHAPES``."""
    noise: float = 0.03
    """Of a request."""
    restart: float = 0.005
    """Of a server start, shared by all its requests."""
    trial: float = 0.0
    """Of a trial: what else ran on the machine in those minutes."""
    stalls: float = 0.0
    """Share of requests that take 1.5 to 4 times as long."""
    burst: float = 0.0
    """Of what else ran on the machine for a few seconds: each request's share of it is related to that of the one
    before by `CARRIED`, over trials and starts."""
    drift: float = 0.0
    """By how much log throughput falls in the time that the run would take without it."""

    @property
    def arms(self) -> list[str]:
        return ["plain", *(f"drafter{index}" for index in range(1, len(self.speedups)))]


def _lognormal(sigma: float, rng: np.random.Generator, count: int) -> np.ndarray:
    omega = math.exp(sigma**2)
    return (np.exp(rng.normal(0, sigma, count)) - math.sqrt(omega)) / math.sqrt(omega * (omega - 1))


SHAPES: dict[str, Draws] = {
    # Mean 0 and variance 1 each.
    "normal": lambda rng, count: rng.standard_normal(count),
    "skewed": lambda rng, count: (rng.gamma(2, 1, count) - 2) / math.sqrt(2),  # skewness 1.4
    "skewed left": lambda rng, count: (2 - rng.gamma(2, 1, count)) / math.sqrt(2),
    "heavy": lambda rng, count: rng.standard_t(5, count) / math.sqrt(5 / 3),  # kurtosis 9
    "skewed and heavy": partial(_lognormal, 0.5),  # skewness 1.75, kurtosis 9
    "outliers": partial(_lognormal, 0.8),  # skewness 3.7, kurtosis 34: a few prompts apart from all others
}


def experiment(world: World, rng: np.random.Generator) -> dict[str, list[Observation]]:
    """One comparison: arm -> its requests."""
    tokens, rates = suite(world, rng)
    whole = world.rounds * world.repeats * sum(float((tokens / np.exp(rate)).sum()) for rate in rates.values())
    requests: dict[str, list[Observation]] = {arm: [] for arm in world.arms}
    clock = 0.0
    burst = rng.normal(0, world.burst) if world.burst else 0.0
    rounds = [
        session_order(world.arms, world.repeats, world.order, first=number * world.repeats)
        for number in range(world.rounds)
    ]
    for start, (arm, repeats) in enumerate(chain.from_iterable(rounds)):
        shift = rng.normal(0, world.restart)
        for repeat in repeats:
            logs = rates[arm] + shift + rng.normal(0, world.trial) + rng.normal(0, world.noise, world.prompts)
            stalled = rng.random(world.prompts) < world.stalls
            logs = logs - stalled * np.log(rng.uniform(1.5, 4, world.prompts))
            for prompt in range(world.prompts):
                if world.burst:
                    burst = CARRIED * burst + rng.normal(0, world.burst * math.sqrt(1 - CARRIED**2))
                    logs[prompt] -= burst
                seconds = float(tokens[prompt] * np.exp(world.drift * clock / whole - logs[prompt]))
                clock += seconds
                requests[arm].append(Observation("", f"p{prompt}", repeat, int(tokens[prompt]), seconds, start))
    return requests


def suite(world: World, rng: np.random.Generator) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(output tokens [prompts], the same in every arm; arm -> log tokens/s [prompts] on a machine without noise)."""
    tokens = np.maximum(8, rng.lognormal(math.log(60), 0.5, world.prompts)).astype(int)
    plain = math.log(30) + rng.normal(0, 0.1, world.prompts)
    draw = SHAPES[world.shape]
    rates = {
        arm: plain + (math.log(speedup) + world.spread * draw(rng, world.prompts) if index else 0.0)
        for index, (arm, speedup) in enumerate(zip(world.arms, world.speedups, strict=True))
    }
    return tokens, rates
