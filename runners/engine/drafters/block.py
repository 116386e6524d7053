"""The block-parallel draft backbone that DFlash2 and DSpine share.

A block is the anchor token followed by mask tokens. All its positions are drafted in one forward: each attends to the
target's hidden states of the committed text (its *context*, projected to keys and values) and to the whole block.
The same modules serve training (many blocks per sequence, one mask) and inference (one block per request, a cache):
the difference is only in the ``attend`` function that a caller passes in.

Checkpoints keep the public layout of DFlash (``layers.N.self_attn.q_proj.weight`` ...); here q, k, v and gate, up are
one matrix each, since on a CPU fewer and larger products are faster.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [M, b, heads, d], k [M, b, kv_heads, d], v [M, b, kv_heads, d]) -> [M, b, heads, d]"""


@dataclass(frozen=True)
class BlockConfig:
    """Sizes of a draft backbone; the fields of a checkpoint's ``config.json`` that it needs."""

    architecture: str
    hidden_size: int
    vocab_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float
    rms_norm_eps: float
    block_size: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    num_target_layers: int
    extra: dict[str, Any]
    """What one architecture alone needs: convolution and selector sizes, transition rank."""

    @property
    def q_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_key_value_heads * self.head_dim

    @classmethod
    def load(cls, folder: Path, section: str) -> BlockConfig:
        """Read ``config.json``; ``section`` is the architecture's own part (``dflash_config`` ...).

        Raises ValueError naming the field where the file lacks one.
        """
        raw = json.loads((folder / "config.json").read_text())
        own = dict(raw.get(section) or {})
        try:
            return cls(
                architecture=raw["architectures"][0],
                hidden_size=raw["hidden_size"],
                vocab_size=raw["vocab_size"],
                num_hidden_layers=raw["num_hidden_layers"],
                num_attention_heads=raw["num_attention_heads"],
                num_key_value_heads=raw["num_key_value_heads"],
                head_dim=raw["head_dim"],
                intermediate_size=raw["intermediate_size"],
                rope_theta=float(raw["rope_theta"]),
                rms_norm_eps=float(raw["rms_norm_eps"]),
                block_size=int(own.pop("block_size", raw.get("block_size"))),
                target_layer_ids=tuple(own.pop("target_layer_ids")),
                mask_token_id=int(own.pop("mask_token_id")),
                num_target_layers=int(raw["num_target_layers"]),
                extra=own,
            )
        except KeyError as error:
            raise ValueError(f"{folder / 'config.json'}: field {error} is missing") from error

    def dump(self, section: str) -> dict[str, Any]:
        """The ``config.json`` of a checkpoint, in the layout that ``load`` and SGLang read."""
        return {
            "architectures": [self.architecture],
            "model_type": "qwen3",
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "torch_dtype": "float16",
            "max_position_embeddings": 8192,
            "hidden_size": self.hidden_size,
            "vocab_size": self.vocab_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.rms_norm_eps,
            "layer_types": ["full_attention"] * self.num_hidden_layers,
            "block_size": self.block_size,
            "num_target_layers": self.num_target_layers,
            section: {
                "block_size": self.block_size,
                "target_layer_ids": list(self.target_layer_ids),
                "mask_token_id": self.mask_token_id,
                **self.extra,
            },
        }


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def rope_tables(config: BlockConfig, length: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """cos and sin, [length, head_dim] each, float32, in the half-rotated layout of transformers."""
    inverse = config.rope_theta ** (-torch.arange(0, config.head_dim, 2, device=device).float() / config.head_dim)
    angles = torch.outer(torch.arange(length, device=device).float(), inverse)
    return torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding. x [..., heads, d]; cos, sin [..., d] broadcast over heads."""
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cos.unsqueeze(-2).to(x.dtype) + turned * sin.unsqueeze(-2).to(x.dtype)


class BlockAttention(nn.Module):
    def __init__(self, config: BlockConfig, index: int) -> None:
        super().__init__()
        self.config, self.index = config, index
        self.qkv_proj = nn.Linear(config.hidden_size, config.q_size + 2 * config.kv_size, bias=False)
        self.o_proj = nn.Linear(config.q_size, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        c = self.config
        q, k, v = (
            part.unflatten(-1, (-1, c.head_dim))
            for part in self.qkv_proj(x).split([c.q_size, c.kv_size, c.kv_size], -1)
        )
        q, k = rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin)
        return self.o_proj(attend(self.index, q, k, v).flatten(-2))


class BlockMLP(nn.Module):
    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up)


class BlockLayer(nn.Module):
    """One decoder layer; architectures override ``forward`` to mix information between block positions."""

    def __init__(self, config: BlockConfig, index: int) -> None:
        super().__init__()
        self.self_attn = BlockAttention(config, index)
        self.mlp = BlockMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Transition(nn.Module):
    """Low-rank scores of token b following token a: <A(a) * gate, B(b)>, with a free row for every token."""

    predecessor: Tensor
    successor: Tensor

    def __init__(self, vocab_size: int, rank: int) -> None:
        super().__init__()
        self.predecessor = nn.Parameter(torch.randn(vocab_size, rank) * rank**-0.5)
        self.successor = nn.Parameter(torch.zeros(vocab_size, rank))

    def bind(self, embed: Callable[[Tensor], Tensor]) -> None:
        """Take what the target's embedding (token ids [n] -> [n, hidden]) has to give; here nothing."""


class ProjectedTransition(nn.Module):
    """The same, with tables that are projections of the target's embedding: a few parameters carry any rank."""

    predecessor: Tensor
    successor: Tensor

    def __init__(self, vocab_size: int, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.predecessor_projection = nn.Parameter(torch.randn(hidden_size, rank) * hidden_size**-0.5)
        self.successor_projection = nn.Parameter(torch.zeros(hidden_size, rank))

    def bind(self, embed: Callable[[Tensor], Tensor]) -> None:
        """Work the tables out, [vocab, rank] each; they are not part of a checkpoint."""
        chunks = torch.arange(self.vocab_size).split(4096)  # one at a time: the whole embedding would be a copy
        for name in ("predecessor", "successor"):
            projection = getattr(self, f"{name}_projection").detach()
            table = torch.cat([embed(ids).to(projection) @ projection for ids in chunks])
            self.register_buffer(name, table, persistent=False)


class BlockModel(nn.Module):
    """Context projection, draft layers, final norm and the transition table of one architecture."""

    section: str
    layer_class: type[BlockLayer] = BlockLayer

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(self.layer_class(config, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    candidates: int
    transition: Transition | ProjectedTransition
    storage: ClassVar[torch.dtype] = torch.float16
    """How a checkpoint keeps matrices: float16, or int8 with a scale for each row."""

    @property
    def decoder(self) -> list[BlockLayer]:
        return [layer for layer in self.layers if isinstance(layer, BlockLayer)]

    def gate(self, hidden: Tensor) -> Tensor:
        """[..., rank] factor on the predecessor's codebook row."""
        raise NotImplementedError

    def context(self, features: Tensor) -> Tensor:
        """Target hidden states [..., layers * hidden] -> what every layer's keys and values are made of."""
        return self.hidden_norm(self.fc(features))

    def context_kv(self, context: Tensor, cos: Tensor, sin: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of committed text, per layer, [..., kv_heads, d]."""
        c = self.config
        result = []
        for layer in self.decoder:
            kv = F.linear(context, layer.self_attn.qkv_proj.weight[c.q_size :])
            k, v = (part.unflatten(-1, (-1, c.head_dim)) for part in kv.chunk(2, -1))
            result.append((rotate(layer.self_attn.k_norm(k), cos, sin), v))
        return result

    def forward(self, embeds: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """Block embeddings [M, b, hidden] at rotary tables [M, b, d] -> normed hidden states [M, b, hidden]."""
        x = embeds
        for layer in self.decoder:
            x = layer(x, cos, sin, attend)
        return self.norm(x)

    # Checkpoint layout -------------------------------------------------------------------------------------------

    renamed: ClassVar[dict[str, str]] = {}
    """Module path here -> name in a checkpoint, for what an architecture names otherwise."""

    def export(self) -> dict[str, Tensor]:
        """Parameters under their public names."""
        c, out = self.config, {}
        for name, tensor in self.state_dict().items():
            if "qkv_proj" in name:
                parts = tensor.split([c.q_size, c.kv_size, c.kv_size])
                for part, key in zip(parts, "qkv", strict=True):
                    out[name.replace("qkv_proj", f"{key}_proj")] = part
            elif "gate_up_proj" in name:
                for part, key in zip(tensor.chunk(2), ("gate", "up"), strict=True):
                    out[name.replace("gate_up_proj", f"{key}_proj")] = part
            else:
                out[self.renamed.get(name, name)] = tensor
        return {name: tensor.contiguous() for name, tensor in out.items()}

    def load_export(self, tensors: dict[str, Tensor]) -> None:
        """Take parameters under their public names. Raises ValueError for a missing, extra or misshapen one."""
        expected = self.export()
        if missing := sorted(set(expected) ^ set(tensors)):
            raise ValueError(f"checkpoint and architecture differ in tensors: {', '.join(missing[:5])}")
        for name, tensor in tensors.items():
            if tensor.shape != expected[name].shape:
                raise ValueError(f"{name}: shape {tuple(tensor.shape)}, expected {tuple(expected[name].shape)}")
            expected[name].copy_(tensor)  # a view of the parameter: rows of a fused matrix are contiguous
