"""One finding."""

from __future__ import annotations

from orchestrator.findings.catalogue import CATALOGUE, Severity
from orchestrator.frozen import Frozen


class Finding(Frozen):
    """Something a reader must know before using the figures."""

    severity: Severity
    code: str
    """Its name in the catalogue, for example ``tau_near_one``."""
    text: str
    arm: str | None = None
    allowed: bool = False
    """An error that the config allows by name; its severity is then a warning."""

    @property
    def withholds(self) -> bool:
        """Whether no ratio of the comparison may be stated while it stands."""
        return self.severity == "error" and CATALOGUE[self.code].withholds


def finding(code: str, text: str, arm: str | None = None) -> Finding:
    """A finding with the severity of its name. Raises KeyError for a name that the catalogue does not have."""
    return Finding(severity=CATALOGUE[code].severity, code=code, text=text, arm=arm)
