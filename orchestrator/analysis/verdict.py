"""Whether a comparison may be stated, and what the command returns for it."""

from __future__ import annotations

from orchestrator.analysis.results import Summary

REFUSED = 3
"""Exit code of a run that was measured and whose comparison is refused."""


def withhold(summary: Summary) -> Summary:
    """The same summary without its ratios, where a finding refuses the comparison: speeds and acceptance stay."""
    if not summary.withheld:
        return summary
    arms = []
    for arm in summary.arms:
        points = [
            point.model_copy(update={"speedup": None, "decode_speedup": None, "speedup_by_category": {}})
            for point in arm.points
        ]
        arms.append(arm.model_copy(update={"points": points, "crossover": None}))
    prompts = [
        row.model_copy(
            update={"cells": {name: cell.model_copy(update={"speedup": None}) for name, cell in row.cells.items()}}
        )
        for row in summary.prompts
    ]
    return summary.model_copy(update={"arms": arms, "prompts": prompts, "lead": None})


def exit_code(summary: Summary) -> int:
    """0; 3 where the comparison is refused; 1 where a request failed or another error was found. What the config allows
    by name is no error."""
    if summary.withheld:
        return REFUSED
    failed = any(point.metrics.failed for arm in summary.arms for point in arm.points)
    return int(failed or any(finding.severity == "error" for finding in summary.findings))
