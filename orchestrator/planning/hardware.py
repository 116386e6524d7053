"""The machine: what decides whether containers or the embedded engine serve, and what figures were measured on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Gpus:
    """NVIDIA GPUs that a process started here would see."""

    names: tuple[str, ...] = ()
    driver: str | None = None
    uuids: tuple[str, ...] = field(default=(), compare=False)
    """In the order of ``names``; empty where they cannot be told."""


@dataclass(frozen=True)
class Cpu:
    model: str
    cores: int
    """Physical cores this process may use."""
    threads: int
    """Logical ones."""


@dataclass(frozen=True)
class Machine:
    """One that serves: this one, or a node."""

    cpu: Cpu
    gpus: Gpus

    @property
    def content(self) -> dict[str, Any]:
        """What identity knows of it."""
        return {"cpu": asdict(self.cpu), "gpus": list(self.gpus.names), "driver": self.gpus.driver}

    @property
    def shown(self) -> str:
        """In words, for the head of a report."""
        names, cpu = self.gpus.names, self.cpu
        if names:
            return f"{len(names)}x {names[0]}" if len(set(names)) == 1 else ", ".join(names)
        return f"{cpu.model}, {cpu.cores} core{'s' if cpu.cores != 1 else ''}"


QUERY = ("nvidia-smi", "--query-gpu=name,driver_version,uuid", "--format=csv,noheader")
"""Prints what ``parse_gpus`` reads."""


def here() -> Machine:
    return Machine(cpu(), gpus())


@cache
def gpus() -> Gpus:
    """Asks NVML where its Python binding is installed, else nvidia-smi; never imports torch. Takes under a second."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return Gpus()
    return _gpus_by_nvml() or _gpus_by_nvidia_smi() or Gpus()


def _gpus_by_nvml() -> Gpus | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        names = tuple(_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles)
        uuids = tuple(_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles)
        return Gpus(names, _text(pynvml.nvmlSystemGetDriverVersion()), uuids) if names else None
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _gpus_by_nvidia_smi() -> Gpus | None:
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        # A driver that hangs must not hang the plan.
        answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_gpus(answer)


def parse_gpus(text: str) -> Gpus | None:
    """From what ``QUERY`` printed; None where it names no GPU."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if "," in line]
    if not rows:
        return None
    return Gpus(tuple(row[0] for row in rows), rows[0][1], tuple(row[2] for row in rows if len(row) > 2))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


@cache
def cpu() -> Cpu:
    """Model and cores, from /proc/cpuinfo where there is one."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    try:
        described = _cpuinfo(Path("/proc/cpuinfo").read_text())
    except OSError:
        described = {}
    return _cpu(described, allowed)


def parse_cpu(text: str) -> Cpu:
    """From another machine's /proc/cpuinfo, all of whose processors a server may use."""
    described = _cpuinfo(text)
    return _cpu(described, set(described))


def _cpu(described: dict[int, dict[str, str]], allowed: set[int]) -> Cpu:
    mine = [described[number] for number in sorted(allowed) if number in described]
    cores = {(row.get("physical id"), row.get("core id", number)) for number, row in enumerate(mine)}
    model = mine[0].get("model name") if mine else None
    return Cpu(model or platform.processor() or platform.machine(), len(cores) or len(allowed), len(allowed))


def _cpuinfo(text: str) -> dict[int, dict[str, str]]:
    """Logical processor -> its rows."""
    processors: dict[int, dict[str, str]] = {}
    for block in text.split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        rows = {key.strip(): value.strip() for key, colon, value in pairs if colon}
        if rows.get("processor", "").isdigit():
            processors[int(rows["processor"])] = rows
    return processors
