from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.planning import hardware


@pytest.fixture(autouse=True)
def _asks_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(hardware, "_gpus_by_nvml", lambda: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    hardware.gpus.cache_clear()
    yield
    hardware.gpus.cache_clear()


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


def test_gpus_are_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, monkeypatch, "echo 'NVIDIA H200, 570.86.15'; echo 'NVIDIA H200, 570.86.15'")
    assert hardware.gpus() == hardware.Gpus(("NVIDIA H200", "NVIDIA H200"), "570.86.15")


def test_a_driver_that_does_not_answer_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, monkeypatch, "echo 'NVIDIA-SMI has failed, because it could not reach the driver'; exit 9")
    assert hardware.gpus() == hardware.Gpus()


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_are_not_seen(hidden: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, monkeypatch, "echo 'NVIDIA H200, 570.86.15'")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert hardware.gpus() == hardware.Gpus()


def test_no_nvidia_smi_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hardware.gpus() == hardware.Gpus()


def test_two_threads_of_one_core_are_one_core() -> None:
    rows = hardware._cpuinfo(
        "processor\t: 0\nmodel name\t: A: B\nphysical id\t: 0\ncore id\t: 0\n\n"
        "processor\t: 1\nmodel name\t: A: B\nphysical id\t: 0\ncore id\t: 0\n\n"
    )
    assert {(row["physical id"], row["core id"]) for row in rows.values()} == {("0", "0")}
    assert rows[1]["model name"] == "A: B"


def test_this_machine_has_a_core() -> None:
    cpu = hardware.cpu()
    assert 1 <= cpu.cores <= cpu.threads
    assert cpu.model
