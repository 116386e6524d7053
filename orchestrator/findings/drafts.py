"""Whether the drafter did what it was asked to, and whether its speed can be."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.facts import Facts
from orchestrator.findings.catalogue import finding
from orchestrator.results import Arm, Finding, Point, Summary

TAU_NEAR_ONE = 1.1
"""Below it the drafter helps less than one step in ten."""


def findings(summary: Summary, facts: Facts) -> Iterator[Finding]:
    for arm in summary.arms:
        if arm.lossy:
            yield finding(
                "lossy",
                f"{arm.name} verifies with relaxed thresholds: its output is not the target's, its speed buys that.",
                arm.name,
            )
        if arm.point:
            yield from _point(arm, arm.point)


def _point(arm: Arm, point: Point) -> Iterator[Finding]:
    accepted = point.acceptance
    if accepted and accepted.tau < TAU_NEAR_ONE:
        yield finding(
            "tau_near_one",
            f"{arm.name}: tau is {accepted.tau:.2f}, so almost no draft is right. Wrong weights for this target, "
            "another chat template or a wrong layer are the usual reasons.",
            arm.name,
        )
    if accepted is None and arm.drafter != "none" and point.metrics.requests:
        yield finding(
            "no_counters",
            f"{arm.name}: the server returned no speculation counters; it may not have speculated at all.",
            arm.name,
        )
    if accepted and point.decode_speedup and point.decode_speedup.ratio > accepted.tau:
        yield finding(
            "speedup_above_tau",
            f"{arm.name}: the speedup after prefill ({point.decode_speedup.ratio:.2f}) is above tau "
            f"({accepted.tau:.2f}). A verification step costs at least a plain step, so the plain arm is handicapped "
            "or something is measured wrongly.",
            arm.name,
        )
