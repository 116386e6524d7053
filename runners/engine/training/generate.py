"""The target's own answers to training prompts, in bulk: a batched decoder with a fixed cache and CUDA graphs.

Drafters are trained on the text of the target they draft for (greedy and sampled), not on text of others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def device_of() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Generated:
    """Rows of prompt and answer, right-padded with the end token."""

    tokens: np.ndarray  # [N, columns] int32
    prompt_lengths: np.ndarray  # [N] int32
    lengths: np.ndarray  # [N] int32, prompt and answer
    temperatures: np.ndarray  # [N] float32


class BatchDecoder:
    """Decodes ``rows`` sequences in step, aligned at their last prompt token (padding on the left).

    One cache for all steps, so that on a GPU a step is one replay of a captured graph.
    """

    BUCKET = 64

    def __init__(self, folder: Path, device: str, rows: int, columns: int, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM

        source = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
        c = source.config
        self.heads, self.kv_heads, self.head_dim = (
            c.num_attention_heads,
            c.num_key_value_heads,
            c.hidden_size // c.num_attention_heads,
        )
        self.eps, self.hidden = c.rms_norm_eps, c.hidden_size
        self.rows, self.columns, self.device, self.dtype = rows, columns, device, dtype
        self.embedding = source.get_input_embeddings().weight.data
        self.head = source.get_output_embeddings().weight.data
        self.final_norm = source.model.norm.weight.data
        self.layers = [
            {
                "qkv": torch.cat(
                    [m.self_attn.q_proj.weight, m.self_attn.k_proj.weight, m.self_attn.v_proj.weight]
                ).data,
                "o": m.self_attn.o_proj.weight.data,
                "gate_up": torch.cat([m.mlp.gate_proj.weight, m.mlp.up_proj.weight]).data,
                "down": m.mlp.down_proj.weight.data,
                "norm1": m.input_layernorm.weight.data,
                "norm2": m.post_attention_layernorm.weight.data,
            }
            for m in source.model.layers
        ]
        theta = c.rope_parameters["rope_theta"] if getattr(c, "rope_parameters", None) else c.rope_theta
        inverse = theta ** (-torch.arange(0, self.head_dim, 2, device=device).float() / self.head_dim)
        angles = torch.outer(torch.arange(columns, device=device).float(), inverse)
        self.cos, self.sin = torch.cat([angles.cos()] * 2, -1).to(dtype), torch.cat([angles.sin()] * 2, -1).to(dtype)
        self.kv = torch.zeros(
            len(self.layers), 2, rows, self.kv_heads, columns, self.head_dim, device=device, dtype=dtype
        )
        self.pad = torch.zeros(rows, dtype=torch.long, device=device)
        self.temperature = torch.zeros(rows, device=device)
        self.token = torch.zeros(rows, dtype=torch.long, device=device)
        self.column = torch.zeros(1, dtype=torch.long, device=device)
        self.finished = torch.zeros(rows, dtype=torch.bool, device=device)
        self.out = torch.zeros(rows, columns, dtype=torch.long, device=device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def _rope(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [R, heads, n, d], positions [R, n]."""
        cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        half = self.head_dim // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def _forward(self, ids: Tensor, positions: Tensor, rows: slice, columns: Tensor, span: int, mask: Tensor) -> Tensor:
        """ids [R, n] written at cache ``columns`` [n]; attention over the first ``span`` columns. Last row's hidden."""
        n = ids.shape[1]
        x = self.embedding[ids]
        group = self.heads // self.kv_heads
        for index, layer in enumerate(self.layers):
            h = F.rms_norm(x, (self.hidden,), layer["norm1"], self.eps)
            q, k, v = (
                F.linear(h, layer["qkv"])
                .unflatten(-1, (-1, self.head_dim))
                .transpose(1, 2)
                .split([self.heads, self.kv_heads, self.kv_heads], 1)
            )
            q, k = self._rope(q, positions), self._rope(k, positions)
            cache = self.kv[index, :, rows]
            cache[0].index_copy_(2, columns, k.contiguous())
            cache[1].index_copy_(2, columns, v.contiguous())
            # Heads that share keys become extra queries, so that keys are not copied.
            grouped = q.unflatten(1, (self.kv_heads, group)).flatten(2, 3)
            o = F.scaled_dot_product_attention(grouped, cache[0, :, :, :span], cache[1, :, :, :span], attn_mask=mask)
            o = o.unflatten(2, (group, n)).flatten(1, 2).transpose(1, 2).flatten(2)
            x = x + F.linear(o, layer["o"])
            gate, up = F.linear(F.rms_norm(x, (self.hidden,), layer["norm2"], self.eps), layer["gate_up"]).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, layer["down"])
        return F.rms_norm(x[:, -1], (self.hidden,), self.final_norm, self.eps)

    def _choose(self, hidden: Tensor, temperature: Tensor) -> Tensor:
        logits = F.linear(hidden, self.head).float()
        noise = -torch.empty_like(logits).exponential_().clamp_min(1e-20).log()
        return (logits + noise * temperature.unsqueeze(1)).argmax(-1)  # Gumbel-max at T, argmax at 0

    def _step(self, span: int, end_token: int) -> None:
        visible = torch.arange(span, device=self.device)[None]
        mask = (visible >= self.pad[:, None]) & (visible <= self.column)
        hidden = self._forward(
            self.token[:, None], (self.column - self.pad)[:, None], slice(None), self.column, span, mask[:, None, None]
        )
        chosen = torch.where(self.finished, end_token, self._choose(hidden, self.temperature))
        self.column.add_(1)
        self.out.index_copy_(1, self.column, chosen[:, None])
        self.token.copy_(chosen)
        self.finished.logical_or_(chosen == end_token)

    def _replay(self, span: int, end_token: int) -> None:
        if self.device == "cpu":
            return self._step(span, end_token)
        if span not in self.graphs:
            state = [t.clone() for t in (self.token, self.column, self.finished)]
            self._step(span, end_token)  # warm-up outside the capture
            for t, saved in zip((self.token, self.column, self.finished), state, strict=True):
                t.copy_(saved)
            torch.cuda.synchronize()
            self.graphs[span] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graphs[span]):
                self._step(span, end_token)
        self.graphs[span].replay()

    @torch.inference_mode()
    def run(self, prompts: list[list[int]], temperatures: list[float], new_tokens: int, end_token: int) -> Generated:
        """Answers of at most ``new_tokens`` tokens to at most ``rows`` prompts."""
        count, width = len(prompts), max(map(len, prompts))
        assert count <= self.rows and width + new_tokens <= self.columns
        ids = torch.full((self.rows, width), end_token)
        pads = torch.zeros(self.rows, dtype=torch.long)
        for row in range(self.rows):
            prompt = prompts[row % count]
            pads[row] = width - len(prompt)
            ids[row, pads[row] :] = torch.tensor(prompt)
        self.pad.copy_(pads)
        self.temperature.copy_(torch.tensor([temperatures[row % count] for row in range(self.rows)]))
        ids, pads = ids.to(self.device), pads.to(self.device)
        last = torch.zeros(self.rows, self.hidden, dtype=self.dtype, device=self.device)
        columns = torch.arange(width, device=self.device)
        group = self.heads // self.kv_heads
        for start in range(0, self.rows, 256):
            rows = slice(start, min(start + 256, self.rows))
            pad = pads[rows]
            mask = (columns[None, None] >= pad[:, None, None]) & (columns[None, None] <= columns[None, :, None])
            mask |= columns[None, None] == columns[None, :, None]  # a padding row must see something
            positions = (columns[None] - pad[:, None]).clamp_min(0)
            last[rows] = self._forward(ids[rows], positions, rows, columns, width, mask.repeat(1, group, 1)[:, None])
        self.out[:, :width] = ids
        first = self._choose(last, self.temperature)
        self.token.copy_(first)
        self.out[:, width] = first
        self.column.fill_(width)
        self.finished.copy_(first == end_token)
        for step in range(new_tokens - 1):
            span = min(-(-(width + step + 1) // self.BUCKET) * self.BUCKET, self.columns)
            self._replay(span, end_token)
            if step % 16 == 15 and bool(self.finished.all()):
                break
        return self._collect(
            count, width, min(width + new_tokens, int(self.column) + 1), end_token, temperatures, prompts
        )

    def _collect(
        self, count: int, width: int, end: int, end_token: int, temperatures: list[float], prompts: list[list[int]]
    ) -> Generated:
        out = self.out[:count, :end].cpu().numpy()
        tokens = np.full((count, self.columns), end_token, dtype=np.int32)
        lengths = np.zeros(count, dtype=np.int32)
        for row in range(count):
            answer = out[row, width:end]
            stop = np.flatnonzero(answer == end_token)
            answer = answer[: stop[0] + 1] if len(stop) else answer
            whole = np.concatenate([np.array(prompts[row], dtype=np.int32), answer.astype(np.int32)])
            tokens[row, : len(whole)] = whole
            lengths[row] = len(whole)
        return Generated(
            tokens,
            np.array([len(p) for p in prompts], dtype=np.int32),
            lengths,
            np.array(temperatures, dtype=np.float32),
        )


def batches_by_length(prompts: list[list[int]], rows: int) -> Iterator[list[int]]:
    """Indices of prompts in batches of like length, so that little is padded."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for start in range(0, len(order), rows):
        yield order[start : start + rows]
