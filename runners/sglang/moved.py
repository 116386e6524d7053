"""Flags that changed their name: a config may use any of the names, a version gets the one it knows."""

from __future__ import annotations

from runners.sglang import known
from runners.sglang.version import KNOWN, Version

_NAMES = (
    # The newest name first.
    ("cuda-graph-bs-decode", "cuda-graph-bs"),
    ("cuda-graph-bs-prefill", "piecewise-cuda-graph-tokens"),
    ("cuda-graph-max-bs-decode", "cuda-graph-max-bs"),
    ("cuda-graph-max-bs-prefill", "piecewise-cuda-graph-max-tokens"),
    ("dsa-decode-backend", "nsa-decode-backend"),
    ("dsa-prefill-backend", "nsa-prefill-backend"),
    ("enable-linear-replayssm-spec", "enable-gdn-replayssm-spec"),
    (
        "enable-prefill-cp",
        "enable-prefill-context-parallel",
        "enable-dsa-prefill-context-parallel",
        "enable-nsa-prefill-context-parallel",
    ),
    ("incremental-streaming-output", "stream-output"),
    ("mamba-radix-cache-strategy", "mamba-scheduler-strategy"),
    ("speculative-draft-window-size", "speculative-dflash-draft-window-size"),
)
_NEWEST = {name: names[0] for names in _NAMES for name in names}
_OF = {names[0]: names for names in _NAMES}


def newest_name(flag: str) -> str:
    """The name under which this project speaks of a flag: never an alias, never an old name. An unknown one stays."""
    renamed = _NEWEST.get(flag, flag)
    for version in reversed(KNOWN):
        if (entry := known.flags(version).get(renamed)) is not None:
            return _NEWEST.get(entry.canonical, entry.canonical)
    return renamed


def name_in(version: Version, flag: str) -> str | None:
    """What the version calls a flag given by its newest name; None where it has none."""
    has = known.flags(version)
    return next((name for name in _OF.get(flag, (flag,)) if name in has), None)
