"""Folders of the node that containers mount: where ``~`` is there, and that they exist before an engine is asked."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from runners.base import ServerFailure
from runners.docker.connect import Connection

_LONGEST_S = 30


def absolute(connection: Connection, path: str) -> str:
    """A path as the node's engine takes it. Raises ServerFailure where its ``~`` cannot be told."""
    if not connection.remote:
        return os.path.abspath(os.path.expanduser(path))
    if path == "~" or path.startswith("~/"):
        return _on_node(connection, ["sh", "-c", 'echo "$HOME"'], path) + path[1:]
    return path


def make_folders(connection: Connection, folders: Sequence[str]) -> None:
    """An engine refuses to mount what is not there. Raises ServerFailure."""
    if connection.remote:
        if not connection.shell:  # then its engine says which folder is missing
            return
        _on_node(connection, ["mkdir", "-p", *folders], " ".join(folders))
        return
    for folder in folders:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise ServerFailure("mount_missing", f"{folder} cannot be made: {problem.strerror}") from problem


def refuse_missing(paths: Iterable[str]) -> None:
    """Raises ServerFailure for what is not on this machine."""
    for path in paths:
        if not Path(path).exists():
            raise ServerFailure("mount_missing", f"the node has no {path}: a folder that is mounted has to be there")


def _on_node(connection: Connection, words: Sequence[str], path: str) -> str:
    command = connection.words(*words)
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as problem:
        said = getattr(problem, "stderr", None) or problem
        raise ServerFailure(
            "mount_missing",
            f"{path} on the node: {shlex.join(words)} cannot be run there ({said}); give a path that is there",
        ) from problem
