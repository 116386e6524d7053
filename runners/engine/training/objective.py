"""Loss and held-out acceptance of a block model on the target's text: many blocks of many sequences in one forward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runners.engine.drafters import lattice
from runners.engine.drafters.block import BlockModel, Transition
from runners.engine.drafters.dspine import DSpineModel


@dataclass
class Batch:
    """Sequences with what the frozen target says of them."""

    tokens: Tensor  # [B, S] long
    lengths: Tensor  # [B]
    prompt_lengths: Tensor  # [B]
    features: Tensor  # [B, S, layers * H]
    final: Tensor  # [B, S, H], normed: the head's input


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


class SharedCodebooks(nn.Module):
    """The transition's codebooks while they are trained: free rows plus a projection of the target's embedding.

    A free row learns only from its own token's occurrences; the projection carries what one token shows over to those
    like it. ``folded`` turns both into the plain tables that a checkpoint keeps.
    """

    def __init__(self, transition: Transition, embedding: Tensor) -> None:
        super().__init__()
        rank, hidden = transition.predecessor.shape[1], embedding.shape[1]
        self.free = transition
        self.embedding = embedding
        self.predecessor = nn.Parameter(torch.randn(hidden, rank, device=embedding.device) * hidden**-0.5)
        self.successor = nn.Parameter(torch.zeros(hidden, rank, device=embedding.device))

    def forward(self) -> tuple[Tensor, Tensor]:
        """(predecessor, successor) tables, [vocab, rank] each."""
        e = self.embedding
        return (
            self.free.predecessor + e @ self.predecessor.to(e.dtype),
            self.free.successor + e @ self.successor.to(e.dtype),
        )

    @contextmanager
    def folded(self) -> Iterator[None]:
        """Within, the model's own transition holds the whole tables."""
        with torch.no_grad():
            kept = [p.clone() for p in self.free.parameters()]
            for parameter, table in zip((self.free.predecessor, self.free.successor), self(), strict=True):
                parameter.copy_(table)
        yield
        with torch.no_grad():
            for parameter, free in zip(self.free.parameters(), kept, strict=True):
                parameter.copy_(free)


def path_scores(
    model: BlockModel, hidden: Tensor, unary: Tensor, before: Tensor, tables: tuple[Tensor, Tensor]
) -> Tensor:
    """Logits [N, V] of a token given its predecessor ``before`` [N]: the lattice's scores over the whole vocabulary."""
    predecessor = F.embedding(before, tables[0]).to(hidden.dtype)
    gate = model.gate(hidden)
    if gate is not None:
        predecessor = predecessor * gate
    return unary + F.linear(predecessor, tables[1].to(hidden.dtype))


def loss(
    model: BlockModel,
    codebooks: SharedCodebooks,
    batch: Batch,
    anchors: Tensor,
    block: int,
    head: Tensor,
    rope: tuple[Tensor, Tensor],
    decay: float,
    rows: int,
) -> dict[str, Tensor]:
    """Cross-entropy of the text under the path scores and under the plain logits, and the confidence head's.

    The labels are half the text itself and half the target's own distribution there, which says more per position.
    Position t of a block weighs exp(-(t - 1) / decay), since a draft counts only if all before it were right. ``rows``
    positions are drawn by that weight rather than all weighted: the vocabulary-sized products are most of the work. No
    step waits for the device, so that launches run ahead of it.
    """
    hidden = block_hidden(model, batch, anchors, block, codebooks.embedding, rope)
    before, label, valid = labels_of(batch, anchors, block)
    steps = torch.arange(block - 1, device=anchors.device)
    # Weighted draw without replacement (Efraimidis and Spirakis 2006, in its Gumbel form).
    keys = torch.empty(valid.shape, device=valid.device).exponential_().log().neg() - steps / decay
    keys, drawn = keys.masked_fill(~valid, -torch.inf).flatten().topk(min(rows, valid.numel()))
    counts = keys > -torch.inf  # a small batch may hold fewer valid positions than are drawn

    def mean(each: Tensor, counts: Tensor) -> Tensor:
        return (each * counts).sum() / counts.sum().clamp_min(1)

    states, label_d = hidden.flatten(0, 2)[drawn], label.flatten()[drawn]
    position = (anchors.unsqueeze(-1) + steps).clamp_max(batch.tokens.shape[1] - 1)
    row = torch.arange(len(anchors), device=anchors.device)[:, None, None] * batch.tokens.shape[1] + position
    teacher = F.linear(batch.final.flatten(0, 1)[row.flatten()[drawn]], head).float().softmax(-1)
    unary = F.linear(states, head)
    tables = codebooks()
    logprobs = path_scores(model, states, unary, before.flatten()[drawn], tables).float().log_softmax(-1)
    text_loss = -logprobs.gather(1, label_d[:, None])[:, 0]
    parts = {
        "path": mean(text_loss, counts),
        "soft": mean(-(teacher * logprobs).sum(-1), counts),
        # The candidates are the top of the plain logits, so these must be good on their own; a quarter of rows will do.
        "unary": mean(F.cross_entropy(unary[::4].float(), label_d[::4], reduction="none"), counts[::4]),
    }
    if isinstance(model, DSpineModel):
        part = slice(None, None, 4)
        parts["confidence"] = _confidence_loss(
            model, hidden[:, part].detach(), head, before[:, part], label[:, part], valid[:, part], tables
        )
    return parts


def _confidence_loss(
    model: DSpineModel,
    hidden: Tensor,
    head: Tensor,
    before: Tensor,
    label: Tensor,
    valid: Tensor,
    tables: tuple[Tensor, Tensor],
) -> Tensor:
    """Binary cross-entropy of "this draft is right" where all before it were right; trains the head alone."""
    with torch.no_grad():
        scores = path_scores(
            model, hidden.flatten(0, 2), F.linear(hidden.flatten(0, 2), head), before.flatten(), tables
        )
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
