"""Whether this side was quick enough to measure the servers, and not itself."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.analysis.facts import Facts
from orchestrator.analysis.results import Summary
from orchestrator.findings.finding import Finding, finding


def findings(summary: Summary, facts: Facts) -> Iterator[Finding]:
    for arm in summary.arms:
        trials = [usage for name, usage in facts.clients if name == arm.name]
        reasons = [usage.bottleneck for usage in trials if usage.bottleneck]
        if reasons:
            yield finding(
                "client_bottleneck",
                f"{arm.name}: in {len(reasons)} of {len(trials)} trials the load client may have set the pace: "
                f"{reasons[0]}. Its machine needs cores that nothing else uses.",
                arm.name,
            )
