"""The command as a process, for tests: one small comparison on the real engine, outside of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
COMMAND = [
    sys.executable, "-m", "orchestrator", "+experiment=embedded_drafters", "~arms.dflash2", "~arms.dspine",
    "suite=smoke_2", "tracking=none", "runner=embedded",
]  # fmt: skip
# Looks of a path: the command runs outside of the checkout, as a user's does.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def start(place: Path, *overrides: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *overrides], cwd=place, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@contextmanager
def going(place: Path, seen: Callable[[], Any], *overrides: str) -> Iterator[subprocess.Popen[str]]:
    """A run that has got to where ``seen`` holds; killed on the way out."""
    run = start(place, *overrides)
    try:
        eventually(lambda: seen() or run.poll() is not None)
        assert run.poll() is None, run.communicate()[0]
        yield run
    finally:
        run.kill()
        run.wait()


def processes(place: Path, module: str) -> list[psutil.Process]:
    """Processes of a module that were started from a working directory and live."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            mine = module in (process.info["cmdline"] or []) and Path(process.cwd()) == place
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def eventually(condition: Callable[[], Any], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not _holds(condition):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def _holds(condition: Callable[[], Any]) -> bool:
    """A folder that goes while it is being looked through (Python 3.11 raises then) is looked through again."""
    try:
        return bool(condition())
    except FileNotFoundError:
        return False
