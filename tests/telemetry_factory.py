"""Writes telemetry files for tests, sample by sample; every figure in them is made up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import orjson

GPU: dict[str, Any] = {
    "used_bytes": 70 * 2**30,
    "processes": {"100": 69 * 2**30},
    "utilisation": 0.9,
    "power_w": 500.0,
    "energy_j": 0.0,
    "sm_mhz": 1755,
    "memory_mhz": 3201,
    "temperature_c": 60,
    "reasons": 0,
}
SERVER: dict[str, Any] = {"pids": [100], "rss_bytes": 2**30, "cpu_s": 0.0}


def write(
    path: Path,
    times: Iterable[float],
    gpu: Callable[[float], dict[str, Any]] | None = None,
    server: Callable[[float], dict[str, Any] | None] = lambda time: {**SERVER, "cpu_s": 1.5 * time},
    host: Callable[[float], dict[str, Any]] | None = None,
    offset: float = 0.0,
    end: dict[str, Any] | None = None,
    absent: str | None = None,
) -> Path:
    """A file with a sample at each of ``times`` (client's clock); ``gpu``, ``server`` and ``host`` (of a
    node of two cores; None: as samplers wrote before they knew it) give what a sample holds.

    ``offset``: the sampler's clock is ahead by so much.
    """
    gpus = [{"name": "NVIDIA H200", "uuid": "GPU-0"}] if gpu else []
    lines: list[dict[str, Any]] = [
        {"kind": "start", "schema": 1, "gpus": gpus, "gpus_absent": absent, "processes_absent": None}
    ]
    if host:
        lines[0]["cores"] = 2
    for time in times:
        sample = {"kind": "sample", "mono": time + offset, "wall": 1e9 + time, "cpu_s": 0.01 * time}
        known = {"host": host(time)} if host else {}
        lines.append(sample | known | {"gpus": [{**GPU, **gpu(time)}] if gpu else [], "server": server(time)})
    lines.append({"kind": "clock", "sent": 0.0, "received": 0.002, "sampler": offset + 0.001})
    lines.append(end or {"kind": "end", "code": 0, "said": ""})
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return path


def tenths(start: float, end: float) -> list[float]:
    """Every 0.1 s."""
    return [round(start + 0.1 * place, 3) for place in range(round(10 * (end - start)) + 1)]
