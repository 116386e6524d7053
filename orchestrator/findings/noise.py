"""How far the run's own noise lets its figures be trusted."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.analysis.facts import Facts
from orchestrator.analysis.results import Summary
from orchestrator.findings.finding import Finding, finding
from orchestrator.schema.suite import FEW_PROMPTS
from orchestrator.stats import drifts


def findings(summary: Summary, facts: Facts) -> Iterator[Finding]:
    points = {arm.name: arm.point for arm in summary.arms if arm.point}
    repeats = max((point.repeats for point in points.values()), default=0)
    if facts.order == "once":
        yield finding(
            "drift_not_controlled",
            "Each arm's server was started once (order: once): a machine that slows down or speeds up during the run "
            "favours the arms that ran at the better time. order: abba alternates them.",
        )
    elif len(points) > 1 and repeats % 2:
        yield finding(
            "drift_not_controlled",
            f"With {repeats} {'repeat' if repeats == 1 else 'repeats'} the arms do not come forwards as often as "
            "backwards: a machine that slows down or speeds up during the run favours some of them. An even "
            "suite.repeats balances the order.",
        )
    moved = []
    for name, point in points.items():
        found = point.evidence.drift if point.evidence else None
        if found is not None and drifts(found):
            moved.append(f"{name} {found.value:.2f} [{found.low:.2f}, {found.high:.2f}]")
    if moved:
        yield finding(
            "drift",
            f"Speed changed while the run went on, second half of the repeats over the first: {', '.join(moved)}. "
            "The order takes out a steady change and not a sudden one.",
        )
    speedups = [point.speedup for point in points.values() if point.speedup]
    fewest = min((found.n_prompts for found in speedups), default=FEW_PROMPTS)
    if fewest < FEW_PROMPTS:
        yield finding(
            "few_prompts",
            f"The speedups rest on {fewest} {'prompt' if fewest == 1 else 'prompts'}. With so few an interval is often "
            f"narrow by luck, so no arm is called faster; a suite of {FEW_PROMPTS} or more can decide.",
        )
    if speedups and not any(found.over_starts for found in speedups):
        yield finding(
            "starts_unknown",
            "The intervals hold what other prompts would change, not what another start of a server would: that takes "
            "two repeats in order abba.",
        )
    ruled = [
        name
        for name, point in points.items()
        if (one := point.speedup) and one.prompts_se is not None and (one.restarts_se or 0.0) > one.prompts_se
    ]
    spread = next((p.evidence.restarts.sd for p in points.values() if p.evidence and p.evidence.restarts), 0.0)
    if ruled:
        yield finding(
            "starts_rule",
            f"Most of the speedup's interval of {', '.join(ruled)} is the spread between server starts ({spread:.1%}), "
            "known from few of them: an idle machine or more suite.repeats narrows it, more prompts do not.",
        )
    if str(facts.setting.get("stop", "fixed")) != "fixed":
        yield finding(
            "sequential",
            f"Repeats were added until the intervals were narrow (stop: {facts.setting['stop']}): such an interval "
            "holds the truth up to five points less often than it says.",
        )
