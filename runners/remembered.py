"""What a command said once, kept in the user's cache: for questions whose answer cannot change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress

from orchestrator.paths import write_whole
from runners.engine.fetch import cache_directory


def remembered(folder: str, question: Sequence[object], ask: Callable[[], str]) -> str:
    """The answer that is kept for a question (plain data, all that decides the answer), else that of ``ask``, which is
    kept then. ``folder``: of the cache. A cache that cannot be read or written is asked for nothing. Raises what
    ``ask`` raises."""
    key = hashlib.sha256(json.dumps(question).encode()).hexdigest()[:24]
    kept = cache_directory() / folder / f"{key}.txt"
    with suppress(OSError):
        return kept.read_text()
    said = ask()
    with suppress(OSError):
        write_whole(kept, said)
    return said
