"""All findings of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from orchestrator.facts import Facts
from orchestrator.findings import drafts, output, run
from orchestrator.results import Finding, Summary

THEMES: tuple[Callable[[Summary, Facts], Iterator[Finding]], ...] = (run.findings, drafts.findings, output.findings)
ORDER = {"error": 0, "warning": 1, "note": 2}


def judge(summary: Summary, facts: Facts) -> list[Finding]:
    """What every theme finds, the most severe first."""
    found = [finding for theme in THEMES for finding in theme(summary, facts)]
    return sorted(found, key=lambda finding: ORDER[finding.severity])
