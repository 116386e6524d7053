"""The architecture page names every module of the tree, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_and_the_tree_agree() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = {path.stem for folder in ("orchestrator", "runners") for path in (ROOT / folder).rglob("*.py")}
    tree |= {path.stem for path in (ROOT / "benchmarks").rglob("*.py")}
    assert set(re.findall(r"(\w+)\.py\b", page)) - tree == set(), "files that are gone"
    assert tree - set(re.findall(r"\w+", page)) == {"__init__"}, "files that are not named"
