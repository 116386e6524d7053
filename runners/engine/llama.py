"""The target: a Llama-family model on a CPU, with one KV cache per request and linear layers shared by all requests.

At one token per request a forward reads every weight once and computes almost nothing, so it is bound by memory
traffic. Hence few and large matrix products (q, k and v in one, gate and up in one), all requests' tokens in one
matrix, and few small operations between them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_GROW = 256  # tokens; the least a cache grows by


@dataclass(frozen=True)
class LlamaConfig:
    """Shape of a model, from ``config.json`` and ``generation_config.json``."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    tied_head: bool
    max_positions: int
    rope: dict[str, Any]
    bos_token_id: int | None
    eos_token_ids: frozenset[int]

    @staticmethod
    def read(folder: Path) -> LlamaConfig:
        """Raises ValueError for a model this file does not compute (another family, biases, unknown rope scaling)."""
        raw = json.loads((folder / "config.json").read_text())
        if raw.get("model_type") != "llama":
            raise ValueError(f"{folder}: model_type {raw.get('model_type')!r}; the embedded engine serves only 'llama'")
        for switch in ("attention_bias", "mlp_bias"):
            if raw.get(switch):
                raise ValueError(f"{folder}: {switch} is set; the embedded engine serves models without biases")
        if raw.get("hidden_act", "silu") != "silu":
            raise ValueError(f"{folder}: hidden_act {raw['hidden_act']!r}; the embedded engine knows only 'silu'")
        # transformers 5 keeps base and scaling together in rope_parameters, older files have two keys.
        rope = {"rope_theta": raw.get("rope_theta", 10_000.0)} | (raw.get("rope_scaling") or {})
        rope |= raw.get("rope_parameters") or {}
        kind = rope.setdefault("rope_type", rope.pop("type", "default"))
        if kind not in ("default", "llama3"):
            raise ValueError(f"{folder}: rope_type {kind!r}; the embedded engine knows 'default' and 'llama3'")
        heads = raw["num_attention_heads"]
        generation_file = folder / "generation_config.json"
        generation = json.loads(generation_file.read_text()) if generation_file.exists() else {}
        eos = generation.get("eos_token_id", raw.get("eos_token_id"))
        return LlamaConfig(
            vocab_size=raw["vocab_size"],
            hidden_size=raw["hidden_size"],
            intermediate_size=raw["intermediate_size"],
            num_layers=raw["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            rms_norm_eps=raw["rms_norm_eps"],
            tied_head=raw.get("tie_word_embeddings", False),
            max_positions=raw["max_position_embeddings"],
            rope=rope,
            bos_token_id=raw.get("bos_token_id"),
            eos_token_ids=frozenset([eos] if isinstance(eos, int) else eos or ()),
        )


class KVCache:
    """Keys and values of one request. Dropping rejected tokens is setting ``length`` back: they are overwritten."""

    def __init__(self, config: LlamaConfig, dtype: torch.dtype, capacity: int = _GROW) -> None:
        self.length = 0
        # [layer, key or value, batch of one, kv head, token, head_dim]
        self._data = torch.empty(
            config.num_layers, 2, 1, config.num_kv_heads, _round_up(capacity), config.head_dim, dtype=dtype
        )

    @property
    def nbytes(self) -> int:
        return self._data.nbytes

    def views(
        self, count: int
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Per layer: where ``count`` new keys and values go, and all keys and values up to and including them."""
        end = self.length + count
        if end > self._data.shape[4]:
            shape = list(self._data.shape)
            shape[4] = _round_up(max(end, 2 * shape[4]))
            grown = self._data.new_empty(shape)
            grown[..., : self.length, :] = self._data[..., : self.length, :]
            self._data = grown
        new, seen = self._data[..., self.length : end, :], self._data[..., :end, :]
        return new[:, 0].unbind(0), new[:, 1].unbind(0), seen[:, 0].unbind(0), seen[:, 1].unbind(0)


def _round_up(tokens: int) -> int:
    return -(-tokens // _GROW) * _GROW


class _Span:
    """One request's share of a forward: its rows, where its cache is written and read, and its causal mask."""

    def __init__(self, first_row: int, count: int, cache: KVCache, groups: int, dtype: torch.dtype) -> None:
        self.count = count
        self.rows = slice(first_row, first_row + count)
        self.new_keys, self.new_values, self.keys, self.values = cache.views(count)
        self.mask: Tensor | None = None
        if count > 1:
            ahead = torch.ones(count, cache.length + count, dtype=torch.bool).triu_(cache.length + 1)
            mask = torch.zeros(ahead.shape, dtype=dtype).masked_fill_(ahead, -math.inf)
            # The queries that share a key-value head stand as neighbouring rows.
            self.mask = mask.repeat_interleave(groups, 0)


class _RMSNorm(nn.Module):
    """x * gain / sqrt(mean(x^2) + eps), in four operations; torch's own takes eight and twice the time.

    ``weight`` is gain * sqrt(width), so that the norm need not be divided by it.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        # A plain tensor on the CPU, also where the module is built on the meta device.
        self._floor = torch.tensor(math.sqrt(width * eps), device="cpu")

    def forward(self, x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        # hypot(norm, sqrt(width * eps)) = sqrt(width) * sqrt(mean(x^2) + eps)
        return (x / torch.hypot(norm, self._floor) * self.weight).to(x.dtype)


class _Layer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden, self.head_dim = config.hidden_size, config.head_dim
        self.heads, self.kv_heads = config.num_heads, config.num_kv_heads
        self.norm_attention = _RMSNorm(hidden, config.rms_norm_eps)
        self.qkv = nn.Linear(hidden, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=False)
        self.out = nn.Linear(self.heads * self.head_dim, hidden, bias=False)
        self.norm_mlp = _RMSNorm(hidden, config.rms_norm_eps)
        self.gate_up = nn.Linear(hidden, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, hidden, bias=False)

    def forward(self, x: Tensor, index: int, rotation: Tensor, spans: list[_Span]) -> Tensor:
        """x: [N, hidden]; rotation: [N, 1, head_dim / 2] complex; index: which layer of the caches is this one's."""
        qkv = self.qkv(self.norm_attention(x)).view(x.shape[0], -1, self.head_dim)
        rotated = self.heads + self.kv_heads
        qk = _rotate(qkv[:, :rotated], rotation)
        values = qkv[:, rotated:]
        mixed = [self._attend(span, index, qk[span.rows], values[span.rows]) for span in spans]
        x = x + self.out(mixed[0] if len(mixed) == 1 else torch.cat(mixed))
        gate, up = self.gate_up(self.norm_mlp(x)).chunk(2, -1)
        return x + self.down(F.silu(gate).mul_(up))

    def _attend(self, span: _Span, index: int, qk: Tensor, values: Tensor) -> Tensor:
        """[n, heads + kv heads, head_dim] and [n, kv heads, head_dim] -> [n, heads * head_dim]; fills the cache."""
        n = span.count
        span.new_keys[index][0] = qk[:, self.heads :].transpose(0, 1)
        span.new_values[index][0] = values.transpose(0, 1)
        # [1, kv heads, n * group, head_dim]: sharing heads become rows, so that keys are read once and never copied.
        queries = qk[:, : self.heads].unflatten(1, (self.kv_heads, -1)).transpose(0, 1).flatten(1, 2).unsqueeze(0)
        mixed = F.scaled_dot_product_attention(queries, span.keys[index], span.values[index], span.mask)
        return mixed[0].unflatten(1, (n, -1)).transpose(0, 1).reshape(n, -1)


def _rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotary embedding of [N, heads, head_dim] whose pairs are neighbours (see ``_interleave``)."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotation).flatten(-2).to(x.dtype)


class Llama(nn.Module):
    """Target model. Weights carry no gradient; run it under ``torch.inference_mode``."""

    def __init__(self, config: LlamaConfig, context_length: int) -> None:
        super().__init__()
        self.config = config
        self.context_length = context_length
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_layers))
        self.norm = _RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self._rotations = torch.empty(0)

    @staticmethod
    def load(folder: Path, dtype: torch.dtype = torch.float32, context_length: int | None = None) -> Llama:
        """Read a Hugging Face folder. ``context_length`` (tokens) is at most, and by default, the model's own."""
        config = LlamaConfig.read(folder)
        context = context_length or config.max_positions
        if context > config.max_positions:
            raise ValueError(f"context length {context} is more than the model's {config.max_positions}")
        with torch.device("meta"):
            model = Llama(config, context)
        model.load_state_dict(_read_weights(folder, config, dtype), assign=True)
        if config.tied_head:
            model.head.weight = model.embed.weight
        model._rotations = _rotation_table(config, context)
        return model.requires_grad_(False).eval()

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    def new_cache(self, capacity: int = _GROW) -> KVCache:
        """An empty cache with room for ``capacity`` tokens; it grows when more come."""
        return KVCache(self.config, self.dtype, min(capacity, self.context_length))

    def forward(
        self,
        tokens: Tensor,
        caches: Sequence[KVCache],
        counts: Sequence[int],
        capture_layers: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor | None]:
        """Score new tokens of several requests at once; each cache grows by its request's count.

        tokens: [N] int64, the requests' new tokens one after another; counts: tokens of each request, summing to N.
        A request's tokens stand at the positions that follow its cache's length.
        Returns the normed final hidden states [N, hidden], ready for ``logits``, and the outputs of ``capture_layers``
        (0-based, in their order) side by side, [N, len(capture_layers) * hidden]; None where none are asked for.
        """
        groups = self.config.num_heads // self.config.num_kv_heads
        spans: list[_Span] = []
        rotations: list[Tensor] = []
        row = 0
        for cache, count in zip(caches, counts, strict=True):
            spans.append(_Span(row, count, cache, groups, self.dtype))
            rotations.append(self._rotations[cache.length : cache.length + count])
            row += count
        rotation = (rotations[0] if len(rotations) == 1 else torch.cat(rotations)).unsqueeze(1)
        x = self.embed(tokens)
        captured: dict[int, Tensor] = {}
        for index, layer in enumerate(self.layers):
            x = layer(x, index, rotation, spans)
            if index in capture_layers:
                captured[index] = x
        for cache, count in zip(caches, counts, strict=True):
            cache.length += count
        features = torch.cat([captured[index] for index in capture_layers], -1) if capture_layers else None
        return self.norm(x), features

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, hidden] (normed) -> [N, vocab]."""
        return self.head(hidden)


def _read_weights(folder: Path, config: LlamaConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """The folder's tensors under this module's names: merged, rotary pairs made neighbours, cast and copied."""
    from safetensors import safe_open

    names: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        shard = safe_open(path, framework="pt")
        names |= dict.fromkeys(shard.keys(), shard)  # type: ignore[no-untyped-call]
    if not names:
        raise ValueError(f"{folder}: no *.safetensors file")

    def take(name: str) -> Tensor:
        if name not in names:
            raise ValueError(f"{folder}: tensor {name} is missing")
        tensor: Tensor = names[name].get_tensor(name)
        return tensor

    # A copy even where the type is right: memory of our own is faster to read than a mapped file.
    def put(name: str, *parts: Tensor) -> None:
        weights[name] = torch.cat(parts).to(dtype) if len(parts) > 1 else parts[0].to(dtype, copy=True)

    width_root = math.sqrt(config.hidden_size)  # see _RMSNorm
    weights: dict[str, Tensor] = {}
    put("embed.weight", take("model.embed_tokens.weight"))
    put("norm.weight", take("model.norm.weight") * width_root)
    if config.tied_head:
        weights["head.weight"] = weights["embed.weight"]
    else:
        put("head.weight", take("lm_head.weight"))
    for i in range(config.num_layers):
        source, own = f"model.layers.{i}.", f"layers.{i}."
        put(own + "norm_attention.weight", take(source + "input_layernorm.weight") * width_root)
        put(own + "norm_mlp.weight", take(source + "post_attention_layernorm.weight") * width_root)
        put(
            own + "qkv.weight",
            _interleave(take(source + "self_attn.q_proj.weight"), config.head_dim),
            _interleave(take(source + "self_attn.k_proj.weight"), config.head_dim),
            take(source + "self_attn.v_proj.weight"),
        )
        put(own + "out.weight", take(source + "self_attn.o_proj.weight"))
        put(own + "gate_up.weight", take(source + "mlp.gate_proj.weight"), take(source + "mlp.up_proj.weight"))
        put(own + "down.weight", take(source + "mlp.down_proj.weight"))
    return weights


def _interleave(weight: Tensor, head_dim: int) -> Tensor:
    """Make the two halves of each rotary pair neighbouring rows, so that a rotation is one complex product.

    Queries and keys are permuted alike, which leaves their dot products as they were.
    """
    return weight.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).reshape(weight.shape)


def _rotation_table(config: LlamaConfig, positions: int) -> Tensor:
    """[positions, head_dim / 2] complex: e^(i * position * frequency).

    ``llama3`` scaling as Llama 3.1 defines it: long wavelengths are stretched by ``factor``, short ones kept, those
    between blended.
    """
    rope = config.rope
    frequencies = 1.0 / rope["rope_theta"] ** (torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    if rope["rope_type"] == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        turns = rope["original_max_position_embeddings"] * frequencies / (2 * math.pi)  # over the trained context
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        frequencies = kept * frequencies + (1 - kept) * frequencies / rope["factor"]
    angles = torch.outer(torch.arange(positions).float(), frequencies)
    return torch.polar(torch.ones_like(angles), angles)
