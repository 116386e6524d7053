"""One request as the statistics see it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple


class Observation(NamedTuple):
    """Output of one request and the time it took."""

    comparison: str
    """Key of the comparison that measured it; requests of two comparisons are never paired."""
    prompt: str
    repeat: int
    tokens: int
    """Output tokens produced in ``seconds``."""
    seconds: float
    start: int | str = 0
    """Which start of the arm's server served it."""

    @property
    def log_rate(self) -> float:
        return math.log(self.tokens / self.seconds)


def by_pair(observations: Iterable[Observation]) -> dict[tuple[str, int], Observation]:
    """(prompt, repeat) -> request; those without tokens or time are left out.

    Raises ValueError for a key that occurs twice: it cannot be paired.
    """
    found: dict[tuple[str, int], Observation] = {}
    for observation in observations:
        key = (observation.prompt, observation.repeat)
        if key in found:
            raise ValueError(f"prompt {key[0]!r}, repeat {key[1]} occurs twice in one arm: it cannot be paired")
        if observation.tokens > 0 and observation.seconds > 0:
            found[key] = observation
    return found
