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
    yield from _releases(summary, facts)
    for arm in summary.arms:
        yield from _arm(arm, summary.status)


def _repeat_spread(summary: Summary) -> float | None:
    cells = [cell for row in summary.prompts for cell in row.cells.values()]
    spreads = [cell.repeat_spread for cell in cells if cell.repeat_spread is not None]
    return median(spreads) if spreads else None


def _releases(summary: Summary, facts: Facts) -> Iterator[Finding]:
    """Open loops whose requests did not leave at their times."""
    for arm in summary.arms:
        open_loops = [usage for name, usage in facts.clients if name == arm.name and usage.late_p99_s is not None]
        late = [usage for usage in open_loops if usage.late]
        if late:
            worst = max(late, key=lambda usage: usage.late_p99_s or 0.0)
            yield finding(
                "late_releases",
                f"{arm.name}: requests were sent late in {len(late)} of {len(open_loops)} trials, at worst "
                f"{worst.late}. Latencies count from the sending, so the wait before it is in no figure, and the load "
                "was not the one asked for. The client needs a core that nothing else uses, or a lower load.rate.",
                arm.name,
            )


def _arm(arm: Arm, status: str) -> Iterator[Finding]:
    if arm.missing:
        # In a run that failed its server may have been the one that ended, in the middle of a trial.
        what = "was not run" if status == "finished" else "has no finished trial"
        yield finding("missing_arm", f"{arm.name} {what}: {arm.missing}", arm.name)
    if arm.point and (failed := arm.point.metrics.failed):
        yield finding(
            "failed_requests",
            f"{arm.name}: {sum(failed.values())} of {sum(arm.point.metrics.outcomes.values())} requests did not end "
            f"well ({', '.join(f'{name} {count}' for name, count in failed.items())}); no figure contains them.",
            arm.name,
        )
