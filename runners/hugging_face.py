"""Models by their Hugging Face id, looked at or fetched where the server runs: its cache is the one that counts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LOOK = """
import json, os, sys
from pathlib import Path
name, revision, online = sys.argv[1], sys.argv[2] or None, sys.argv[3] == "online"
folder = Path(name)
if not folder.is_dir():
    from huggingface_hub import snapshot_download
    try:
        folder = Path(snapshot_download(name, revision=revision, local_files_only=not online))
    except Exception as error:  # of many kinds, whose first line says what it is
        sys.exit(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
weights = list(folder.glob("*.safetensors")) or list(folder.glob("*.bin"))  # some have both: one is loaded
size = sum(os.path.getsize(file) for file in weights)
config = folder / "config.json"
told = json.loads(config.read_text()) if config.is_file() else {}
print(json.dumps({"folder": str(folder), "bytes": size, "config": told}))
"""


@dataclass(frozen=True)
class Found:
    """A model that is there."""

    folder: str
    """Where the server runs."""
    weights_bytes: int
    config: Mapping[str, Any]
    """Its ``config.json``; empty where it has none."""

    @property
    def commit(self) -> str | None:
        """The revision that a name stood for; None for a folder of the user's own."""
        path = Path(self.folder)
        return path.name if path.parent.name == "snapshots" else None


def looking(python: Sequence[str], name: str, revision: str | None, online: bool) -> list[str]:
    """Command whose last line is what `found` reads; it fails where the model is not there.

    ``python``: an interpreter that has huggingface_hub, which every SGLang brings. ``online``: the command fetches what
    is not in the cache.
    """
    return [*python, "-c", _LOOK, name, revision or "", "online" if online else "offline"]


def found(said: str) -> Found:
    told = json.loads(said.strip().splitlines()[-1])
    return Found(told["folder"], told["bytes"], told["config"])
