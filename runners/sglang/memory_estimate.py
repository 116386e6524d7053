"""What of an arm fits into a GPU's memory, before it is started.

SGLang takes the share ``mem_fraction_static`` of what is free, and fills what weights and recurrent states leave of it
with keys and values. Against seven recorded starts on one H200 the room for tokens comes out within 1% without
recurrent states and within 10% with them (tests/unit/test_memory_estimate.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runners.sglang.config import ServerConfig

GIB = 2**30
FREE_GIB = {
    # What is free when SGLang starts: the card less 1.3 GiB for CUDA itself, as seen on an H200.
    "H100 NVL": 92.0,
    "H100": 78.3,
    "H200": 139.1,
    "A100-SXM4-80GB": 78.7,
    "A100 80GB": 78.7,
}
"""By a part of the GPU's name, the telling ones first."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
_SLOTS_PER_REQUEST = 5
"""Of recurrent states, unless ``max-mamba-cache-size`` says how many there are."""


@dataclass(frozen=True)
class Checkpoint:
    weights_bytes: int
    config: Mapping[str, Any]
    """Its ``config.json``."""


@dataclass(frozen=True)
class Estimate:
    """GiB per GPU."""

    free: float
    reserved: float
    """What SGLang takes for all that follows."""
    weights: float
    draft_weights: float
    states: float
    """Recurrent states of a hybrid target, their copies for verification included."""
    tokens: int
    """Room for keys and values; negative where even the rest does not fit."""
    token_bytes: int

    @property
    def short(self) -> float:
        """GiB that are missing before a single token fits; 0 where there is room."""
        return max(0.0, -self.tokens * self.token_bytes / GIB)

    def told(self, context_length: int) -> str:
        held = [f"weights {self.weights:.1f}"]
        held += [f"drafter {self.draft_weights:.1f}"] if self.draft_weights else []
        held += [f"states {self.states:.1f}"] if self.states else []
        taken = f"{' + '.join(held)} of {self.reserved:.1f} GiB"
        if self.short:
            return f"does not fit: {taken}, short of {self.short:.1f} GiB"
        return (
            f"{taken}; room for about {self.tokens:,} tokens, {self.tokens / context_length:.1f} x the context length"
        )


def free_gib(gpu: str) -> float | None:
    """Memory that is free on a GPU of this name; None for one that is not known."""
    return next((size for part, size in FREE_GIB.items() if part.lower() in gpu.lower()), None)


def estimate(config: ServerConfig, target: Checkpoint, draft: Checkpoint | None, free: float) -> Estimate | None:
    """``free``: GiB per GPU. None where the config leaves the memory fraction to SGLang."""
    fraction, parts = config.target.mem_fraction_static, config.target.tp_size
    if fraction is None:
        return None
    text = _text(target.config)
    item = _BYTES[config.target.dtype if config.target.kv_cache_dtype == "auto" else config.target.kv_cache_dtype]
    token = _token_bytes(text, item, parts)
    if draft is not None:
        token += _token_bytes(_text(draft.config), item, parts)
    elif config.drafter.algorithm in ("EAGLE", "NEXTN"):  # a layer of the target's own checkpoint
        token += _token_bytes({**text, "num_hidden_layers": text.get("mtp_num_hidden_layers", 1), **_FULL}, item, parts)
    weights, draft_weights = target.weights_bytes / parts / GIB, (draft.weights_bytes / parts / GIB if draft else 0.0)
    states = _states(config, text, _BYTES[config.target.dtype]) / parts / GIB
    reserved = fraction * free
    left = reserved - weights - draft_weights - states
    return Estimate(free, reserved, weights, draft_weights, states, int(left * GIB / token), token)


_FULL: Mapping[str, Any] = {"layer_types": None, "full_attention_interval": None}


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def _linear_layers(text: Mapping[str, Any]) -> int:
    return sum(kind == "linear_attention" for kind in text.get("layer_types") or ())


def _token_bytes(text: Mapping[str, Any], item: int, parts: int) -> int:
    """Keys and values of one token on one GPU."""
    layers = text["num_hidden_layers"] - _linear_layers(text)
    heads = text.get("num_key_value_heads") or text["num_attention_heads"]
    size = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    return 2 * layers * max(1, heads // parts) * size * item


def _states(config: ServerConfig, text: Mapping[str, Any], item: int) -> float:
    """Bytes of recurrent states over all GPUs: a slot more than asked for, and under speculation one state for each
    token of the window of each request, which ReplaySSM does without."""
    layers = _linear_layers(text)
    if not layers:
        return 0.0
    keys = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    values = text["linear_num_value_heads"] * text["linear_value_head_dim"]
    recurrent = 4 if config.server_args.get("mamba-ssm-dtype", text.get("mamba_ssm_dtype")) == "float32" else item
    convolution = (text["linear_conv_kernel_dim"] - 1) * (2 * keys + values) * item
    state = layers * (values * text["linear_key_head_dim"] * recurrent + convolution)
    requests = config.target.max_running_requests
    slots = config.server_args.get("max-mamba-cache-size")
    total = ((slots if isinstance(slots, int) else _SLOTS_PER_REQUEST * requests) + 1) * state
    if config.drafter.verify_window > 1 and not config.server_args.get("enable-linear-replayssm-spec"):
        total += (requests + 1) * config.drafter.verify_window * state
    return float(total)
