"""Loss and held-out acceptance of a block model on the target's text: many blocks of many sequences in one forward."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from runners.engine.drafters import lattice
from runners.engine.drafters.block import BlockModel
from runners.engine.drafters.dspine import DSpineModel


@dataclass
class Batch:
    """Sequences with what the frozen target says of them."""

    tokens: Tensor  # [B, S] long
    lengths: Tensor  # [B]
    prompt_lengths: Tensor  # [B]
    features: Tensor  # [B, S, layers * H]


def block_hidden(
    model: BlockModel, batch: Batch, anchors: Tensor, block: int, embedding: Tensor, tables: tuple[Tensor, Tensor]
) -> Tensor:
    """Hidden states of the drafted positions of every block: [B, A, block - 1, H].

    anchors [B, A]: index of each block's anchor; a block sees the target's states of positions before its anchor
    only, as at inference, and the whole of itself.
    """
    c = model.config
    b_size, a_size = anchors.shape
    s_size, device = batch.tokens.shape[1], anchors.device
    cos, sin = tables
    context = model.context(batch.features)
    pos = torch.arange(s_size, device=device)
    context_kv = model.context_kv(context, cos[pos], sin[pos])
    ids = torch.full((b_size, a_size, block), c.mask_token_id, device=device)
    ids[..., 0] = batch.tokens.gather(1, anchors)
    positions = anchors.unsqueeze(-1) + torch.arange(block, device=device)
    queries = a_size * block
    sees_context = pos[None, None] < anchors.repeat_interleave(block, 1).unsqueeze(-1)  # [B, Q, S]
    owner = torch.arange(queries, device=device) // block
    sees_block = (owner[:, None] == owner[None]).expand(b_size, -1, -1)
    mask = torch.cat([sees_context, sees_block], -1).unsqueeze(1)
    group = c.num_attention_heads // c.num_key_value_heads

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def whole(own: Tensor, context_part: Tensor) -> Tensor:
            own = own.reshape(b_size, queries, c.num_key_value_heads, c.head_dim)
            both = torch.cat([context_part.to(own.dtype), own], 1).transpose(1, 2)
            return both.repeat_interleave(group, 1)

        ctx_k, ctx_v = context_kv[layer]
        q = q.reshape(b_size, queries, c.num_attention_heads, c.head_dim).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, whole(k, ctx_k), whole(v, ctx_v), attn_mask=mask)
        return out.transpose(1, 2).reshape(b_size * a_size, block, c.num_attention_heads, c.head_dim)

    flat = positions.reshape(-1, block)
    hidden = model(F.embedding(ids.reshape(-1, block), embedding), cos[flat], sin[flat], attend)
    return hidden.view(b_size, a_size, block, -1)[:, :, 1:]


def labels_of(batch: Batch, anchors: Tensor, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """(predecessor, label, valid), each [B, A, block - 1]: the text that follows each anchor."""
    steps = torch.arange(block, device=anchors.device)
    positions = anchors.unsqueeze(-1) + steps
    inside = positions < batch.lengths[:, None, None]
    text = batch.tokens.gather(1, positions.clamp_max(batch.tokens.shape[1] - 1).flatten(1)).view_as(positions)
    return text[..., :-1], text[..., 1:], inside[..., 1:]


def path_scores(model: BlockModel, hidden: Tensor, unary: Tensor, before: Tensor) -> Tensor:
    """Logits [N, V] of a token given its predecessor ``before`` [N]: the lattice's scores over the whole vocabulary."""
    predecessor = F.embedding(before, model.transition.predecessor).to(hidden.dtype)
    gate = model.gate(hidden)
    if gate is not None:
        predecessor = predecessor * gate
    return unary + F.linear(predecessor, model.transition.successor.to(hidden.dtype))


def loss(
    model: BlockModel,
    batch: Batch,
    anchors: Tensor,
    block: int,
    embedding: Tensor,
    head: Tensor,
    tables: tuple[Tensor, Tensor],
    decay: float,
) -> dict[str, Tensor]:
    """Cross-entropy of the text under the path scores and under the plain logits, and the confidence head's.

    Position t of a block weighs exp(-(t - 1) / decay), since a draft counts only if all before it were right. Positions
    are drawn with that probability rather than weighted: the vocabulary-sized products are most of the work.
    """
    hidden = block_hidden(model, batch, anchors, block, embedding, tables)
    before, label, valid = labels_of(batch, anchors, block)
    weight = torch.exp(-torch.arange(block - 1, device=anchors.device) / decay)
    drawn = valid & (torch.rand(valid.shape, device=valid.device) < weight)
    rows, before_d, label_d = hidden[drawn], before[drawn], label[drawn]
    unary = F.linear(rows, head)
    scores = path_scores(model, rows, unary, before_d)
    parts = {
        "path": F.cross_entropy(scores.float(), label_d),
        # The candidates are the top of the plain logits, so these must be good on their own; a quarter of rows will do.
        "unary": F.cross_entropy(unary[::4].float(), label_d[::4]),
    }
    if isinstance(model, DSpineModel):
        parts["confidence"] = _confidence_loss(
            model, hidden[:, ::4].detach(), head, before[:, ::4], label[:, ::4], valid[:, ::4]
        )
    return parts


def _confidence_loss(
    model: DSpineModel, hidden: Tensor, head: Tensor, before: Tensor, label: Tensor, valid: Tensor
) -> Tensor:
    """Binary cross-entropy of "this draft is right" where all before it were right; trains the head alone."""
    with torch.no_grad():
        scores = path_scores(model, hidden.flatten(0, 2), F.linear(hidden.flatten(0, 2), head), before.flatten())
        values, ids = lattice.topk(scores, model.candidates)
        logprobs = values.float().log_softmax(-1)
        right = (ids[:, 0] == label.flatten()).view_as(label) & valid
        reached = torch.cat([torch.ones_like(right[..., :1]), right[..., :-1]], -1).long().cumprod(-1).bool() & valid
    top, second = logprobs[:, 0].view_as(label), logprobs[:, 1].view_as(label)
    logits = model.confidence_logits(hidden, top, top - second)
    each = F.binary_cross_entropy_with_logits(logits.float(), right.float(), reduction="none")
    return (each * reached).sum() / reached.sum().clamp_min(1)


@torch.no_grad()
def accepted_lengths(
    model: BlockModel, batch: Batch, block: int, embedding: Tensor, head: Tensor, tables: tuple[Tensor, Tensor]
) -> list[list[int]]:
    """Simulated decoding of held-out greedy text: accepted drafts per verification step, per sequence.

    Exact where the text is the target's own greedy output: a draft is accepted if it is the token that follows.
    """
    device, chunk = batch.tokens.device, 16
    answer = int((batch.lengths - batch.prompt_lengths).max())
    matches = []
    for start in range(0, answer, chunk):
        anchors = batch.prompt_lengths[:, None] + torch.arange(start, min(start + chunk, answer), device=device)
        anchors = anchors.clamp_max(batch.tokens.shape[1] - 1)
        hidden = block_hidden(model, batch, anchors, block, embedding, tables)
        flat = hidden.flatten(0, 1)
        paths = lattice.build(model, flat, F.linear(flat, head).float(), batch.tokens.gather(1, anchors).flatten())
        tokens, _ = lattice.greedy_rows(paths)
        _, label, valid = labels_of(batch, anchors, block)
        same = (tokens.view_as(label) == label) & valid
        matches.append(same.long().cumprod(-1).sum(-1))
    table = torch.cat(matches, 1).tolist()
    result = []
    for row, (length, prompt) in enumerate(zip(batch.lengths.tolist(), batch.prompt_lengths.tolist(), strict=True)):
        at, steps = 0, []
        while prompt + at < length - 1:
            steps.append(table[row][at])
            at += table[row][at] + 1
        result.append(steps)
    return result
