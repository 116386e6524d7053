"""What a server is, from `/server_info` and its log: version, memory, room, and whether its drafter is the one wanted.

`/server_info` counts the target's weights and cache only; drafter, recurrent state and graphs are in the log alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.served import capacity, wrong_drafter
from runners.sglang.checkpoint_rules import ARCHITECTURES
from runners.sglang.config import ServerConfig

_WEIGHTS = re.compile(r"Load weight end\..*?type=(\w+),.*?mem usage=(-?[\d.]+) GB")
_CACHE = re.compile(r"KV Cache is allocated\..*?#tokens: \d+, (.*)")
_CACHE_END = "Memory pool end."
_RESIZED = re.compile(r"Post-capture KV sizing: (draft )?KV cache allocated\..*?KV size: ([\d.]+) GB")
_STATE = re.compile(r"Mamba Cache is allocated\. max_mamba_cache_size: \d+, (.*)")
_SIZE = re.compile(r"\w+ size: ([\d.]+)\s*GB")
_RING = re.compile(r"ReplaySSM ring buffers allocated.*")
_RING_SIZE = re.compile(r"\b\w+=([\d.]+)GB")
_GRAPH = re.compile(r"Capture ([\w ]+?) CUDA graph end\..*?mem usage=(-?[\d.]+) GB")
_CAPPED = re.compile(r"max_running_requests is capped to (\d+) by the mamba state cache")
_BLOCK = re.compile(r"(DFLASH block size mismatch|DSpark gamma mismatch): (.*)")
_REMARKS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), meaning)
    for pattern, meaning in (
        (r"Added DFLASH mask token to tokenizer", "the drafter's mask token is not in the target's vocabulary: it was "
         "trained for another tokenizer"),
        (r"DFLASH fused KV initialization failed", "the drafter's fused cache kernel failed; it runs the slower path"),
        (r"Disable DFLASH draft cuda graph", "the drafter runs without CUDA graphs: too little memory was left"),
        (r"draft worker does not support attention_backend", "the drafter has another attention backend than asked"),
        (r"--speculative-draft-window-size has no effect", "the drafter's window has no effect"),
        (r"Mixed chunked prefill is disabled", "mixed chunked prefill was turned off"),
        (r"Setting attention backend to triton", "attention was changed to triton"),
    )
)  # fmt: skip
_OTHER_RANK = re.compile(r"^\[[^\]]* [A-Z_]+[1-9]\d*[ \]]")
"""A line of another GPU than the first: ``[2026-11-30 21:24:14 TP1] ...``."""
_ONLY: Mapping[str, str] = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}
"""Drafters of one algorithm that only their architecture tells apart."""


@dataclass(frozen=True)
class Memory:
    """GPU memory by what it is for, GiB per GPU (SGLang writes GB and divides by 2**30); None: not told."""

    target_weights: float | None
    draft_weights: float | None
    kv_cache: float | None
    draft_kv_cache: float | None
    state_cache: float | None
    """Recurrent state of a hybrid target, its intermediate copies for verification included."""
    replay_ring: float | None
    graphs: float | None
    """May be negative where capturing freed memory elsewhere."""


@dataclass(frozen=True)
class Identity:
    version: str | None
    algorithm: str | None
    verify_window: int | None
    draft_architecture: str | None
    """The model that the drafter's weights were loaded into, from the log."""
    memory: Memory
    token_capacity: int | None
    """Tokens whose keys and values fit at the memory fraction asked for."""
    max_running_requests: int | None
    """What it really runs at once; asked for may have been more."""
    remarks: tuple[str, ...]
    """What its log only warns of, and a reader of the figures should know."""


def identity(server_info: Mapping[str, Any], log: Iterable[str]) -> Identity:
    """Read both. Over several GPUs the log's figures are those of the first."""
    lines = [line for line in log if "server_args=ServerArgs(" not in line and not _OTHER_RANK.match(line)]
    room = capacity(server_info)
    weights = _all(_WEIGHTS, lines)
    window = server_info.get("speculative_num_draft_tokens")
    return Identity(
        version=server_info.get("version"),
        algorithm=server_info.get("speculative_algorithm"),
        verify_window=window if server_info.get("speculative_algorithm") is not None else None,
        draft_architecture=weights[1][0] if len(weights) > 1 else None,
        memory=_memory(lines, server_info),
        token_capacity=room.tokens if room else None,
        max_running_requests=room.requests if room else None,
        remarks=tuple(_remarks(lines)),
    )


def problems(config: ServerConfig, server_info: Mapping[str, Any], found: Identity) -> list[str]:
    """Why the server may not be measured as what the config says; [] when it may.

    `/server_info` repeats what was asked for. That the weights behind it are this drafter's, only the log tells: SGLang
    serves DFLASH with a DSpark drafter, and accepts nothing.
    """
    drafter, algorithm = config.drafter, config.drafter.algorithm
    reports = "EAGLE" if algorithm == "NEXTN" else algorithm  # SGLang's other name for it
    told = wrong_drafter({"drafter": {**drafter.model_dump(), "algorithm": reports}}, server_info)
    named = _ONLY.get(drafter.name)
    allowed = [named] if named else list(ARCHITECTURES.get(algorithm or "", ()))
    if allowed and drafter.plugin is None and found.draft_architecture not in (None, *allowed):
        told.append(f"the drafter's weights are a {found.draft_architecture}, not {' or '.join(allowed)}")
    wanted = config.target.max_running_requests
    if found.max_running_requests is not None and found.max_running_requests < wanted:
        told.append(f"it runs {found.max_running_requests} requests at once, target.max_running_requests is {wanted}")
    return told


def _memory(lines: list[str], server_info: Mapping[str, Any]) -> Memory:
    weights, caches = _all(_WEIGHTS, lines), _caches(lines)
    usage: Mapping[str, Any] = next(
        (state.get("memory_usage", {}) for state in server_info.get("internal_states") or []), {}
    )
    state = next((_STATE.search(line) for line in lines if _STATE.search(line)), None)
    ring = next((line for line in lines if _RING.search(line)), None)
    graphs = [float(size) for _, size in _all(_GRAPH, lines)]
    return Memory(
        target_weights=float(weights[0][1]) if weights else usage.get("weight"),
        draft_weights=float(weights[1][1]) if len(weights) > 1 else None,
        kv_cache=caches[0] if caches else usage.get("kvcache"),
        draft_kv_cache=caches[1] if len(caches) > 1 else None,
        state_cache=_sum(_SIZE.findall(state[1])) if state else None,
        replay_ring=_sum(_RING_SIZE.findall(ring)) if ring else None,
        graphs=round(sum(graphs), 2) if graphs else None,
    )


def _caches(lines: list[str]) -> list[float]:
    """Keys and values of the target, then of the drafter. Each may have several pools, and newer versions size them
    anew once graphs are captured."""
    resized = [match.groups() for line in lines if (match := _RESIZED.search(line))]
    if resized:
        kinds = (False, True) if any(draft for draft, _ in resized) else (False,)
        return [_sum(size for draft, size in resized if bool(draft) == kind) for kind in kinds]
    found, sizes = [], list[str]()
    for line in lines:
        if (match := _CACHE.search(line)) is not None:
            sizes += _SIZE.findall(match[1])
        elif _CACHE_END in line and sizes:
            found.append(_sum(sizes))
            sizes = []
    return found


def _remarks(lines: list[str]) -> list[str]:
    found = [meaning for pattern, meaning in _REMARKS if any(pattern.search(line) for line in lines)]
    for line in lines:
        if (capped := _CAPPED.search(line)) is not None:
            found.append(f"the state cache holds {capped[1]} requests at once, fewer than asked for")
        if (block := _BLOCK.search(line)) is not None:
            found.append(f"the drafter was trained at another block size ({block[2].rstrip('.')})")
    return list(dict.fromkeys(found))


def _all(pattern: re.Pattern[str], lines: list[str]) -> list[tuple[str, ...]]:
    return [found.groups() for line in lines if (found := pattern.search(line))]


def _sum(sizes: Iterable[str]) -> float:
    return round(sum(map(float, sizes)), 2)
