"""Two orchestrators of one machine never have the same GPU; a dead one has none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.planning.hardware import Gpus
from runners.base import ServerFailure
from runners.gpu_lock import GpuFiles, identifiers

TAKES = """
import sys, time
from pathlib import Path
from runners.gpu_lock import GpuFiles
GpuFiles(sys.argv[2:], Path(sys.argv[1])).take()
print("taken", flush=True)
time.sleep(60)
"""


def other(folder: Path, *gpus: str) -> subprocess.Popen[str]:
    """Another process that has taken them."""
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", TAKES, str(folder), *gpus],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(root)},
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "taken\n"
    return process


def test_a_gpu_that_is_taken_is_refused_by_who_has_it_until_that_one_is_gone(tmp_path: Path) -> None:
    theirs = other(tmp_path, "GPU-a", "GPU-b")
    try:
        mine = GpuFiles(["GPU-c", "GPU-b"], tmp_path)
        with pytest.raises(ServerFailure, match=rf"GPU-b of this machine .*process {theirs.pid}, .*node.gpus") as busy:
            mine.take()
        assert busy.value.cause == "gpu_busy"
        free = GpuFiles(["GPU-c"], tmp_path)
        free.take()  # what was had before the refusal was given back
        free.release()
    finally:
        theirs.kill()  # as the kernel would, without a word
        theirs.wait()
    mine.take()
    mine.release()


def test_released_is_free(tmp_path: Path) -> None:
    first, second = GpuFiles(["0"], tmp_path), GpuFiles(["0"], tmp_path)
    first.take()
    with pytest.raises(ServerFailure, match="in use by another orchestrator"):
        second.take()
    first.release()
    second.take()
    second.release()


def test_a_gpu_has_one_name_however_it_was_chosen() -> None:
    gpus = Gpus(("H100", "H100"), "1", ("GPU-aa11", "GPU-bb22"))
    assert identifiers([1, "GPU-bb", "1"], gpus) == ["GPU-bb22"] * 3
    assert identifiers([0], Gpus()) == ["0"], "nobody says which it is"
