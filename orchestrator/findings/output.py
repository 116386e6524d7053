"""Whether the arms produced the same output, and whether it is output worth measuring."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.facts import Facts
from orchestrator.findings.catalogue import finding
from orchestrator.results import Arm, Finding, Point, Summary

REPEATED_4GRAMS = 0.2
"""Share of repeated 4-grams from which a text counts as looping."""


def findings(summary: Summary, facts: Facts) -> Iterator[Finding]:
    for arm in summary.arms:
        yield from _identity(arm)
        if arm.point:
            yield from _shape(arm, arm.point, summary.baseline)


def _identity(arm: Arm) -> Iterator[Finding]:
    check = arm.lossless
    if check is None or not check.compared:
        return
    if check.forks:
        fork = check.forks[0]
        who = "repeats of the plain arm differ" if arm.baseline else f"{arm.name} differs from the plain arm"
        margin = "not known" if fork.margin is None else f"{fork.margin:.2g}"
        yield finding(
            "not_deterministic" if arm.baseline else "not_lossless",
            f"{who} in {len(check.forks)} of {check.compared} outputs at temperature 0, first in prompt "
            f"{fork.prompt_id} at position {fork.position} (top-2 margin there {margin}).",
            arm.name,
        )
    for tie in check.near_ties:
        yield finding(
            "near_tie",
            f"{arm.name} forks from the plain arm in prompt {tie.prompt_id} at position {tie.position}, where the "
            f"target's two best tokens are {tie.margin:.2g} apart: rounding, excused.",
            arm.name,
        )


def _shape(arm: Arm, point: Point, baseline: Arm | None) -> Iterator[Finding]:
    cut = point.metrics.finish_reasons.get("length", 0)
    if cut and arm.baseline:
        yield finding(
            "cut_outputs",
            f"{cut} of {point.metrics.requests} outputs of {arm.name} ended at the token limit, not at their own end.",
            arm.name,
        )
    plain = baseline.point if baseline else None
    if plain and not arm.baseline and sorted(plain.metrics.output_lengths) != sorted(point.metrics.output_lengths):
        yield finding(
            "output_lengths",
            f"{arm.name} produced {point.metrics.output_tokens} tokens, the plain arm "
            f"{plain.metrics.output_tokens}: outputs of different length are compared per token, not per answer.",
            arm.name,
        )
    if (point.metrics.repeated_4grams or 0) > REPEATED_4GRAMS:
        yield finding(
            "looping_text",
            f"{arm.name}: {point.metrics.repeated_4grams:.0%} of the 4-grams repeat inside their output. "
            "Looping text is easy to draft and flatters every drafter.",
            arm.name,
        )
