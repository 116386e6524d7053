"""What a reader must know before using the figures of a comparison, each as one sentence with a severity.

error: the figure must not be used as it stands. warning: it can mislead. note: it needs a word of context.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from orchestrator.facts import Facts
from orchestrator.masking import mask
from orchestrator.results import Arm, Finding, Point, Summary

TAU_NEAR_ONE = 1.1
"""Below it the drafter helps less than one step in ten."""
REPEATED_4GRAMS = 0.2
"""Share of repeated 4-grams from which a text counts as looping."""
UNSTEADY = 1.15
"""Median ratio between repeats of a prompt from which a machine counts as busy; idle, it stays within a few percent."""
_END = {"failed": "The run failed", "interrupted": "The run was stopped"}
ORDER = {"error": 0, "warning": 1, "note": 2}


def judge(summary: Summary, facts: Facts) -> list[Finding]:
    """All findings of a comparison, the most severe first."""
    found = [*_comparison(summary, facts)]
    for arm in summary.arms:
        found += _arm(arm)
        if arm.point:
            found += _point(arm, arm.point, summary.baseline)
    return sorted(found, key=lambda finding: ORDER[finding.severity])


def _comparison(summary: Summary, facts: Facts) -> Iterator[Finding]:
    if summary.status != "finished":
        yield Finding(
            severity="error", code="incomplete", text=f"{_END[summary.status]}: some trials were not measured."
        )
    if summary.baseline is None or not summary.baseline.points:
        yield Finding(
            severity="error",
            code="no_plain_arm",
            text="No plain arm was measured: there is no speedup and no check of the output's tokens.",
        )
    if facts.order == "once":
        yield Finding(
            severity="warning",
            code="drift_not_controlled",
            text="Each arm's server was started once (order: once): a machine that slows down or speeds up during the "
            "run favours the arms that ran at the better time. order: abba alternates them.",
        )
    if len(facts.sources) > 1:
        yield Finding(
            severity="warning",
            code="measured_apart",
            text=f"The trials come from {len(facts.sources)} runs at different times; ratios between them contain "
            "whatever changed on the machine in between.",
        )
    elif facts.sources and facts.sources[0]:
        yield Finding(
            severity="note",
            code="adopted",
            text=f"Nothing was measured anew: the trials are those of {facts.sources[0]}.",
        )
    spread = _repeat_spread(summary)
    if spread is not None and spread > UNSTEADY:
        yield Finding(
            severity="warning",
            code="unsteady_machine",
            text=f"Repeats of a prompt on the same arm differ by {spread:.2f}x in speed (median): something "
            "else was running. The speeds of this run are rough; measure again when the machine is idle.",
        )
    for key, values in facts.unfair.items():
        listed = ", ".join(f"{arm} {mask(value, key)}" for arm, value in values.items())
        yield Finding(
            severity="warning",
            code="unfair",
            text=f"{key} differs between the arms although the experiment does not say it may: {listed}.",
        )
    if summary.embedded:
        yield Finding(
            severity="note",
            code="embedded",
            text="engine=embedded: a small target on a CPU. Acceptance is real; speed says nothing about a GPU.",
        )


def _repeat_spread(summary: Summary) -> float | None:
    cells = [cell for row in summary.prompts for cell in row.cells.values()]
    spreads = [cell.repeat_spread for cell in cells if cell.repeat_spread is not None]
    return median(spreads) if spreads else None


def _arm(arm: Arm) -> Iterator[Finding]:
    if arm.missing:
        yield Finding(
            severity="warning", code="missing_arm", arm=arm.name, text=f"{arm.name} was not run: {arm.missing}"
        )
    if arm.lossy:
        yield Finding(
            severity="warning",
            code="lossy",
            arm=arm.name,
            text=f"{arm.name} verifies with relaxed thresholds: its output is not the target's, its speed buys that.",
        )
    check = arm.lossless
    if check is None or not check.compared:
        return
    if check.forks:
        fork = check.forks[0]
        who = "repeats of the plain arm differ" if arm.baseline else f"{arm.name} differs from the plain arm"
        margin = "not known" if fork.margin is None else f"{fork.margin:.2g}"
        yield Finding(
            severity="warning" if arm.baseline else "error",
            code="not_deterministic" if arm.baseline else "not_lossless",
            arm=arm.name,
            text=f"{who} in {len(check.forks)} of {check.compared} outputs at temperature 0, first in prompt "
            f"{fork.prompt_id} at position {fork.position} (top-2 margin there {margin}).",
        )
    for tie in check.near_ties:
        yield Finding(
            severity="note",
            code="near_tie",
            arm=arm.name,
            text=f"{arm.name} forks from the plain arm in prompt {tie.prompt_id} at position {tie.position}, where the "
            f"target's two best tokens are {tie.margin:.2g} apart: rounding, excused.",
        )


def _point(arm: Arm, point: Point, baseline: Arm | None) -> Iterator[Finding]:
    accepted = point.acceptance
    if accepted and accepted.tau < TAU_NEAR_ONE:
        yield Finding(
            severity="warning",
            code="tau_near_one",
            arm=arm.name,
            text=f"{arm.name}: tau is {accepted.tau:.2f}, so almost no draft is right. Wrong weights for this target, "
            "another chat template or a wrong layer are the usual reasons.",
        )
    if accepted is None and arm.drafter != "none" and point.metrics.requests:
        yield Finding(
            severity="error",
            code="no_counters",
            arm=arm.name,
            text=f"{arm.name}: the server returned no speculation counters; it may not have speculated at all.",
        )
    if accepted and point.decode_speedup and point.decode_speedup.ratio > accepted.tau:
        yield Finding(
            severity="error",
            code="speedup_above_tau",
            arm=arm.name,
            text=f"{arm.name}: the speedup after prefill ({point.decode_speedup.ratio:.2f}) is above tau "
            f"({accepted.tau:.2f}). A verification step costs at least a plain step, so the plain arm is handicapped "
            "or something is measured wrongly.",
        )
    failed = {name: count for name, count in point.metrics.outcomes.items() if name != "ok"}
    if failed:
        yield Finding(
            severity="warning",
            code="failed_requests",
            arm=arm.name,
            text=f"{arm.name}: {sum(failed.values())} of {sum(point.metrics.outcomes.values())} requests did not end "
            f"well ({', '.join(f'{name} {count}' for name, count in failed.items())}); no figure contains them.",
        )
    yield from _outputs(arm, point, baseline)


def _outputs(arm: Arm, point: Point, baseline: Arm | None) -> Iterator[Finding]:
    cut = point.metrics.finish_reasons.get("length", 0)
    if cut and arm.baseline:
        yield Finding(
            severity="note",
            code="cut_outputs",
            arm=arm.name,
            text=f"{cut} of {point.metrics.requests} outputs of {arm.name} ended at the token limit, "
            "not at their own end.",
        )
    plain = baseline.point if baseline else None
    if plain and not arm.baseline and sorted(plain.metrics.output_lengths) != sorted(point.metrics.output_lengths):
        yield Finding(
            severity="warning",
            code="output_lengths",
            arm=arm.name,
            text=f"{arm.name} produced {point.metrics.output_tokens} tokens, the plain arm "
            f"{plain.metrics.output_tokens}: outputs of different length are compared per token, not per answer.",
        )
    if (point.metrics.repeated_4grams or 0) > REPEATED_4GRAMS:
        yield Finding(
            severity="warning",
            code="looping_text",
            arm=arm.name,
            text=f"{arm.name}: {point.metrics.repeated_4grams:.0%} of the 4-grams repeat inside their output. "
            "Looping text is easy to draft and flatters every drafter.",
        )
