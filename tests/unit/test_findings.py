"""The catalogue of findings, its page, and the rules of all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.findings.catalogue import CATALOGUE, ERRORS
from orchestrator.findings.finding import finding

ROOT = Path(__file__).resolve().parents[2]
SOURCES = "\n".join(path.read_text() for path in (ROOT / "orchestrator").rglob("*.py") if path.stem != "catalogue")


def test_the_page_lists_every_finding_with_its_severity() -> None:
    page = (ROOT / "docs/reference/findings.md").read_text()
    listed = {
        code: (severity, says) for code, severity, says in re.findall(r"^\| `(\w+)` \| ([^|]+) \| (.+) \|$", page, re.M)
    }
    expected = {
        code: (entry.severity + (", refuses" if entry.withholds else ""), entry.says)
        for code, entry in CATALOGUE.items()
    }
    assert listed == expected


@pytest.mark.parametrize("code", CATALOGUE)
def test_every_finding_is_found_somewhere(code: str) -> None:
    assert f'"{code}"' in SOURCES


def test_only_errors_refuse_and_only_errors_can_be_allowed() -> None:
    assert {code for code, entry in CATALOGUE.items() if entry.withholds} <= set(ERRORS)
    assert set(ERRORS) == {code for code, entry in CATALOGUE.items() if entry.severity == "error"}


def test_a_name_that_the_catalogue_does_not_have_cannot_be_used() -> None:
    with pytest.raises(KeyError):
        finding("no_such_finding", "text")
    assert finding("unfair_engine", "text").withholds
    assert not finding("not_lossless", "text").withholds


def test_findings_that_the_trap_page_names_exist() -> None:
    page = (ROOT / "docs/explanation/traps.md").read_text()
    named = set(re.findall(r"\(`(\w+)`", page))
    assert named and named <= set(CATALOGUE)
