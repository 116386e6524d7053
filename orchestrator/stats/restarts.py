"""How much one start of a server differs from the next: the part of a result that more prompts do not average out.

A start is shared by all its requests (memory layout, clocks, the neighbours on the machine at that time), so an
interval over prompts does not contain it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from orchestrator.frozen import Frozen
from orchestrator.stats.intervals import Term
from orchestrator.stats.observation import Observation, by_pair


class Restarts(Frozen):
    """Spread of throughput between starts of the same server, one figure for all arms of a comparison."""

    sd: float
    """Standard deviation of log throughput between starts: 0.01 is 1%. 0 where what is seen is no more than the noise
    of requests explains."""
    df: float
    """Degrees of freedom of ``sd`` squared; with two repeats it is one or two, so the figure is rough."""
    starts: int
    """Server starts that it was estimated from."""

    def term(self, weights: Iterable[float]) -> Term:
        """Variance that the starts bring to a mean log ratio, each with its ``weight`` in it."""
        return Term(self.sd**2 * math.fsum(weight**2 for weight in weights), self.df)


def between_starts(arms: Mapping[str, Sequence[Observation]]) -> Restarts | None:
    """Restart-to-restart spread from the requests of all arms under one load; None where it cannot be estimated.

    ``arms``: arm -> its requests, in the order they were run.

    The classical error term of a comparison in blocks: a repeat is a block, and once the means of arms and of repeats
    are taken out of the trials' mean log throughput, what is left (the interaction of arm and repeat) is the starts and
    the noise of the requests, whose share is known from the prompts and subtracted. A machine that is slower during a
    whole repeat costs nothing; one that drifts inside a repeat counts as spread between starts, which makes the
    intervals wide, never narrow. Estimated by the method of moments, so that an arm with one start for two repeats
    (A B B A) counts for what it tells.

    There is nothing to estimate from with one repeat, one arm, or a single start per arm (order: once).
    """
    found = {arm: by_pair(observations) for arm, observations in arms.items() if observations}
    cells = sorted({(arm, repeat) for arm, pairs in found.items() for _, repeat in pairs})
    if not cells:
        return None
    prompts = set.intersection(*({p for p, repeat in found[arm] if repeat == wanted} for arm, wanted in cells))
    starts = [_start(found[arm], prompts, repeat) for arm, repeat in cells]
    if len(prompts) < 2 or None in starts:
        return None
    logs = np.array([[found[arm][prompt, repeat].log_rate for prompt in sorted(prompts)] for arm, repeat in cells])
    own = _indicator([arm for arm, _ in cells])
    residual = _residual(np.hstack([own, _indicator([repeat for _, repeat in cells])]))
    shared = _indicator([(arm, start) for (arm, _), start in zip(cells, starts, strict=True)])
    spread = residual @ shared @ shared.T @ residual
    weight = float(np.trace(spread))
    if weight < 1e-9:
        return None
    # Noise of a trial's mean: what is left of the requests after their trial and their prompt on that arm.
    left = _residual(own) @ (logs - logs.mean(axis=1, keepdims=True))
    # In bursts requests that follow each other are alike, which their mean feels as it does a start: of the spread of
    # requests only what one differs by from the next averages out (von Neumann 1941, Annals of Mathematical Statistics
    # 12), so no more than that is subtracted.
    steps = [np.diff(row[_ran(found[arm], prompts, repeat)]) for row, (arm, repeat) in zip(left, cells, strict=True)]
    squares = min(float((left**2).sum()), float(np.square(steps).sum()) / 2)
    noise = squares / (len(cells) - own.shape[1]) / (len(prompts) - 1) / len(prompts)
    means = residual @ logs.mean(axis=1)
    variance = (float(means @ means) - noise * float(np.trace(residual))) / weight
    return Restarts(
        sd=math.sqrt(max(0.0, variance)),
        df=weight**2 / float((spread**2).sum()),
        starts=shared.shape[1],
    )


def _start(pairs: Mapping[tuple[str, int], Observation], prompts: set[str], repeat: int) -> int | str | None:
    """The start that served a trial; None where it was several."""
    starts = {pairs[prompt, repeat].start for prompt in prompts}
    return starts.pop() if len(starts) == 1 else None


def _ran(pairs: Mapping[tuple[str, int], Observation], prompts: set[str], repeat: int) -> list[int]:
    """Places of a trial's prompts in their sorted order, in the order they were run."""
    place = {prompt: at for at, prompt in enumerate(sorted(prompts))}
    return [place[prompt] for prompt, number in pairs if number == repeat and prompt in place]


def _indicator(labels: Sequence[object]) -> np.ndarray:
    """[labels, distinct labels]: 1 where a row has the column's label."""
    columns = list(dict.fromkeys(labels))
    return np.array([[float(label == column) for column in columns] for label in labels])


def _residual(design: np.ndarray) -> np.ndarray:
    """[n, n]: the projection that takes what ``design`` [n, k] explains out of n values."""
    return np.eye(len(design)) - design @ np.linalg.pinv(design)
