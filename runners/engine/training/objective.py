"""Loss and held-out acceptance of a block model on the target's text: many blocks of many sequences in one forward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runners.engine.drafters import lattice
from runners.engine.drafters.block import BlockModel, ProjectedTransition, Transition
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
    kv_heads, group = c.num_key_value_heads, c.num_attention_heads // c.num_key_value_heads
    rows = block * group  # of one block: heads that share keys are further queries
    hidden_from = (pos >= anchors.unsqueeze(-1))[:, None, :, None]  # [B, 1, A, 1, S]

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # By hand, since a mask that lets blocks see only themselves would be computed in full: A times the work.
        q = q.reshape(b_size, a_size, block, kv_heads, group, c.head_dim).permute(0, 3, 1, 2, 4, 5) * c.head_dim**-0.5
        q = q.reshape(b_size, kv_heads, a_size, rows, c.head_dim)
        k, v = (own.reshape(b_size, a_size, block, kv_heads, c.head_dim).permute(0, 3, 1, 2, 4) for own in (k, v))
        ctx_k, ctx_v = (part.to(q.dtype).transpose(1, 2) for part in context_kv[layer])  # [B, kv_heads, S, d]
        seen = (q.flatten(2, 3) @ ctx_k.transpose(-1, -2)).unflatten(2, (a_size, rows))
        scores = torch.cat([seen.masked_fill(hidden_from, -torch.inf), q @ k.transpose(-1, -2)], -1)
        with torch.autocast(device.type, enabled=False):  # else the weights are written in float32
            weights = scores.softmax(-1)
        over_context, over_block = weights.split([s_size, block], -1)
        out = (over_context.flatten(2, 3) @ ctx_v).unflatten(2, (a_size, rows)) + over_block @ v
        out = out.unflatten(3, (block, group)).permute(0, 2, 3, 1, 4, 5)
        return out.reshape(b_size * a_size, block, c.num_attention_heads, c.head_dim)

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


class ProjectedCodebooks(nn.Module):
    """The tables of a transition that holds projections alone, worked out anew at every step."""

    def __init__(self, transition: ProjectedTransition, embedding: Tensor) -> None:
        super().__init__()
        self.transition, self.embedding = transition, embedding

    def forward(self) -> tuple[Tensor, Tensor]:
        """(predecessor, successor) tables, [vocab, rank] each."""
        e = self.embedding
        return (
            e @ self.transition.predecessor_projection.to(e.dtype),
            e @ self.transition.successor_projection.to(e.dtype),
        )

    @contextmanager
    def folded(self) -> Iterator[None]:
        yield


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


def codebooks(transition: Transition | ProjectedTransition, embedding: Tensor) -> SharedCodebooks | ProjectedCodebooks:
    """The form in which a model's tables are trained."""
    if isinstance(transition, Transition):
        return SharedCodebooks(transition, embedding)
    return ProjectedCodebooks(transition, embedding)


def path_scores(
    model: BlockModel, hidden: Tensor, unary: Tensor, before: Tensor, tables: tuple[Tensor, Tensor]
) -> Tensor:
    """Logits [N, V] of a token given its predecessor ``before`` [N]: the lattice's scores over the whole vocabulary."""
    predecessor = F.embedding(before, tables[0]).to(unary.dtype) * model.gate(hidden).to(unary.dtype)
    return torch.addmm(unary, predecessor, tables[1].to(unary.dtype).t())


class _CrossEntropy(torch.autograd.Function):
    """Mean cross-entropy with labels that are part text, part the teacher's distribution.

    The gradient, softmax minus label, is worked out in place in the logits' own precision: over a vocabulary the usual
    chain of operations moves several times the bytes.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, label: Tensor, counts: Tensor, teacher: Tensor | None) -> Tensor:
        with torch.autocast(logits.device.type, enabled=False):
            gradient = logits.softmax(-1)
            text = -gradient.gather(1, label[:, None])[:, 0].float().clamp_min(1e-9).log()
            share = 1.0
            if teacher is not None:
                share = 0.5
                gradient.sub_(teacher.softmax(-1), alpha=1 - share)
            gradient.scatter_add_(1, label[:, None], torch.full_like(gradient[:, :1], -share))
            weight = counts / counts.sum().clamp_min(1)
        ctx.save_for_backward(gradient, weight)
        return (text * weight).sum()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        gradient, weight = ctx.saved_tensors
        return gradient.mul_((weight * upstream).to(gradient.dtype)[:, None]), None, None, None


def cross_entropy(logits: Tensor, label: Tensor, counts: Tensor, teacher: Tensor | None) -> Tensor:
    """The loss of the text, over rows that count; its gradient is that of half text, half teacher where one is given.

    logits, teacher (logits too) [N, V]; label [N]; counts [N] bool. Differentiable once.
    """
    result: Tensor = _CrossEntropy.apply(logits, label, counts, teacher)  # type: ignore[no-untyped-call]
    return result


def loss(
    model: BlockModel,
    codebooks: SharedCodebooks | ProjectedCodebooks,
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

    states, label_d = hidden.flatten(0, 2)[drawn], label.flatten()[drawn]
    position = (anchors.unsqueeze(-1) + steps).clamp_max(batch.tokens.shape[1] - 1)
    row = torch.arange(len(anchors), device=anchors.device)[:, None, None] * batch.tokens.shape[1] + position
    with torch.no_grad():
        teacher = F.linear(batch.final.flatten(0, 1)[row.flatten()[drawn]], head)
    tables = codebooks()
    scores = path_scores(model, states, F.linear(states, head), before.flatten()[drawn], tables)
    parts = {
        "path": cross_entropy(scores, label_d, counts, teacher),
        # The candidates are the top of the plain logits, so these must be good on their own; a quarter of rows will do.
        "unary": cross_entropy(F.linear(states[::4], head), label_d[::4], counts[::4], None),
    }
    if isinstance(model, DSpineModel):
        part = slice(None, None, max(hidden.shape[1] // 2, 1))  # two blocks a sequence: the head is small
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
