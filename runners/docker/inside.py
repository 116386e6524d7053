"""What is read from inside a running container: the tokenizer's files, and peak memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runners.base import ServerFailure
from runners.hugging_face import found, looking
from runners.process import peak_bytes

_TOKENIZER_FILES = ("tokenizer_config.json", "chat_template.jinja")
_HELPERS = frozenset({"docker-init", "tini", "catatonit", "sh", "cat"})
"""Processes of a container that are not the server's."""


def copy_tokenizer(container: Any, path: str, revision: str | None, folder: Path) -> Path:
    """Copy the files that hold the chat template out of a container.

    ``path``: folder in the container, or a Hugging Face id that lies in its cache. Returns ``folder``. Raises
    ServerFailure (``tokenizer``) where there are none.
    """
    if not path.startswith("/"):
        path = _resolved(container, path, revision)
    folder.mkdir(parents=True, exist_ok=True)
    found = 0
    for name in _TOKENIZER_FILES:
        code, content = _run(container, ["cat", f"{path}/{name}"])  # not get_archive: cached files are links
        if code == 0:
            (folder / name).write_bytes(content)
            found += 1
    if not found:
        raise ServerFailure("tokenizer", f"the server's folder {path} holds neither {' nor '.join(_TOKENIZER_FILES)}")
    return folder


def peak_memory_bytes(container: Any) -> int | None:
    """Sum of the server's processes' peak resident sizes, bytes: the same figure as for a process of this machine.

    Not the peak of the container's control group, which counts what the kernel keeps of the files that were read.
    """
    code, content = _run(container, ["sh", "-c", "cat /proc/[0-9]*/status 2>/dev/null"])
    del code  # of processes that ended meanwhile
    return sum_of_peaks(content.decode(errors="replace"))


def sum_of_peaks(text: str) -> int | None:
    """From ``/proc/*/status`` of several processes, one after another."""
    peaks = []
    for block in re.split(r"^(?=Name:)", text, flags=re.MULTILINE):
        name = re.match(r"Name:\s*(.*)", block)
        peak = peak_bytes(block)
        if name and peak is not None and name[1] not in _HELPERS:
            peaks.append(peak)
    return sum(peaks) if peaks else None


def _resolved(container: Any, name: str, revision: str | None) -> str:
    code, content = _run(container, looking(["python3"], name, revision, online=False))
    if code != 0:
        said = content.decode(errors="replace").strip()[-300:]
        raise ServerFailure("tokenizer", f"the folder of {name} is not found in the container's cache: {said}")
    return found(content.decode()).folder


def _run(container: Any, words: Sequence[str]) -> tuple[int, bytes]:
    code, (output, errors) = container.exec_run(list(words), demux=True)
    return int(code or 0), (output or b"") if code == 0 else (output or b"") + (errors or b"")
