"""Adds a new version to `known_flags.txt` and `known_env.txt`; run by whoever teaches this project a new SGLang.

    docker run --rm IMAGE sglang serve --help > help.txt
    python -m runners.sglang.add_version 0.5.24 help.txt FOLDER_OF_THE_SGLANG_PACKAGE

Then `version.KNOWN` gets the version, and docs/reference/sglang.md says what else to look at.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from runners.sglang.help_check import parse_help
from runners.sglang.version import NEWEST, of

_VARIABLE = re.compile(r"\b(?:SGLANG|SGL)_[A-Z0-9_]*[A-Z0-9]\b")


def flag_rows(help_text: str) -> dict[str, str]:
    """Spelling -> what `known_flags.txt` says of it before the versions."""
    found = parse_help(help_text).values()
    return {flag.name: f"{flag.name} {flag.canonical} {flag.takes}" for flag in found if flag.name != "help"}


def variable_rows(sources: Iterable[str]) -> dict[str, str]:
    """Every name that the sources of SGLang spell out: declared ones, and those read directly."""
    return {name: name for text in sources for name in _VARIABLE.findall(text)}


def extended(table: str, rows: Mapping[str, str], version: str, before: str) -> str:
    """A table with one version more. ``before`` is the newest version that it knew."""
    lines = table.splitlines()
    comments = [line for line in lines if line.startswith("#")]
    told: list[str] = []
    left = dict(rows)
    for line in lines:
        if line.startswith("#") or not line:
            continue
        start, first, last = line.rsplit(" ", 2)
        name = line.split()[0]
        if last == "-" and left.get(name) == start:
            del left[name]
        elif last == "-":
            last = before
        told.append(f"{start} {first} {last}")
    told += [f"{row} {version} -" for row in left.values()]
    return "\n".join([*comments, *sorted(told)]) + "\n"


def main(version: str, help_file: str, package: str) -> None:
    folder = Path(__file__).parent
    sources = (path.read_text(encoding="utf-8", errors="replace") for path in sorted(Path(package).rglob("*.py")))
    for file, rows in (
        ("known_flags.txt", flag_rows(Path(help_file).read_text(encoding="utf-8"))),
        ("known_env.txt", variable_rows(sources)),
    ):
        path = folder / file
        path.write_text(extended(path.read_text(encoding="utf-8"), rows, str(of(version)), str(NEWEST)), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
