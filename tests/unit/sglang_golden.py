"""Golden files of SGLang's command lines: one a version, in it every shipped drafter on each of its targets."""

from __future__ import annotations

import shlex
from pathlib import Path

from runners.sglang.config import ServerConfig
from runners.sglang.flags import launch
from runners.sglang.rules import violations
from runners.sglang.version import of
from tests.unit.sglang_arms import PAIRS, server

FOLDER = Path(__file__).parent / "golden_sglang"


def path(version: str) -> Path:
    return FOLDER / f"{version}.txt"


def title(drafter: str, target: str) -> str:
    return f"{drafter} on {target}"


def render(version: str) -> str:
    """The file as it should be: for each pair its title, what is refused, the environment, the flags, the notes."""
    return "\n".join(_pair(drafter, target, version) for drafter, target in PAIRS)


def lines(version: str) -> dict[str, list[str]]:
    """The command lines in the file, without the command itself: title -> words."""
    found: dict[str, list[str]] = {}
    for block in path(version).read_text(encoding="utf-8").split("\n\n"):
        head, *rest = block.splitlines()
        found[head.removeprefix("# ")] = [word for line in rest if line.startswith("--") for word in shlex.split(line)]
    return found


def _pair(drafter: str, target: str, version: str) -> str:
    config = ServerConfig.model_validate(server(f"target={target}", drafter=drafter, version=version))
    start = launch(config, of(version), "127.0.0.1", 30000, "name-of-this-start")
    flags: list[str] = []
    for word in start.words()[2:]:
        if word.startswith("--"):
            flags.append(word)
        else:
            flags[-1] += f" {shlex.quote(word)}"
    told = [
        f"# {title(drafter, target)}",
        *(f"refused: {violation}" for violation in violations(config, of(version), 0.0)),
        *(f"env {name}={value}" for name, value in start.env.items()),
        "sglang serve",
        *flags,
        *(f"note: {note}" for note in start.notes),
    ]
    return "\n".join(told) + "\n"
