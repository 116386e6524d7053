"""How strong the plain arm is: its decode speed as a share of what its hardware allows at most.

A step of plain decoding reads every weight once, so a sequence cannot get more than bandwidth / weights tokens per
second. A plain arm far below that makes every drafter look good: the speedup then contains what the plain arm left
undone. The ceiling leaves out the KV cache and activations, which are read too: with long contexts it is too high.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.frozen import Frozen
from orchestrator.paths import write_whole
from orchestrator.planning import hardware

GB_S = 1e9
GPU_BANDWIDTH: dict[str, float] = {
    # Name as NVML gives it -> peak memory bandwidth, bytes/s, as NVIDIA's data sheet of the product states it.
    "Tesla T4": 320 * GB_S,
    "Tesla V100-SXM2-16GB": 900 * GB_S,
    "Tesla V100-SXM2-32GB": 900 * GB_S,
    "NVIDIA A10": 600 * GB_S,
    "NVIDIA A10G": 600 * GB_S,
    "NVIDIA A30": 933 * GB_S,
    "NVIDIA A100-SXM4-40GB": 1555 * GB_S,
    "NVIDIA A100-PCIE-40GB": 1555 * GB_S,
    "NVIDIA A100-SXM4-80GB": 2039 * GB_S,
    "NVIDIA A100 80GB PCIe": 1935 * GB_S,
    "NVIDIA RTX A6000": 768 * GB_S,
    "NVIDIA GeForce RTX 3090": 936 * GB_S,
    "NVIDIA GeForce RTX 4090": 1008 * GB_S,
    "NVIDIA GeForce RTX 5090": 1792 * GB_S,
    "NVIDIA RTX 6000 Ada Generation": 960 * GB_S,
    "NVIDIA L4": 300 * GB_S,
    "NVIDIA L40": 864 * GB_S,
    "NVIDIA L40S": 864 * GB_S,
    "NVIDIA H20": 4000 * GB_S,
    "NVIDIA H100 PCIe": 2000 * GB_S,
    "NVIDIA H100 NVL": 3900 * GB_S,
    "NVIDIA H100 80GB HBM3": 3350 * GB_S,  # SXM
    "NVIDIA H800": 3350 * GB_S,  # SXM
    "NVIDIA GH200 480GB": 4000 * GB_S,  # 96 GB of HBM3
    "NVIDIA H200": 4800 * GB_S,  # SXM
    "NVIDIA H200 NVL": 4800 * GB_S,
    "NVIDIA B200": 8000 * GB_S,
    "NVIDIA GB200": 8000 * GB_S,
}
_SGLANG_GB = 2**30
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")

_TEST_BYTES = (64 * 2**20, 512 * 2**20)
_TEST_S = 0.5
_KEPT = "bandwidth.json"
"""In the user's cache folder: hardware and test -> the best bytes/s seen, and of how many measurements."""


class Known(NamedTuple):
    """A figure and where it comes from, or None and why it is not known."""

    value: float | None
    source: str


class _Measured(NamedTuple):
    best: float
    """Bytes/s."""
    times: int


class Ceiling(Frozen):
    """What bounds the decode speed of one sequence on a plain server."""

    weights_bytes: float | None
    """Read per token, on one GPU."""
    weights_source: str
    """Where that is from, or why it is not known."""
    bandwidth_bytes_s: float | None
    """Of the memory that holds them, one GPU's."""
    bandwidth_source: str

    @property
    def tok_s(self) -> float | None:
        """Tokens/s of one sequence; None where a part of it is not known."""
        if not self.weights_bytes or not self.bandwidth_bytes_s:
            return None
        return ceiling_tok_s(self.weights_bytes, self.bandwidth_bytes_s)


class Settings(NamedTuple):
    """What a server does to keep its GPU busy between steps; None where it does not say."""

    cuda_graphs: bool | None
    overlap: bool | None
    """The next batch is scheduled while the GPU computes this one."""


def ceiling_tok_s(weights_bytes: float, bandwidth_bytes_s: float) -> float:
    """Most tokens/s of one sequence when each token takes one reading of the weights."""
    return bandwidth_bytes_s / weights_bytes


def find(identity: Mapping[str, Any], gpus: Sequence[Mapping[str, Any]]) -> Ceiling:
    """The ceiling of a plain server that is ready and idle.

    ``identity``: its ``/server_info``; ``gpus``: those it uses, as the sampler describes them. On a CPU the bandwidth
    is measured, which takes half a second, and the best that this machine has ever shown counts: all that disturbs the
    measurement lowers it.
    """
    weights = weights_bytes(identity, model_config(identity))
    if identity.get("device") == "cpu":
        bandwidth = _cpu_bandwidth(weights.value, identity.get("threads"))
    else:
        bandwidth = gpu_bandwidth(gpus)
    return Ceiling(
        weights_bytes=weights.value,
        weights_source=weights.source,
        bandwidth_bytes_s=bandwidth.value,
        bandwidth_source=bandwidth.source,
    )


def settings(identity: Mapping[str, Any]) -> Settings:
    """CUDA graphs of decoding and overlap scheduling, from a server's effective settings (SGLang 0.5.16 to 0.5.23)."""
    graphs: bool | None = None
    decode = (identity.get("cuda_graph_config") or {}).get("decode") or {}
    if isinstance(decode, Mapping) and "backend" in decode:
        graphs = decode["backend"] != "disabled"
    off = [identity[key] for key in ("disable_cuda_graph", "disable_decode_cuda_graph") if key in identity]
    if off:
        graphs = not any(off) and graphs is not False
    overlap = identity.get("disable_overlap_schedule")
    return Settings(cuda_graphs=graphs, overlap=None if overlap is None else not overlap)


def weights_bytes(identity: Mapping[str, Any], config: Mapping[str, Any] | None) -> Known:
    """Bytes of weights that one GPU (or the CPU) reads per token.

    The server says how much its weights take (SGLang's GB are GiB; the target's only, of one rank). Of an input
    embedding that is not the head as well, a token reads one row: it is taken off where ``config`` (the model's
    ``config.json``) tells its size.
    """
    states = identity.get("internal_states") or [{}]
    held = (states[0].get("memory_usage") or {}).get("weight")
    if not held:
        return Known(None, "the server does not say how much its weights take")
    total = float(held) * _SGLANG_GB * int(identity.get("pp_size") or 1)
    text = {**(config or {}), **((config or {}).get("text_config") or {})}
    if any((text.get(key) or 0) > 1 for key in _EXPERTS):
        return Known(None, "a mixture of experts reads a part of its weights per token, how much is not known here")
    item = _ITEM_BYTES.get(str(_first(identity.get("dtype"), text.get("dtype"), text.get("torch_dtype"))))
    if text.get("tie_word_embeddings") is False and item and text.get("vocab_size") and text.get("hidden_size"):
        embedding = text["vocab_size"] * text["hidden_size"] * item / int(identity.get("tp_size") or 1)
        return Known(total - embedding, "the server's weights without the input embedding")
    return Known(total, "the server's weights")


def model_config(identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """``config.json`` of the served model; None where its folder is not here."""
    for key in ("model_path", "tokenizer_path"):
        try:
            return dict(json.loads((Path(identity[key]) / "config.json").read_text()))
        except (KeyError, TypeError, OSError, ValueError):
            continue
    return None


def gpu_bandwidth(gpus: Sequence[Mapping[str, Any]]) -> Known:
    """Memory bandwidth of one of the GPUs, the slowest, bytes/s."""
    found = [_one_gpu(gpu) for gpu in gpus]
    if not found:
        return Known(None, "no GPU could be asked")
    unknown = next((known for known in found if known.value is None), None)
    return unknown or min(found, key=lambda known: known.value or 0)


def _one_gpu(gpu: Mapping[str, Any]) -> Known:
    name = gpu.get("name")
    if str(gpu.get("uuid", "")).startswith("MIG-"):
        return Known(None, f"{name}: a MIG slice has a part of the bandwidth")
    if name in GPU_BANDWIDTH:
        return Known(GPU_BANDWIDTH[name], f"data sheet, {name}")
    bits, mhz = gpu.get("memory_bus_bits"), gpu.get("memory_max_mhz")
    if bits and mhz:  # two transfers per clock, as NVML counts clocks
        return Known(2 * mhz * 1e6 * bits / 8, f"{bits} bits x 2 x {mhz} MHz, {name}")
    return Known(None, f"the bandwidth of {name} is not known")


def _cpu_bandwidth(weights: float | None, threads: int | None) -> Known:
    if weights is None:
        return Known(None, "not measured: the size of the weights is not known")
    count = threads or len(os.sched_getaffinity(0))
    size = int(min(max(weights, _TEST_BYTES[0]), _TEST_BYTES[1]))
    test = f"reading {size // 2**20} MiB with {count} threads"
    best, times = _remember(test, read_bandwidth(size, count))
    return Known(best, f"{test}, best of {times} {'measurement' if times == 1 else 'measurements'} on this machine")


def _remember(test: str, bandwidth: float) -> tuple[float, int]:
    """The best of this and earlier measurements on such hardware, and how many they are; kept for the next.

    Of two runs that write at once one may be lost, never the file. A cache that cannot be written keeps nothing.
    """
    from runners.engine.fetch import cache_directory

    cpu = hardware.cpu()
    key = f"{cpu.model}, {cpu.cores} cores, {cpu.threads} threads: {test}"
    path = cache_directory() / _KEPT
    kept = _kept(path)
    before = kept.get(key, _Measured(0.0, 0))
    now = _Measured(max(before.best, bandwidth), before.times + 1)
    with contextlib.suppress(OSError):
        told = {one: measured._asdict() for one, measured in (kept | {key: now}).items()}
        write_whole(path, json.dumps(told, indent=1))
    return now


def _kept(path: Path) -> dict[str, _Measured]:
    """What the file holds; nothing where it is not there or is not whole."""
    try:
        found = json.loads(path.read_text())
        return {str(key): _Measured(float(one["best"]), int(one["times"])) for key, one in found.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def read_bandwidth(size: int, threads: int) -> float:
    """Bytes/s of reading ``size`` bytes with ``threads`` threads, the best of the passes in half a second.

    As large as the weights (up to 512 MiB), so that what of them stays in a cache stays in it here too. The reading is
    a bitwise or: one cheap instruction per vector, which numpy runs without Python's lock.
    """
    import numpy as np

    data = np.ones(size // 8, dtype=np.int64)
    parts = np.array_split(data, threads)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        until = time.monotonic() + _TEST_S
        while time.monotonic() < until or not best:
            started = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))
            best = max(best, data.nbytes / (time.perf_counter() - started))
    return best


def _first(*values: Any) -> Any:
    return next((value for value in values if value not in (None, "auto")), None)
