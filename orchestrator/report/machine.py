"""Rows of the result table that say what the machine did and how strong the plain arm is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from orchestrator.analysis.baseline import settings
from orchestrator.analysis.results import Arm, Point, Summary
from orchestrator.telemetry.pool import Usage
from orchestrator.telemetry.window import Spread, TrialUsage

ABSENT = "–"


class MachineRow(NamedTuple):
    section: str
    label: str
    cell: Callable[[Arm, Point], str]
    brief: str = ""


def share_of_ceiling(arm: Arm) -> str:
    """``63% of 316 tok/s``; of a plain arm only."""
    share = arm.bandwidth_share
    most = arm.ceiling.tok_s if arm.ceiling else None
    return ABSENT if share is None or most is None else f"{share:.0%} of {most:.{0 if most >= 100 else 1}f} tok/s"


def graphs_and_overlap(arm: Arm) -> str:
    """``on / on``, as the server reports it; nothing for a server that knows neither."""
    known = settings(arm.identity)
    if known.cuda_graphs is None and known.overlap is None:
        return ABSENT
    return " / ".join({None: "?", True: "on", False: "OFF"}[one] for one in known)


def _used(text: Callable[[Usage], str | None]) -> Callable[[Arm, Point], str]:
    return lambda _, point: (text(point.usage) if point.usage else None) or ABSENT


def _number(
    figure: Callable[[Usage], float | None], digits: int, factor: float = 1.0, unit: str = ""
) -> Callable[[Arm, Point], str]:
    return _used(lambda usage: _text(figure(usage), digits, factor, unit))


def _pair(
    first: Callable[[Usage], float | None], second: Callable[[Usage], float | None]
) -> Callable[[Arm, Point], str]:
    def text(usage: Usage) -> str | None:
        one, other = first(usage), second(usage)
        return None if one is None or other is None else f"{one:.0f} / {other:.0f}"

    return _used(text)


ROWS = (
    MachineRow("Machine", "joules per output token", _number(lambda u: u.energy_per_token_j, 2), "J/token"),
    MachineRow("Machine", "GPU power mean/peak, W", _pair(lambda u: u.power_mean_w, lambda u: u.power_peak_w)),
    MachineRow("Machine", "SM clock mean/low, MHz", _pair(lambda u: u.sm_mean_mhz, lambda u: u.sm_low_mhz)),
    MachineRow("Machine", "memory clock, MHz", _number(lambda u: u.memory_clock_mean_mhz, 0)),
    MachineRow("Machine", "GPU °C mean/peak", _pair(lambda u: u.temperature_mean_c, lambda u: u.temperature_peak_c)),
    MachineRow("Machine", "GPU busy, %", _number(lambda u: u.utilisation_mean, 0, 100)),
    MachineRow("Machine", "throttled, share of time", _number(lambda u: u.throttled_share, 0, 100, "%")),
    MachineRow("Machine", "CPU ms per output token", _number(lambda u: u.cpu_per_token_s, 1, 1000)),
    MachineRow("Machine", "CPU cores in use", _number(lambda u: u.cpu_cores_mean, 2)),
    MachineRow("Machine", "cores used by others", _number(lambda u: u.cpu_others_mean, 2)),
    MachineRow("Machine", "sampling, share of a core", _number(lambda u: u.sampler_share, 1, 100, "%")),
    MachineRow("Baseline", "share of bandwidth ceiling", lambda arm, _: share_of_ceiling(arm)),
    MachineRow("Baseline", "CUDA graphs / overlap", lambda arm, _: graphs_and_overlap(arm)),
)


def trials(summary: Summary) -> list[dict[str, str]]:
    """A line per trial, by arm and load: what the result table pools. Columns that hold nothing are left out."""
    lines = [
        {"arm": arm.name, "load": point.load, "trial": str(number), **_trial(trial)}
        for arm in summary.arms
        for point in arm.points
        if point.usage
        for number, trial in enumerate(point.usage.trials, start=1)
    ]
    known = {name for line in lines for name, cell in line.items() if cell != ABSENT}
    return [{name: cell for name, cell in line.items() if name in known} for line in lines]


def _trial(trial: TrialUsage) -> dict[str, str]:

    def gpu(figure: str) -> Any:
        return getattr(trial.gpus[0], figure) if trial.gpus else None

    return {
        "s": f"{trial.seconds:.1f}",
        "tokens": str(trial.output_tokens),
        "samples": str(trial.samples),
        "longest gap, s": f"{trial.longest_gap_s:.2f}",
        "J": _text(trial.energy_j, 0),
        "W": _mean(gpu("power_w"), 0),
        "SM MHz": _mean(gpu("sm_mhz"), 0),
        "memory MHz": _mean(gpu("memory_mhz"), 0),
        "°C": _mean(gpu("temperature_c"), 0),
        "throttled": _text(gpu("throttled_share"), 0, 100, "%"),
        "VRAM GiB": _mean(gpu("used_bytes"), 2, 2**-30),
        "RSS GiB": _mean(trial.rss_bytes, 2, 2**-30),
        "CPU s": _text(trial.cpu_s, 1),
        "others' cores": _text(trial.others_cores, 2),
        "sampling CPU s": _text(trial.sampler_cpu_s, 2),
    }


def _mean(spread: Spread | None, digits: int, factor: float = 1.0) -> str:
    return _text(spread.mean if spread else None, digits, factor)


def _text(value: float | None, digits: int, factor: float = 1.0, unit: str = "") -> str:
    return ABSENT if value is None else f"{factor * value:.{digits}f}{unit}"
