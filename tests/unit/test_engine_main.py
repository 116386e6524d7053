"""What the engine's process sets up before it loads anything heavy."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("given", "effective"), [(None, "2000"), ("1000", "1000")])
def test_waiting_threads_spin_shortly_unless_told_otherwise(given: str | None, effective: str) -> None:
    """Asked of OpenMP itself, which prints its settings when torch loads it."""
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE"} | ({"GOMP_SPINCOUNT": given} if given else {})
    command = [sys.executable, "-c", "import runners.engine.__main__, torch"]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr
    assert f"GOMP_SPINCOUNT = '{effective}'" in said
