"""The command that serves what a comparison found to be fastest."""

from __future__ import annotations

import shlex

from orchestrator.analysis.results import Arm, Summary
from orchestrator.config.masking import MASK
from orchestrator.report import table

PORT = 30000
_OF_THE_RUN = ("--parent-pid", "--user")
"""Options with a value that belong to one start of a measurement."""


def winner(summary: Summary) -> Arm | None:
    """The fastest arm, where it is shown to be faster than the plain one: no finding takes the comparison back, and the
    95% interval of its speedup lies above 1."""
    if summary.withheld or not (found := table.ranking(summary)):
        return None
    arm, speedup = found[0]
    doubtful = any(finding.code in table.UNDECIDED for finding in summary.findings)
    return arm if not doubtful and speedup.low is not None and speedup.low > 1 else None


def told(summary: Summary) -> list[str]:
    """Lines for the end of a run; nothing where no two arms were compared."""
    if not table.ranking(summary):
        return []
    arm = winner(summary)
    if arm is None or not arm.command:
        return ["No arm is shown to be faster than the plain one, so no command to serve it is given."]
    tag = f" [{table.EMBEDDED_TAG}]" if summary.embedded else ""
    return [f"To serve {arm.title}{tag} on port {PORT}:", f"  {shlex.join(command(arm, summary.target))}"]


def command(arm: Arm, target: str) -> list[str]:
    """The arm's start without what belongs to its measurement: a name of its own, a port that happened to be free, the
    process that it ended with. On loopback, as it was measured: who serves others chooses the address."""
    words: list[str] = []
    given = iter(arm.command)
    in_container = arm.command[:2] == ["docker", "run"]
    for word in given:
        if word == "--served-model-name":
            next(given, None)
            words += [word, target]
        elif word == "--publish":
            inside = next(given, "").rpartition(":")[2]
            words += [word, f"127.0.0.1:{PORT}:{inside}"]
        elif word == "--port" and not in_container:
            next(given, None)
            words += [word, str(PORT)]
        elif word in _OF_THE_RUN:
            next(given, None)
        else:
            words.append(word)
    # A value that was hidden is no value to serve with: a variable is inherited, a flag's has to be filled in.
    kept = [word for word in words if not word.endswith(f"={MASK}") or word.startswith("--")]
    return [word.replace(MASK, "<hidden>") for word in kept]
