"""``images.lock.json`` in the working folder: which image a tag stood for when it was last used here.

A plan computes identities from it without asking an engine; ``action=prepare`` and every run write it.
"""

from __future__ import annotations

import json
from pathlib import Path

from filelock import FileLock

from orchestrator.config.names import ConfigError
from orchestrator.paths import write_whole

NAME = "images.lock.json"


def read(folder: Path) -> dict[str, str]:
    """Image (as configured) -> digest; empty where there is no lock yet. Raises ConfigError for one that is damaged."""
    try:
        return {str(image): str(digest) for image, digest in json.loads((folder / NAME).read_text()).items()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, AttributeError) as problem:
        raise ConfigError(
            str(folder / NAME),
            f"cannot be read as image -> digest ({problem})",
            hint="remove it: a run and action=prepare write it anew",
        ) from problem


def write(folder: Path, image: str, digest: str) -> None:
    """Keep the digest of one image; the others stay. Whole or not at all: several jobs of a sweep may write."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f".{NAME}"):
        known = read(folder)
        if known.get(image) == digest:
            return
        write_whole(folder / NAME, json.dumps({**known, image: digest}, indent=1, sort_keys=True) + "\n")
