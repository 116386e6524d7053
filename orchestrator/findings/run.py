"""Whether the run as a whole can carry a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from orchestrator.analysis.facts import Facts
from orchestrator.analysis.results import Arm, Summary
from orchestrator.findings.finding import Finding, finding

UNSTEADY = 1.15
"""Median ratio between repeats of a prompt from which a machine counts as busy; idle, it stays within a few percent."""
_END = {"failed": "The run failed", "interrupted": "The run was stopped"}


def findings(summary: Summary, facts: Facts) -> Iterator[Finding]:
    if summary.status != "finished":
        yield finding("incomplete", f"{_END[summary.status]}: some trials were not measured.")
    if summary.baseline is None or not summary.baseline.points:
        yield finding(
            "no_plain_arm", "No plain arm was measured: there is no speedup and no check of the output's tokens."
        )
    if len(facts.sources) > 1:
        yield finding(
            "measured_apart",
            f"The trials come from {len(facts.sources)} runs at different times; ratios between them contain whatever "
            "changed on the machine in between.",
        )
    elif facts.sources and facts.sources[0]:
        yield finding("adopted", f"Nothing was measured anew: the trials are those of {facts.sources[0]}.")
    spread = _repeat_spread(summary)
    if spread is not None and spread > UNSTEADY:
        yield finding(
            "unsteady_machine",
            f"Repeats of a prompt on the same arm differ by {spread:.2f}x in speed (median): something else was "
            "running. The speeds of this run are rough; measure again when the machine is idle, with reuse=false.",
        )
    if summary.embedded:
        yield finding(
            "embedded", "engine=embedded: a small target on a CPU. Acceptance is real; speed says nothing about a GPU."
        )
    for arm in summary.arms:
        yield from _arm(arm)


def _repeat_spread(summary: Summary) -> float | None:
    cells = [cell for row in summary.prompts for cell in row.cells.values()]
    spreads = [cell.repeat_spread for cell in cells if cell.repeat_spread is not None]
    return median(spreads) if spreads else None


def _arm(arm: Arm) -> Iterator[Finding]:
    if arm.missing:
        yield finding("missing_arm", f"{arm.name} was not run: {arm.missing}", arm.name)
    outcomes = arm.point.metrics.outcomes if arm.point else {}
    failed = {name: count for name, count in outcomes.items() if name != "ok"}
    if failed:
        yield finding(
            "failed_requests",
            f"{arm.name}: {sum(failed.values())} of {sum(outcomes.values())} requests did not end well "
            f"({', '.join(f'{name} {count}' for name, count in failed.items())}); no figure contains them.",
            arm.name,
        )
