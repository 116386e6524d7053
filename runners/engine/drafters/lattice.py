"""From draft logits to one path of tokens: top-k candidates, transition scores, a left-to-right walk.

score[m, t, a, b] = logit[m, t, b] + <A(a) * gate(h[m, t]), B(b)> for candidate b at position t after candidate a at
position t - 1 (the verified anchor for t = 0): DFlash2's selector; DSpine's table of transitions has the same shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from runners.engine.drafters.block import BlockModel

_CHUNK = 64


def topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and ids of the k largest of the last axis, largest first.

    The k largest lie in the k chunks with the largest maxima, and a chunked maximum is far cheaper on a CPU than a
    selection over the whole vocabulary.
    """
    vocab = logits.shape[-1]
    if vocab % _CHUNK or vocab // _CHUNK < k:
        return tuple(torch.topk(logits, k, dim=-1))  # type: ignore[return-value]
    chunks = logits.unflatten(-1, (-1, _CHUNK))
    best = chunks.amax(-1).topk(k, dim=-1).indices
    inside = chunks.gather(-2, best.unsqueeze(-1).expand(*best.shape, _CHUNK)).flatten(-2)
    values, index = inside.topk(k, dim=-1)
    return values, best.gather(-1, index // _CHUNK) * _CHUNK + index % _CHUNK


@dataclass
class Lattice:
    ids: Tensor
    """[M, n, K] candidate tokens."""
    scores: Tensor
    """[M, n, K, K] score of candidate b (last axis) after candidate a; at position 0 every a is the anchor."""


def build(model: BlockModel, hidden: Tensor, logits: Tensor, anchors: Tensor) -> Lattice:
    """hidden [M, n, H], logits [M, n, V], anchors [M] -> Lattice."""
    values, ids = topk(logits, model.candidates)
    before = torch.cat([anchors[:, None, None].expand(-1, 1, ids.shape[-1]), ids[:, :-1]], 1)
    predecessor = model.transition.predecessor[before]
    predecessor = predecessor * model.gate(hidden).unsqueeze(-2)
    successor = model.transition.successor[ids]
    scores = predecessor.to(values.dtype) @ successor.transpose(-1, -2).to(values.dtype)
    return Lattice(ids, values.unsqueeze(-2) + scores)


def greedy_rows(lattice: Lattice) -> tuple[Tensor, Tensor]:
    """The best path: tokens [M, n] and the score rows it met, [M, n, K]."""
    maps = lattice.scores.argmax(-1)  # [M, n, K]: best successor of each predecessor
    m, n, _ = maps.shape
    index = maps[:, 0, 0]
    path = [index]
    for position in range(1, n):
        index = maps[:, position].gather(1, index[:, None])[:, 0]
        path.append(index)
    chosen = torch.stack(path, 1)
    previous = torch.cat([torch.zeros_like(chosen[:, :1]), chosen[:, :-1]], 1)
    rows = lattice.scores.gather(2, previous[..., None, None].expand(m, n, 1, lattice.scores.shape[-1]))[:, :, 0]
    return lattice.ids.gather(2, chosen.unsqueeze(-1))[..., 0], rows


def sampled_rows(scores: Tensor, temperature: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """One path drawn left to right from one request's scores [n, K, K]: indices [n] and its q rows [n, K]."""
    q = torch.softmax(scores.float() / temperature, -1)
    index, path, rows = 0, [], []
    for position in range(scores.shape[0]):
        row = q[position, index]
        index = int(torch.multinomial(row, 1, generator=generator))
        path.append(index)
        rows.append(row)
    return torch.tensor(path), torch.stack(rows)
