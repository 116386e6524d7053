"""Whether this side was quick enough to measure the servers, and not itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from orchestrator.analysis.facts import Facts
from orchestrator.analysis.metrics import percentile
from orchestrator.analysis.results import Arm, Point, Summary
from orchestrator.findings import machine
from orchestrator.findings.finding import Finding, finding
from orchestrator.load.self_check import BUSY_SHARE, LAG_S, ClientUsage

TTFT_SHARE = 0.2
"""Of the median TTFT, from which a late stamp counts. The lag is its 99th percentile and the figure a median, which
moves by far less."""
TPOT_SHARE = 0.05
"""Of the median TPOT, from which a late last stamp counts: a token's time is the mean over an output."""
IDLE_CLIENT = 0.2
"""Cores. A client that used less was late because others held the cores, not because of what it does."""
FULL = 0.8
"""Share of its cores in use, from which a machine counts as busy."""


class _Late(NamedTuple):
    arm: str
    usage: ClientUsage
    reason: str


def findings(summary: Summary, facts: Facts) -> Iterator[Finding]:
    arms = {arm.name: arm for arm in summary.arms}
    late = [
        _Late(name, usage, reason)
        for name, usage in facts.clients
        if name in arms and (reason := _reason(usage, arms[name].point))
    ]
    if not late:
        return
    names = list(dict.fromkeys(one.arm for one in late))
    counts = [
        f"{name} in {sum(one.arm == name for one in late)} of {sum(arm == name for arm, _ in facts.clients)} trials"
        for name in names
    ]
    worst = max(late, key=lambda one: (one.usage.cpu_share > BUSY_SHARE, one.usage.lag_p99_s))
    most = max(one.usage.cpu_share for one in late)
    if most < IDLE_CLIENT and any(_full(arms[name], summary) for name in names):
        advice = (
            f"The client itself used {most:.0%} of a core at most, so it waited for cores that others held: leave the "
            "machine idle, or give the server fewer threads than it has cores."
        )
    else:
        advice = "Its machine needs cores that nothing else uses."
    yield finding(
        "client_bottleneck",
        f"The load client may have set the pace ({', '.join(counts)}); at worst, {worst.arm}, {worst.reason}. {advice}",
        names[0] if len(names) == 1 else None,
    )


def _reason(usage: ClientUsage, point: Point | None) -> str | None:
    """Why the client, and not the server, may have set the pace; None where the figures would be the same without it.

    A stamp is at most as late as the loop. TTFT takes all of that. TPOT is (last - first) / (tokens - 1), so it takes
    that share of it.
    """
    if usage.cpu_share > BUSY_SHARE:
        return f"it used {usage.cpu_share:.0%} of a core"
    if point is None or usage.lag_p99_s <= LAG_S:
        return None
    lag = usage.lag_p99_s
    moved = []
    ttft, tpot = point.metrics.ttft_s.p50, point.metrics.tpot_s.p50
    if ttft and lag > TTFT_SHARE * ttft:
        moved.append(f"up to {lag / ttft:.0%} of the TTFT")
    tokens = percentile(sorted(point.metrics.output_lengths), 50) if point.metrics.output_lengths else 0
    if tpot and tokens > 1 and lag / (tokens - 1) > TPOT_SHARE * tpot:
        moved.append(f"up to {lag / (tokens - 1) / tpot:.0%} of the TPOT")
    return f"its event loop was up to {1000 * lag:.1f} ms late (p99), {' and '.join(moved)}" if moved else None


def _full(arm: Arm, summary: Summary) -> bool:
    """Whether others crowded the machine, or the server and they had nearly all of its cores."""
    if arm.name in machine.busy(summary):
        return True
    return any(
        trial.cpu_s is not None
        and trial.node_cores is not None
        and trial.cpu_s / trial.seconds + (trial.others_cores or 0.0) > FULL * trial.node_cores
        for point in arm.points
        if point.usage
        for trial in point.usage.trials
        if trial.seconds
    )
