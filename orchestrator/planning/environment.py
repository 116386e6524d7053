"""What a run was made with: written beside its records, part of no identity."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from typing import Any

from orchestrator.paths import package_root
from orchestrator.planning import hardware
from orchestrator.planning.identity import package_version

_PACKAGES = (
    "spec-orchestrator", "aiohttp", "hydra-core", "llvmlite", "mlflow", "numpy", "omegaconf", "pydantic", "safetensors",
    "tokenizers", "torch", "transformers", "uvloop",
)  # fmt: skip


def describe() -> dict[str, Any]:
    """Versions, machine and the commit of the program; nothing is imported for it."""
    cpu = hardware.cpu()
    gpus = hardware.gpus()
    return {
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


def machine() -> str:
    """The machine in words, for the head of a report."""
    gpus = hardware.gpus().names
    if gpus:
        return f"{len(gpus)}x {gpus[0]}" if len(set(gpus)) == 1 else ", ".join(gpus)
    cpu = hardware.cpu()
    return f"{cpu.model}, {cpu.cores} core{'s' if cpu.cores != 1 else ''}"


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
