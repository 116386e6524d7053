"""The concurrency above which speculation no longer pays, from a sweep over load."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from orchestrator.frozen import Frozen


class Crossover(Frozen):
    """Where the speedup falls to 1 for good."""

    where: Literal["inside", "above", "below"]
    """``inside`` the measured loads; ``above`` all of them (it pays at the largest); ``below`` (it pays at none)."""
    concurrency: float | None
    """Requests in flight; None where it lies outside what was measured."""
    lowest: int
    highest: int
    """The measured loads."""
    dips: bool
    """Whether the speedup was below 1 at some smaller load already."""

    @property
    def brief(self) -> str:
        """``5.3``, ``> 8`` or ``< 1``"""
        outside = {"above": f"> {self.highest}", "below": f"< {self.lowest}"}
        return f"{self.concurrency:.2g}" if self.concurrency is not None else outside[self.where]

    @property
    def text(self) -> str:
        """``about 5.3 requests at once``"""
        if self.where == "above":
            return f"above {self.highest}, the largest load measured"
        if self.where == "below":
            return f"below {self.lowest}, the smallest load measured"
        return f"about {self.concurrency:.2g} requests at once"


def crossover(speedups: Iterable[tuple[int, float]]) -> Crossover | None:
    """From (requests in flight, speedup) per load point; None with fewer than two of them.

    Between two loads the logarithm of the speedup is taken as linear in the logarithm of the load.
    """
    points = sorted(speedups)
    if len(points) < 2:
        return None
    (lowest, _), (highest, last) = points[0], points[-1]
    losing = [concurrency for concurrency, ratio in points if ratio < 1]
    if last >= 1:
        return Crossover(where="above", concurrency=None, lowest=lowest, highest=highest, dips=bool(losing))
    paying = [place for place, (_, ratio) in enumerate(points) if ratio >= 1]
    if not paying:
        return Crossover(where="below", concurrency=None, lowest=lowest, highest=highest, dips=False)
    (before, won), (after, lost) = points[paying[-1]], points[paying[-1] + 1]
    share = math.log(won) / (math.log(won) - math.log(lost))
    at = before * (after / before) ** share
    return Crossover(where="inside", concurrency=at, lowest=lowest, highest=highest, dips=min(losing) < at)
