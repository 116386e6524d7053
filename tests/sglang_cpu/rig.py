"""A real SGLang 0.5.23 that serves on a CPU: an environment of its own, made once, and how the orchestrator is told of
it. Its figures of speed mean nothing, and its verification of trees is greedy whatever the temperature."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runners.engine.fetch import cache_directory
from runners.process import ProcessRunner
from runners.sglang.software import SglangSoftware

HERE = Path(__file__).parent
STAND_INS = HERE / "stand_ins"
REQUIREMENTS = (HERE / "requirements.txt", HERE / "requirements-without-dependencies.txt")
CONSTRAINTS = HERE.parents[1] / "constraints.txt"
VARIABLE = "SGLANG_CPU_VENV"
"""Names a ready environment to use in place of the one in the user's cache."""


def python() -> Path:
    """The interpreter that has SGLang; the first call makes its environment, which takes minutes and 2 GB."""
    if (given := os.environ.get(VARIABLE)) is not None:
        return Path(given) / "bin/python"
    folder = cache_directory() / "sglang-cpu-0.5.23"
    stamp = folder / "made-of.sha256"
    wanted = hashlib.sha256(b"".join(file.read_bytes() for file in REQUIREMENTS)).hexdigest()
    if not stamp.is_file() or stamp.read_text() != wanted:
        _make(folder)
        stamp.write_text(wanted)
    return folder / "bin/python"


def _make(folder: Path) -> None:
    if shutil.which("g++") is None:  # SGLang compiles its n-gram drafter at its first start
        raise RuntimeError("there is no g++ here: apt-get install g++")
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    torch = next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))
    subprocess.run([*install, torch, "-r", str(REQUIREMENTS[0])], check=True)
    subprocess.run([*install, "--no-deps", "-r", str(REQUIREMENTS[1])], check=True)


def environment() -> dict[str, str]:
    """Variables of its server."""
    return {
        "PATH": f"{python().parent}:{os.environ['PATH']}",  # ninja
        "PYTHONPATH": str(STAND_INS),
        "SGLANG_PLUGINS": "cpu_stand_ins",
        "SGLANG_USE_CPU_ENGINE": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }


def overrides(target: Path) -> list[str]:
    """Overrides of the orchestrator's command that serve the small target on it."""
    command = f"[{python()},-m,sglang.launch_server]"
    server_args = {
        "device": "cpu",
        "disable-cuda-graph": "true",
        # SGLang turns it off for drafters on a CPU; then it is off for all.
        "disable-overlap-schedule": "true",
        "skip-server-warmup": "true",
        "enable-metrics": "true",
        "max-total-tokens": "8192",  # else it takes most of the machine's memory
    }
    return [
        "preset=gpu", "runner=process", f"runner.command={command}", "attention=intel_amx",
        "target=hf_folder", f"target.path={target}", "target.name=smollm2_135m", "target.dtype=float32",
        "target.max_running_requests=4",
        *(f"+server_args.{flag}={value}" for flag, value in server_args.items()),
        *(f"+env.{name}='{value}'" for name, value in environment().items()),
    ]  # fmt: skip


def one_server(
    target: Path, arm: Sequence[str], *more: str, software: type[SglangSoftware] = SglangSoftware
) -> tuple[ProcessRunner, dict[str, Any]]:
    """A runner as the command makes it, and the server config of one arm."""
    from orchestrator.config.compose import load

    words = ",".join(f'"{word}"' for word in arm)
    arms = [f"+arms.one=[{words}]", '+arms.plain=["drafter=none"]']
    chosen = ["name=one", "suite=smoke_2", "varies=[drafter]", *arms, *overrides(target), *more]
    entered, ready_s = (str(python()), "-m", "sglang.launch_server"), 300.0
    runner = ProcessRunner(
        lambda config, _: (config, software(config, entered, entered[:1])), None, ready_s, entered[:1]
    )
    return runner, load(chosen).configs["one"].server


if __name__ == "__main__":  # makes the environment ahead of the tests
    print(python())
