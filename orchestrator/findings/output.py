"""Whether the arms produced the same output, and whether it is output worth measuring."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.analysis.facts import Facts
from orchestrator.analysis.lossless import Lossless, more_often
from orchestrator.analysis.results import Arm, Point, Summary
from orchestrator.analysis.solved import differing
from orchestrator.findings.finding import Finding, finding

REPEATED_4GRAMS = 0.2
"""Share of repeated 4-grams from which a text counts as looping."""

NAMED = 5
"""Prompts that a finding names; of more it gives the number."""


def findings(summary: Summary, facts: Facts) -> Iterator[Finding]:
    yield from _asked(summary, facts)
    floor = summary.baseline.lossless if summary.baseline else None
    for arm in summary.arms:
        yield from _identity(arm, floor)
        yield from _not_compared(arm, summary)
        yield from _solved(arm, summary.baseline, facts)
        if arm.point:
            yield from _shape(arm, arm.point, summary.baseline)


def _asked(summary: Summary, facts: Facts) -> Iterator[Finding]:
    """What the requests asked for that makes their output easy to draft, or their timing odd."""
    setting = facts.setting
    if facts.temperature > 0:
        yield finding(
            "sampled",
            f"At temperature {facts.temperature:g} outputs are drawn, so the arms' tokens are not expected to be "
            "equal and are not compared. Measure at temperature 0 to check that an arm is lossless.",
        )
        if setting.get("top_k") == 1:
            yield finding("greedy_in_effect", "top_k is 1: the output is greedy, whatever the temperature says.")
    if setting.get("ignore_eos"):
        yield finding(
            "past_the_end",
            "ignore_eos is on: outputs go on after the model's own end. What follows is degenerate text, which is "
            "easy to draft: tau and speed are too good.",
        )
    if setting.get("warm_up") is False:
        yield finding(
            "cold_start",
            "There was no warm-up (load.warmup_requests: 0): the first requests of each trial contain compilation, "
            "cold caches and clocks that still rise.",
        )
    if locked := [arm.name for arm in summary.arms if any(map(_in_step, arm.points))]:
        yield finding(
            "phase_locked",
            f"All outputs of {', '.join(locked)} have the same length and several requests are in flight: in a "
            "closed loop they start and end together for good, and the time to first token depends on their number. "
            "Let them end by themselves, or send at a rate.",
        )


def _in_step(point: Point) -> bool:
    lengths = point.metrics.output_lengths
    return (point.concurrency or 1) > 1 and len(lengths) > 1 and len(set(lengths)) == 1


def _identity(arm: Arm, floor: Lossless | None) -> Iterator[Finding]:
    check = arm.lossless
    if check is None or not check.compared or arm.lossy:  # a lossy arm's share is told with its label
        return
    if check.forks:
        fork = check.forks[0]
        margin = "not known" if fork.margin is None else f"{fork.margin:.2g}"
        where = f"first in prompt {fork.prompt_id} at position {fork.position} (top-2 margin there {margin})"
        count = f"{len(check.forks)} of {check.compared} outputs at temperature 0"
        if arm.baseline:
            yield finding("not_deterministic", f"repeats of the plain arm differ in {count}, {where}.", arm.name)
        elif floor is not None and floor.forks and not more_often(check, floor):
            yield finding(
                "forks_like_plain",
                f"{arm.name} differs from the plain arm in {count}, {where}. The plain arm differs from itself in "
                f"{len(floor.forks)} of {floor.compared}: no more can be said of the drafter.",
                arm.name,
            )
        else:
            noise = "none" if floor is None or not floor.compared else f"{len(floor.forks)} of {floor.compared}"
            yield finding(
                "not_lossless",
                f"{arm.name} differs from the plain arm in {count}, {where}. Of the plain arm's own repeats, {noise} "
                "differ.",
                arm.name,
            )
    for tie in check.near_ties:
        yield finding(
            "near_tie",
            f"{arm.name} forks from the plain arm in prompt {tie.prompt_id} at position {tie.position}, where the "
            f"target's two best tokens are {tie.margin:.2g} apart: rounding, excused.",
            arm.name,
        )


def _not_compared(arm: Arm, summary: Summary) -> Iterator[Finding]:
    """Prompts whose tokens were not compared: silence about them would read as equal tokens."""
    check, plain = arm.lossless, summary.baseline
    # Without a plain arm there is nothing to compare with, which is told; a lossy arm's tokens are not expected equal.
    if check is None or not check.missing or arm.lossy or arm.baseline or plain is None or plain.point is None:
        return
    ended = {row.prompt_id for row in summary.prompts if {arm.name, plain.name} <= row.cells.keys()}
    mute = sum(prompt in ended for prompt in check.missing)
    failed = len(check.missing) - mute
    reasons = []
    if mute:
        reasons.append(
            f"the server told no token ids for {mute} of them (load.endpoint=generate does with every server)"
        )
    if failed:
        reasons.append(f"no request of {failed} of them ended well in both arms")
    shown = ", ".join(check.missing[:NAMED])
    more = f" and {len(check.missing) - NAMED} more" if len(check.missing) > NAMED else ""
    yield finding(
        "not_compared",
        f"{arm.name}: the outputs of {len(check.missing)} of {check.prompts + len(check.missing)} prompts could not be "
        f"compared with the plain arm's token by token ({shown}{more}): {' and '.join(reasons)}. Whether {arm.name} is "
        "lossless on them is not known.",
        arm.name,
    )


def _solved(arm: Arm, baseline: Arm | None, facts: Facts) -> Iterator[Finding]:
    """Drawn outputs differ by chance, so only at temperature 0."""
    mine = arm.point.solved if arm.point else None
    plain = baseline.point.solved if baseline and baseline.point else None
    if mine is None or plain is None or arm.baseline or facts.temperature > 0:
        return
    gained, lost = differing(mine, plain)
    if not gained and not lost:
        return
    parts = [
        f"{who} {', '.join(prompts[:NAMED])}" + (f" and {len(prompts) - NAMED} more" if len(prompts) > NAMED else "")
        for who, prompts in ((f"only {arm.name} solved", gained), ("only the plain arm solved", lost))
        if prompts
    ]
    why = (
        "Its verification is lossy, so this is part of what its speed costs."
        if arm.lossy
        else "At temperature 0 a lossless arm gives the same answers: see where its tokens fork."
    )
    yield finding(
        "solved_differs",
        f"{arm.name} solved {mine.solved} of {mine.checked} checked requests, the plain arm {plain.solved} of "
        f"{plain.checked}: {'; '.join(parts)}. {why}",
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
