"""Which token comes next, and which drafts survive: pure functions over the target's logits.

Lossless verification is speculative sampling (Leviathan et al. 2023, Chen et al. 2023): a draft x drawn from q is
accepted with probability min(1, p(x) / q(x)); at the first rejection the token comes from max(p - q, 0), normalised;
after the last accepted draft one more (the bonus) comes from p. A draft without q is a point mass: q(x) = 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_HEAD = 1024  # candidates looked at before the whole vocabulary is sorted for top-p


@dataclass(frozen=True)
class SamplingParams:
    """How one request samples. ``temperature`` 0 is greedy; ``top_k`` -1, ``top_p`` 1 and ``min_p`` 0 are off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        """Raises ValueError naming the value that is out of range, in SGLang's words."""
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must be a non-negative finite number, got {self.temperature}.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}.")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p must be in [0, 1], got {self.min_p}.")
        if self.top_k < 1 and self.top_k != -1:
            raise ValueError(f"top_k must be -1 (disable), or at least 1, got {self.top_k}.")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1


def target_probs(logits: Tensor, params: SamplingParams) -> Tensor:
    """[n, vocab] logits -> [n, vocab] float32 probabilities after temperature, top-k, top-p and min-p, in this order.

    Each filter works on what the one before left, normalised, as in transformers.
    """
    probs = torch.softmax(logits.float() / params.temperature, -1)
    if params.top_k > 0 and params.top_k < probs.shape[-1]:
        least = probs.topk(params.top_k, -1).values[:, -1:]
        probs = _keep(probs, least)
    if params.top_p < 1:
        probs = _keep(probs, _least_of_top_p(probs, params.top_p))
    if params.min_p > 0:
        probs = _keep(probs, params.min_p * probs.amax(-1, keepdim=True))
    return probs


def _keep(probs: Tensor, least: Tensor) -> Tensor:
    kept = torch.where(probs >= least, probs, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def _least_of_top_p(probs: Tensor, top_p: float) -> Tensor:
    """[n, 1]: the smallest probability of the smallest set of likeliest tokens whose mass reaches ``top_p``."""
    # The few likeliest tokens nearly always carry the mass, and finding them costs far less than sorting everything.
    ranked = probs.topk(min(_HEAD, probs.shape[-1]), -1).values
    mass = ranked.cumsum(-1)
    if bool((mass[:, -1] < top_p).any()):
        ranked = probs.sort(-1, descending=True).values
        mass = ranked.cumsum(-1)
    count = (mass - ranked < top_p).sum(-1, keepdim=True)
    return ranked.gather(-1, count - 1)


def sample(probs: Tensor, generator: torch.Generator | None) -> int:
    """Draw one token from [vocab] probabilities."""
    return int(torch.multinomial(probs, 1, generator=generator))


def verify_greedy(draft: Sequence[int], best: Sequence[int]) -> tuple[int, int]:
    """(number of correct drafts, token after them). ``best``: the target's likeliest token after each of the
    len(draft) + 1 prefixes."""
    correct = 0
    while correct < len(draft) and draft[correct] == best[correct]:
        correct += 1
    return correct, best[correct]


def verify_sampled(
    draft: Sequence[int],
    probs: Tensor,
    q_ids: Tensor | None,
    q_probs: Tensor | None,
    generator: torch.Generator | None,
    relaxed_threshold: float | None = None,
) -> tuple[int, int]:
    """(number of accepted drafts, token after them).

    probs: [len(draft) + 1, vocab] target probabilities; q_ids, q_probs: [len(draft), k] the candidates each draft was
    drawn from and their probabilities, None for point masses. The output then follows ``probs`` exactly, unless
    ``relaxed_threshold`` is given: then a draft that the target gives at least this probability is accepted too, which
    is lossy (SGLang's ``speculative_accept_threshold_single``).
    """
    uniform = torch.rand(len(draft), generator=generator).tolist()
    for i, token in enumerate(draft):
        p = float(probs[i, token])
        q = 1.0
        if q_ids is not None and q_probs is not None:
            q = float(q_probs[i, q_ids[i] == token].sum())
        if uniform[i] * q < p:  # u < p / q, without dividing by a q that underflowed
            continue
        if relaxed_threshold is not None and p >= relaxed_threshold:
            continue
        return i, sample(_residual(probs[i], token, q_ids, q_probs, i), generator)
    return len(draft), sample(probs[len(draft)], generator)


def _residual(p: Tensor, token: int, q_ids: Tensor | None, q_probs: Tensor | None, i: int) -> Tensor:
    rest = p.clone()
    if q_ids is None or q_probs is None:
        rest[token] = 0
    else:
        rest.index_add_(0, q_ids[i], -q_probs[i].to(rest.dtype))
        rest.clamp_(min=0)
    total = rest.sum()
    # Nothing is left only where p and q agree up to rounding; then p itself is what remains to be drawn from.
    return rest / total if float(total) > 0 else p


def verify_relaxed_greedy(draft: Sequence[int], logits: Tensor, threshold: float) -> tuple[int, int]:
    """(number of accepted drafts, token after them) at temperature 0, lossy: a draft is accepted where it is the
    target's likeliest token or has at least the probability ``threshold``, taken at temperature 1.
    logits: [len(draft) + 1, vocab]."""
    best = logits.argmax(-1).tolist()
    probs = torch.softmax(logits[:-1].float(), -1)
    for i, token in enumerate(draft):
        if token != best[i] and float(probs[i, token]) < threshold:
            return i, best[i]
    return len(draft), best[-1]


def window(confidence: Sequence[float], threshold: float) -> int:
    """How many drafts dynamic verification keeps: those whose chance to be reached and accepted is at least
    ``threshold`` (``confidence[i]``: P(draft i accepted | all before it accepted))."""
    survival = 1.0
    for i, chance in enumerate(confidence):
        survival *= chance
        if survival < threshold:
            return i
    return len(confidence)
