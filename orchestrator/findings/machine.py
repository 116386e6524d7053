"""Whether the machine was the same for every arm, and whether it was watched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from orchestrator.analysis.facts import Facts
from orchestrator.analysis.results import Arm, Summary
from orchestrator.findings.finding import Finding, finding
from orchestrator.telemetry.pool import Usage
from orchestrator.telemetry.window import MAX_GAP_S, TrialUsage

THROTTLED = 0.01
"""Share of a trial's samples from which throttling is told: one sample in a hundred can be the end of a ramp."""
CLOCKS_APART = 0.03
BEFORE_BYTES = 256 * 2**20
"""An idle GPU shows a few MiB; whatever has computed on it since it was opened holds more than this."""
BUSY_CORES = 0.25
"""Of a node that serves on its CPU: what its desktop and its daemons do stays below this, a forgotten job does not."""
BUSY_SHARE = 0.5
"""Of the cores of a node whose GPU serves: the server's own few threads find a core until about here."""
_MIB = 2**20


def findings(summary: Summary, facts: Facts) -> Iterator[Finding]:
    for arm in summary.arms:
        for point in arm.points:
            if point.usage:
                at = "" if len(arm.points) == 1 else f" at {point.load}"
                yield from _watched(arm, at, point.usage)
                yield from _gpu(arm, at, point.usage)
    yield from _busy(summary)
    yield from _clocks(summary)
    yield from _unwatched(summary)


def busy(summary: Summary) -> dict[str, list[TrialUsage]]:
    """Arm -> its trials during which others used so much of the node that its speeds are rough; arms without are left
    out."""
    found = {
        arm.name: [
            trial for point in arm.points if point.usage for trial in point.usage.trials if _crowded(trial, summary)
        ]
        for arm in summary.arms
    }
    return {name: trials for name, trials in found.items() if trials}


def _crowded(trial: TrialUsage, summary: Summary) -> bool:
    if trial.others_cores is None:
        return False
    most = BUSY_CORES if summary.embedded else BUSY_SHARE * (trial.node_cores or math.inf)
    return trial.others_cores > most


def _busy(summary: Summary) -> Iterator[Finding]:
    """One finding for all arms: whatever ran beside them is the machine's, not an arm's."""
    found = busy(summary)
    if not found:
        return
    counts = {arm.name: sum(len(point.usage.trials) for point in arm.points if point.usage) for arm in summary.arms}
    listed = ", ".join(
        f"{name} {_cores(trials):.2f} in {len(trials)} of {counts[name]} trials" for name, trials in found.items()
    )
    cores = next((trial.node_cores for trials in found.values() for trial in trials if trial.node_cores), None)
    yield finding(
        "busy_machine",
        f"Other processes used cores of the server's machine{f', which has {cores},' if cores else ''} while it was "
        f"measured (mean: {listed}). They took time from the server and from the client, so the speeds of this run are "
        "rough; measure again when the machine is idle, with reuse=false.",
    )


def _cores(trials: list[TrialUsage]) -> float:
    """Mean cores used by others, over the time of the trials."""
    return sum((trial.others_cores or 0.0) * trial.seconds for trial in trials) / sum(t.seconds for t in trials)


def _watched(arm: Arm, at: str, usage: Usage) -> Iterator[Finding]:
    """Whether there are samples enough."""
    blind = [trial for trial in usage.trials if not trial.samples]
    gaps = [trial for trial in usage.trials if trial.samples and trial.longest_gap_s > MAX_GAP_S]
    why = f" ({usage.absent})" if usage.absent else ""
    if blind:
        yield finding(
            "telemetry_missing",
            f"{arm.name}{at}: nothing was sampled in {_of(blind, usage)}{why}: what the machine did is not known.",
            arm.name,
        )
    if gaps:
        longest = max(trial.longest_gap_s for trial in gaps)
        yield finding(
            "telemetry_gaps",
            f"{arm.name}{at}: samples are missing in {_of(gaps, usage)}, for {longest:.1f} s at most{why}: peaks may "
            "be missed, and an energy that is integrated over power is not stated.",
            arm.name,
        )


def _gpu(arm: Arm, at: str, usage: Usage) -> Iterator[Finding]:
    throttled = [trial for trial in usage.trials if _throttled(trial) >= THROTTLED]
    if throttled:
        reasons = ", ".join(usage.throttled)
        yield finding(
            "throttled",
            f"{arm.name}{at}: the GPU throttled in {_of(throttled, usage)}, for {max(map(_throttled, throttled)):.0%} "
            f"of the time at most ({reasons}): its speed is that of the cooling or the power limit.",
            arm.name,
        )
    if usage.vram_other_bytes:
        held = (
            f"other processes than the server's held up to {usage.vram_other_bytes / _MIB:.0f} MiB of its GPU's memory"
        )
    elif usage.vram_other_bytes is None and (usage.vram_before_bytes or 0) > BEFORE_BYTES:
        held = f"{(usage.vram_before_bytes or 0) / _MIB:.0f} MiB of its GPU's memory were in use before it started"
    else:
        return
    yield finding("gpu_shared", f"{arm.name}{at}: {held}: whatever computed there took time from the server.", arm.name)


def _clocks(summary: Summary) -> Iterator[Finding]:
    """Arms are compared at equal load only: a load of its own clocks a GPU differently."""
    figures: tuple[tuple[str, Callable[[Usage], float | None]], ...] = (
        ("SM", lambda usage: usage.sm_mean_mhz),
        ("memory", lambda usage: usage.memory_clock_mean_mhz),
    )
    loads = dict.fromkeys(point.load for arm in summary.arms for point in arm.points)
    for load in loads:
        for name, figure in figures:
            clocks = {
                arm.name: mhz
                for arm in summary.arms
                for point in arm.points
                if point.load == load and point.usage and (mhz := figure(point.usage))
            }
            if clocks and max(clocks.values()) > (1 + CLOCKS_APART) * min(clocks.values()):
                listed = ", ".join(f"{arm} {mhz:.0f} MHz" for arm, mhz in clocks.items())
                yield finding(
                    "clocks_differ",
                    f"The {name} clock of the GPU differs between the arms by more than {CLOCKS_APART:.0%}, {load}: "
                    f"{listed}. A part of the speedup may be the clock's.",
                )


def _unwatched(summary: Summary) -> Iterator[Finding]:
    """A GPU that is not asked is told once: it is the same for every arm."""
    if any(arm.memory and arm.memory.kind == "rss" for arm in summary.arms):  # served on a CPU
        return
    usages = [point.usage for arm in summary.arms for point in arm.points if point.usage]
    absent = next((usage.absent for usage in usages if usage.absent and not any(t.gpus for t in usage.trials)), None)
    if absent:
        yield finding("no_gpu_telemetry", f"Memory, power and clocks of the GPU are not known ({absent}).")


def _throttled(trial: TrialUsage) -> float:
    return max((gpu.throttled_share or 0.0 for gpu in trial.gpus), default=0.0)


def _of(trials: list[TrialUsage], usage: Usage) -> str:
    return f"{len(trials)} of {len(usage.trials)} trials"
