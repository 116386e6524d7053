"""What can be typed: the experiments, the groups and their options, read from the shipped configuration."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.paths import conf_dir

_INTRO = """\
Compares draft models for speculative decoding: starts a server per arm, measures them in turn on the same prompts, and
logs acceptance, throughput and memory.

    python -m orchestrator +experiment=NAME [key=value ...]        measure
    python -m orchestrator +experiment=NAME action=plan            print what would be done, start nothing
    python -m orchestrator -m +experiment=NAME drafter.block_size=4,8,16
                                                                   one comparison per value
    python -m orchestrator action=log run_dir=DIR                  log an earlier run or sweep to MLflow again
"""


def overview() -> str:
    """The experiments and what to type."""
    lines = ["Choose an experiment:", ""]
    names = {name: _description(file) for name, file in _options("experiment").items()}
    width = max((len(name) for name in names), default=0)
    for name, description in names.items():
        lines.append(f"    python -m orchestrator +experiment={name:<{width}}   {description}")
    return "\n".join([*lines, "", "python -m orchestrator --help shows what else can be chosen.", ""])


def full() -> str:
    """The help text."""
    lines = [_INTRO, "experiments (+experiment=)"]
    lines += [f"    {name:<20} {_description(file)}" for name, file in _options("experiment").items()]
    lines += ["", "groups (name=option)"]
    for group in _groups():
        lines.append(f"    {group:<20} {' | '.join(_options(group))}")
    lines += ["", f"keys, with what they mean: {conf_dir() / 'config.yaml'} and the group folders beside it"]
    lines += ["options: -m, --multirun   --cfg job   --config-dir DIR (your own groups)   --hydra-help", ""]
    return "\n".join(lines)


def _groups() -> list[str]:
    return [folder.name for folder in sorted(conf_dir().iterdir()) if folder.is_dir() and folder.name != "experiment"]


def _options(group: str) -> dict[str, Path]:
    return {file.stem: file for file in sorted((conf_dir() / group).glob("*.yaml"))}


def _description(file: Path) -> str:
    match = re.search(r"^description: *(.+)$", file.read_text(), re.MULTILINE)
    return match.group(1).strip("\"'") if match else ""
