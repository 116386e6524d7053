"""Whether an arm got faster or slower while the run went on."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from orchestrator.stats.intervals import Estimate, mean_interval
from orchestrator.stats.observation import Observation, by_pair

THRESHOLD = 1.02
"""Drift that counts. On a machine at rest, with starts up to 1% apart, the whole interval lies beyond it in at most 5%
of runs (benchmarks/statistics). An interval that leaves 1 would not do as a rule: a restart is enough for that."""


def drift_over_run(observations: Sequence[Observation]) -> Estimate | None:
    """Throughput in the second half of an arm's repeats over that in the first half, paired by prompt.

    With an odd number of repeats the middle one is in neither half. The interval is over prompts, so a restart between
    the halves can move the figure too. None with one repeat, or where no prompt is in both halves.
    """
    rates: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for (prompt, repeat), observation in by_pair(observations).items():
        rates[prompt][repeat] = observation.log_rate
    repeats = sorted({repeat for found in rates.values() for repeat in found})
    half = len(repeats) // 2
    logs = []
    for found in rates.values():
        early = [found[repeat] for repeat in repeats[:half] if repeat in found]
        late = [found[repeat] for repeat in repeats[len(repeats) - half :] if repeat in found]
        if early and late:
            logs.append(math.fsum(late) / len(late) - math.fsum(early) / len(early))
    if not logs:
        return None
    mean, width = mean_interval(logs)
    return Estimate(
        value=math.exp(mean),
        low=None if width is None else math.exp(mean - width),
        high=None if width is None else math.exp(mean + width),
        n=len(logs),
    )


def drifts(found: Estimate | None) -> bool:
    """Whether the arm's speed has certainly changed by more than `THRESHOLD`: the whole interval lies beyond it."""
    if found is None or found.low is None or found.high is None:
        return False
    return found.low > THRESHOLD or found.high < 1 / THRESHOLD
