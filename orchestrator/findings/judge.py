"""All findings of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from orchestrator.analysis.facts import Facts
from orchestrator.analysis.results import Summary
from orchestrator.findings import baseline, client, drafts, fairness, machine, noise, output, run
from orchestrator.findings.catalogue import Severity
from orchestrator.findings.finding import Finding, finding
from orchestrator.measuring.records import RequestRecord

THEMES: tuple[Callable[[Summary, Facts], Iterator[Finding]], ...] = (
    run.findings, noise.findings, machine.findings, client.findings, baseline.findings, drafts.findings,
    output.findings,
)  # fmt: skip
ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}


def judge(summary: Summary, facts: Facts, by_arm: Mapping[str, Sequence[RequestRecord]]) -> list[Finding]:
    """What every theme finds, the most severe first; an error that the config allows by name becomes a warning.

    ``by_arm``: the records of the measured phase.
    """
    found = [one for theme in THEMES for one in theme(summary, facts)]
    found += fairness.findings(summary, facts, by_arm)
    codes = {one.code for one in found}
    found += [
        finding("unused_allow", f"allow names {code}, which was not found: it would hide the next one.")
        for code in facts.allow
        if code not in codes
    ]
    found = [_allowed(one) if one.code in facts.allow else one for one in found]
    return sorted(found, key=lambda one: ORDER[one.severity])


def _allowed(found: Finding) -> Finding:
    text = found.text.removesuffix(" No ratio is stated.")
    return found.model_copy(update={"severity": "warning", "allowed": True, "text": f"{text} Allowed by the config."})
