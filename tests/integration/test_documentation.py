"""What the README and the docs tell to type can be typed, and what they link to is there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "experiments").rglob("*.md")),
    *sorted((ROOT / "containers").rglob("*.md")),
]
PLACEHOLDERS = ("NAME", "<", "mine")


def commands() -> list[str]:
    """Overrides of every command in the docs that starts or plans a comparison, placeholders left out."""
    found: set[str] = set()
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
            match = re.search(r"python -m orchestrator ([^`#]*\+experiment=[^`#]*)", line)
            if match and not any(word in match[1] for word in PLACEHOLDERS):
                found.add(" ".join(match[1].split()))
    return sorted(found)


def test_the_documentation_shows_commands() -> None:
    assert len(commands()) >= 8


@pytest.mark.parametrize("overrides", commands())
def test_a_documented_command_composes(overrides: str, tmp_path: Path) -> None:
    own = "experiment=block_sizes" in overrides  # the page that shows how to write an experiment
    if own:
        page = (ROOT / "docs" / "howto" / "add-an-experiment.md").read_text(encoding="utf-8")
        block = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
        assert block
        (tmp_path / "experiment").mkdir()
        (tmp_path / "experiment" / "block_sizes.yaml").write_text(block[1])
    words = ["--config-dir", str(tmp_path)] if own else []
    command = [sys.executable, "-m", "orchestrator", *words, *shlex.split(overrides), "action=plan"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "server starts" in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
