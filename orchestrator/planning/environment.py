"""What a run was made with: written beside its records, part of no identity."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from orchestrator.paths import package_root
from orchestrator.planning import hardware
from orchestrator.planning.identity import package_version

_PACKAGES = (
    "spec-orchestrator", "aiohttp", "hydra-core", "llvmlite", "mlflow", "numpy", "omegaconf", "pydantic", "safetensors",
    "tokenizers", "torch", "transformers", "uvloop",
)  # fmt: skip


def describe(nodes: Mapping[str, hardware.Machine] | None = None) -> dict[str, Any]:
    """Versions, machine and the commit of the program; nothing is imported for it.

    ``nodes``: other machines that serve, by the place that is shown of them; ``machine`` is then them, in words.
    """
    cpu, gpus = hardware.cpu(), hardware.gpus()
    nodes = nodes or {}
    served = [f"{node.shown} ({place})" for place, node in nodes.items()] or [hardware.here().shown]
    return {
        "machine": ", ".join(served),
        "nodes": {place: node.content for place, node in nodes.items()},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu.model,
        "cores": cpu.cores,
        "threads": cpu.threads,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": list(gpus.names),
        "driver": gpus.driver,
        "load_average": list(os.getloadavg()),
        "command": sys.argv,
        "packages": {name: version for name in _PACKAGES if (version := package_version(name)) is not None},
        **_commit(),
    }


def _commit() -> dict[str, Any]:
    """Commit of the checkout that the program runs from; empty for an installed wheel."""
    folder = package_root()
    if not (folder / ".git").exists():
        return {}

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"git_commit": git("rev-parse", "HEAD"), "git_dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):  # no git here, or a checkout of another user
        return {}
