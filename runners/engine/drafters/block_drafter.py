"""DFlash2 and DSpine at inference: one request's context in a cache, one forward per block for all requests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from runners.engine.drafters import lattice
from runners.engine.drafters.base import Draft, Drafter, DraftSampling
from runners.engine.drafters.block import BlockConfig, BlockModel, rope_tables, rotate
from runners.engine.drafters.dflash2 import DFlash2Model
from runners.engine.drafters.dspine import DSpineModel
from runners.engine.drafters.storage import expand

MODELS: dict[str, type[BlockModel]] = {"dflash2": DFlash2Model, "dspine": DSpineModel}
_GROWTH = 512


@dataclass
class _Context:
    """Keys and values of the committed text, [layers, 2, kv_heads, capacity, d]; rows past ``length`` are scratch."""

    kv: Tensor
    length: int = 0

    def reserve(self, rows: int) -> None:
        short = self.length + rows - self.kv.shape[3]
        if short > 0:
            self.kv = F.pad(self.kv, (0, 0, 0, -(-short // _GROWTH) * _GROWTH))


def load_block_model(name: str, folder: Path) -> tuple[BlockModel, str]:
    """Model with its weights in float32, and the weights' sha256. Raises FileNotFoundError, ValueError."""
    model_class = MODELS[name]
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise FileNotFoundError(f"drafter weights {weights} are missing")
    model = model_class(BlockConfig.load(folder, model_class.section))
    model.load_export(expand(load_file(weights)))
    return model.eval().requires_grad_(False), hashlib.sha256(weights.read_bytes()).hexdigest()


class BlockDrafter(Drafter):
    """A trained block model bound to the embedding and head of its target."""

    def __init__(
        self,
        name: str,
        folder: Path,
        embed: Callable[[Tensor], Tensor],
        head: Callable[[Tensor], Tensor],
        dtype: torch.dtype,
        context_length: int,
        block_size: int | None = None,
        pack: Callable[[nn.Module], None] | None = None,
    ) -> None:
        """``embed``: token ids [n] -> [n, hidden]; ``head``: [n, hidden] -> logits [n, vocab];
        ``context_length``: most tokens of a request."""
        model, self.weights_sha256 = load_block_model(name, folder)
        self.name = name
        self.config = replace(model.config, block_size=block_size or model.config.block_size)
        self.capture_layers = self.config.target_layer_ids
        self.proposed = self.config.block_size - 1
        self.model = model.to(dtype)
        self.model.transition.bind(embed)
        self.gives_confidence = isinstance(model, DSpineModel)
        self._embed, self._head, self._dtype = embed, head, dtype
        self._cos, self._sin = rope_tables(self.config, context_length + self.config.block_size)
        # Committed text passes every layer's key and value projection at once: one product instead of one per layer.
        c = self.config
        self._context_kv = nn.Linear(c.hidden_size, c.num_hidden_layers * 2 * c.kv_size, bias=False).to(dtype)
        kv_rows = [layer.self_attn.qkv_proj.weight[c.q_size :] for layer in model.decoder]
        self._context_kv.weight = nn.Parameter(torch.cat(kv_rows), requires_grad=False)
        self._k_norms = torch.stack([layer.self_attn.k_norm.weight for layer in model.decoder])
        if pack is not None:
            self._packed = nn.ModuleList([self._context_kv])
            pack(self.model)
            pack(self._packed)
            self._context_kv = self._packed[0]  # type: ignore[assignment]

    def open(self, prompt: Sequence[int]) -> _Context:
        c = self.config
        shape = (c.num_hidden_layers, 2, c.num_key_value_heads, _GROWTH, c.head_dim)
        return _Context(torch.zeros(shape, dtype=self._dtype))

    def extend(self, states: Sequence[_Context], token_ids: Sequence[Sequence[int]], features: Tensor | None) -> None:
        assert features is not None
        c = self.config
        counts = [len(new) for new in token_ids]
        positions = torch.cat([torch.arange(s.length, s.length + n) for s, n in zip(states, counts, strict=True)])
        kv = self._context_kv(self.model.context(features.to(self._dtype)))
        kv = kv.view(len(positions), c.num_hidden_layers, 2, c.num_key_value_heads, c.head_dim)
        k = F.rms_norm(kv[:, :, 0], (c.head_dim,), eps=c.rms_norm_eps) * self._k_norms[:, None]
        k = rotate(k, self._cos[positions][:, None], self._sin[positions][:, None])
        both = torch.stack([k, kv[:, :, 1]], 2).permute(1, 2, 3, 0, 4)  # [layers, 2, kv_heads, n, d]
        start = 0
        for state, count in zip(states, counts, strict=True):
            state.reserve(count + c.block_size)
            state.kv[:, :, :, state.length : state.length + count] = both[:, :, :, start : start + count]
            state.length += count
            start += count

    def propose(
        self,
        states: Sequence[_Context],
        anchors: Sequence[int],
        limits: Sequence[int],
        sampling: Sequence[DraftSampling],
    ) -> list[Draft]:
        c = self.config
        block = c.block_size
        for state in states:
            state.reserve(block)
        ids = torch.full((len(states), block), c.mask_token_id)
        ids[:, 0] = torch.tensor(anchors)
        positions = torch.stack([torch.arange(s.length, s.length + block) for s in states])
        embeds = self._embed(ids.flatten()).view(len(states), block, c.hidden_size)
        hidden = self.model(embeds, self._cos[positions], self._sin[positions], self._attend(states))[:, 1:]
        logits = self._head(hidden.reshape(-1, c.hidden_size)).view(len(states), block - 1, -1)
        paths = lattice.build(self.model, hidden, logits, ids[:, 0])
        tokens, rows = lattice.greedy_rows(paths)
        confidence = self._confidence(hidden, rows) if self.gives_confidence else None
        drafts = []
        for i, (limit, how) in enumerate(zip(limits, sampling, strict=True)):
            n = min(limit, self.proposed)
            if how.temperature > 0:
                index, q = lattice.sampled_rows(paths.scores[i, :n], how.temperature, how.generator)
                chosen = paths.ids[i, :n].gather(1, index[:, None])[:, 0]
                draft = Draft(chosen.tolist(), paths.ids[i, :n], q)
            else:
                draft = Draft(tokens[i, :n].tolist())
            draft.confidence = confidence[i][:n] if confidence else None
            drafts.append(draft)
        return drafts

    def _confidence(self, hidden: Tensor, rows: Tensor) -> list[list[float]]:
        logprobs = rows.float().log_softmax(-1).topk(2, -1).values
        logits = self.model.confidence_logits(  # type: ignore[operator]
            hidden, logprobs[..., 0].to(hidden.dtype), (logprobs[..., 0] - logprobs[..., 1]).to(hidden.dtype)
        )
        result: list[list[float]] = logits.float().sigmoid().tolist()
        return result

    def _attend(self, states: Sequence[_Context]) -> Callable[[int, Tensor, Tensor, Tensor], Tensor]:
        c = self.config
        group = c.num_attention_heads // c.num_key_value_heads

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = []
            for i, state in enumerate(states):
                end = state.length + c.block_size
                cache = state.kv[layer]
                cache[0, :, state.length : end] = k[i].transpose(0, 1)
                cache[1, :, state.length : end] = v[i].transpose(0, 1)
                # Queries of the heads that share keys stand side by side: no copy of the keys is needed.
                grouped = q[i].unflatten(1, (-1, group)).permute(1, 2, 0, 3).flatten(1, 2).unsqueeze(0)
                o = F.scaled_dot_product_attention(grouped, cache[None, 0, :, :end], cache[None, 1, :, :end])
                out.append(o[0].unflatten(1, (group, -1)).permute(2, 0, 1, 3).flatten(1, 2))
            return torch.stack(out)

        return attend
