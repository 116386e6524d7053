"""``stop.rule=ci_width``: whether another round of repeats is wanted. Pure.

Looking at an interval and going on while it is wide stops more often where the spread happens to look small;
benchmarks/statistics says how much that costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from orchestrator.planning.plan import ROUND
from orchestrator.stats import PairedRatio


class Decision(NamedTuple):
    more: bool
    """Whether to add a round."""
    text: str
    """Why, or why not, for a person."""


def decide(speedups: Mapping[str, PairedRatio], repeats: int, width: float, max_repeats: int) -> Decision:
    """``speedups``: of every speculative arm, after so many ``repeats``; ``width``: the longer arm of an interval that
    is narrow enough, as a share of the ratio."""
    wide = {arm: found for arm, found in speedups.items() if found.half is None or found.half > width}
    if not wide:
        return Decision(False, f"Every speedup is known to ±{width:.1%} after {repeats} repeats.")
    told = ", ".join(f"{arm} {_share(found.half)}" for arm, found in wide.items())
    hopeless = [arm for arm, found in wide.items() if found.half is None or (found.narrowest or 0.0) > width]
    if hopeless:
        return Decision(
            False,
            f"More repeats cannot bring {_what(hopeless)} to ±{width:.1%} ({told}): the prompts themselves differ by "
            f"more. {_prompts(wide, width)}",
        )
    if repeats + ROUND > max_repeats:
        return Decision(False, f"Wider than ±{width:.1%} after {repeats} repeats, the most that are allowed: {told}.")
    return Decision(True, f"Wider than ±{width:.1%} after {repeats} repeats: {told}. Adding {ROUND} more.")


def _prompts(wide: Mapping[str, PairedRatio], width: float) -> str:
    """How many prompts it would take: the width falls with their square root."""
    needed = [
        found.n_prompts * (found.narrowest / width) ** 2
        for found in wide.values()
        if found.narrowest is not None and found.narrowest > width
    ]
    return f"About {max(needed):.0f} prompts like these would." if needed else "It takes more than one prompt."


def _what(arms: list[str]) -> str:
    return "the speedup of " + " and ".join(arms)


def _share(half: float | None) -> str:
    return "without an interval" if half is None else f"±{half:.1%}"
