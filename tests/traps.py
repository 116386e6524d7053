"""What the tests of traps share: synthetic runs with one thing wrong, and the findings of that name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from orchestrator.analysis.facts import Facts
from orchestrator.analysis.results import Arm, Summary
from orchestrator.measuring.records import RequestRecord
from tests import synthetic


def found(summary: Summary, code: str) -> list[tuple[str, str | None]]:
    """(severity, arm) of each finding of that name."""
    return [(finding.severity, finding.arm) for finding in summary.findings if finding.code == code]


def changed(
    run: list[RequestRecord], arm: str, change: Callable[[RequestRecord], dict[str, Any]]
) -> list[RequestRecord]:
    return [one.model_copy(update=change(one)) if one.arm == arm else one for one in run]


def served(arm: str, **change: Any) -> Facts:
    """Facts in which the servers of one arm report something else."""
    facts = synthetic.facts()
    sessions = [
        replace(session, identity={**session.identity, **change}) if session.arm == arm else session
        for session in facts.sessions
    ]
    return replace(facts, sessions=sessions)


def asked(arm: str, **change: Any) -> Facts:
    """Facts in which the configuration of one arm says something else."""
    facts = synthetic.facts()
    return replace(facts, arms=[replace(one, **change) if one.name == arm else one for one in facts.arms])


def arm(summary: Summary, name: str) -> Arm:
    return next(one for one in summary.arms if one.name == name)
