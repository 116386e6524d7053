"""Shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

# Before numpy or torch is imported anywhere: no display, and no more threads than the machine this is meant for has.
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as the engine's process does


@pytest.fixture(scope="session")
def target_folder() -> Path:
    """The small target in Hugging Face's layout, fetched into the user's cache on first use."""
    from runners.engine.fetch import ensure_model

    return ensure_model("smollm2_135m")


@pytest.fixture(scope="session", autouse=True)
def _no_process_is_left_running() -> Iterator[None]:
    """A server that outlives the tests is a bug of the runner or of the test that started it."""
    yield
    left = []
    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline())
        except psutil.NoSuchProcess:
            continue
        if child.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in command:  # Python's own helper
            left.append(f"{child.pid} {command}")
    assert left == [], "processes are left running"
