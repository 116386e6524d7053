"""Sampling and verification: the filters against their definitions, losslessness as a matter of statistics."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from runners.engine import sampling
from runners.engine.sampling import SamplingParams

VOCAB = 8
DRAWS = 4000


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_logits(rows: int, vocab: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, vocab, generator=seeded(seed)) * 1.5


def filtered(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> list[float]:
    """The definition, one row in plain Python: each filter works on what the one before left, normalised."""
    weights = [math.exp(x / temperature) for x in logits]

    def normalise() -> None:
        total = sum(weights)
        weights[:] = [w / total for w in weights]

    def order() -> list[int]:
        return sorted(range(len(weights)), key=lambda i: -weights[i])

    normalise()
    if top_k > 0:
        for i in order()[top_k:]:
            weights[i] = 0.0
        normalise()
    mass = 0.0
    for i in order():
        if mass >= top_p:
            weights[i] = 0.0
        else:
            mass += weights[i]
    normalise()
    weights[:] = [w if w >= min_p * max(weights) else 0.0 for w in weights]
    normalise()
    return weights


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [(1.0, -1, 1.0, 0.0), (0.6, 5, 1.0, 0.0), (1.3, -1, 0.7, 0.0), (0.8, 9, 0.5, 0.0), (1.0, 12, 0.9, 0.2)],
)
def test_target_probs_follow_the_definition(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    logits = random_logits(4, 40)
    probs = sampling.target_probs(logits, SamplingParams(temperature, top_p, top_k, min_p))
    expected = [filtered(row, temperature, top_k, top_p, min_p) for row in logits.tolist()]
    torch.testing.assert_close(probs, torch.tensor(expected))


def test_top_p_looks_past_the_likeliest_where_the_distribution_is_flat() -> None:
    vocab = 3000  # the likeliest 1024 of a nearly flat distribution carry about a third of the mass
    logits = random_logits(1, vocab) * 0.01
    probs = sampling.target_probs(logits, SamplingParams(top_p=0.9))
    torch.testing.assert_close(probs, torch.tensor([filtered(logits[0].tolist(), 1.0, -1, 0.9, 0.0)]))
    assert int((probs > 0).sum()) > 1024


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
    ],
)
def test_values_out_of_range_are_named(values: dict[str, float], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        SamplingParams(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("draft", "best", "expected"),
    [
        ([], [5], (0, 5)),
        ([5, 6], [5, 6, 7], (2, 7)),
        ([5, 6], [5, 1, 7], (1, 1)),
        ([5, 6], [4, 6, 7], (0, 4)),
    ],
)
def test_verify_greedy(draft: list[int], best: list[int], expected: tuple[int, int]) -> None:
    assert sampling.verify_greedy(draft, best) == expected


def test_relaxed_greedy_accepts_what_is_likely_enough() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]]))
    assert sampling.verify_relaxed_greedy([1, 0], logits, 0.25) == (1, 1)  # 0.3 passes, 0.2 does not
    assert sampling.verify_relaxed_greedy([1, 0], logits, 0.15) == (2, 2)
    assert sampling.verify_relaxed_greedy([1, 0], logits, 1.0) == (0, 0)
    assert sampling.verify_relaxed_greedy([0, 1], logits, 1.0) == (2, 2), "the likeliest token always passes"
    assert sampling.verify_relaxed_greedy([], logits[:1], 0.15) == (0, 0)


@pytest.mark.parametrize(("threshold", "share"), [(0.25, 1.0), (0.35, 0.3)])
def test_relaxed_sampling_accepts_every_draft_from_its_threshold_on(threshold: float, share: float) -> None:
    """Not relative to the likeliest token: 0.3 is 0.43 times 0.7, and below 0.35 only its own probability counts."""
    probs, generator = torch.tensor([[0.7, 0.3], [0.5, 0.5]]), seeded(8)
    accepted = sum(sampling.verify_sampled([1], probs, None, None, generator, threshold)[0] for _ in range(DRAWS))
    assert abs(accepted / DRAWS - share) <= 4 * math.sqrt(share * (1 - share) / DRAWS)


@pytest.mark.parametrize(("threshold", "kept"), [(0.0, 3), (0.3, 2), (0.5, 1), (0.95, 0)])
def test_window_cuts_where_survival_falls_below_the_threshold(threshold: float, kept: int) -> None:
    assert sampling.window([0.9, 0.5, 0.5], threshold) == kept


def counts_of(draw: Callable[[torch.Generator], tuple[int, int]], seed: int) -> Tensor:
    """Histogram over pairs of tokens, [VOCAB * VOCAB]."""
    generator = seeded(seed)
    counts = torch.zeros(VOCAB * VOCAB)
    for _ in range(DRAWS):
        first, second = draw(generator)
        counts[first * VOCAB + second] += 1
    return counts


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(0.7, top_p=0.8), SamplingParams(1.2, top_k=4)])
@pytest.mark.parametrize("proposal", ["candidates", "point_mass"])
def test_verification_is_lossless(params: SamplingParams, proposal: str) -> None:
    """Pairs of tokens after speculation follow the target's joint distribution: chi-square, and a total-variation
    distance no larger than that of as many direct draws."""
    probs = sampling.target_probs(random_logits(3, VOCAB, seed=1), params)
    # Drafts come from another distribution over part of the vocabulary.
    q_ids = torch.stack([torch.randperm(VOCAB, generator=seeded(i))[:5] for i in range(2)])
    q_probs = torch.softmax(random_logits(2, 5, seed=9), -1)
    fixed = [int(probs[0].argmax()), int(probs[1].argmin())]

    def speculate(generator: torch.Generator) -> tuple[int, int]:
        if proposal == "candidates":
            index = torch.multinomial(q_probs, 1, generator=generator)
            draft = q_ids.gather(1, index)[:, 0].tolist()
            correct, token = sampling.verify_sampled(draft, probs, q_ids, q_probs, generator)
        else:
            draft = fixed
            correct, token = sampling.verify_sampled(draft, probs, None, None, generator)
        tokens = [*draft[:correct], token]
        if len(tokens) < 2:  # the next step would draw the second token from the target
            tokens.append(sampling.sample(probs[1], generator))
        return tokens[0], tokens[1]

    def direct(generator: torch.Generator) -> tuple[int, int]:
        return sampling.sample(probs[0], generator), sampling.sample(probs[1], generator)

    expected = torch.outer(probs[0], probs[1]).flatten() * DRAWS
    counts = counts_of(speculate, seed=2)
    possible = expected > 0
    assert float(counts[~possible].sum()) == 0
    # Cells too rare for the chi-square approximation are pooled.
    common = possible & (expected >= 5)
    observed = [*counts[common].tolist(), float(counts[~common].sum())]
    wanted = [*expected[common].tolist(), float(expected[~common].sum())]
    if wanted[-1] < 5:
        observed[-2:], wanted[-2:] = [sum(observed[-2:])], [sum(wanted[-2:])]
    scale = sum(observed) / sum(wanted)
    assert chisquare(observed, [w * scale for w in wanted]).pvalue > 1e-3

    def distance(counted: Tensor) -> float:
        return float((counted - expected).abs().sum()) / (2 * DRAWS)

    noise = [distance(counts_of(direct, seed)) for seed in (3, 4)]
    assert distance(counts) < 1.5 * max(noise)


def test_a_wrong_acceptance_rule_is_noticed() -> None:
    """The test above can fail: relaxed acceptance, which is lossy, is caught by the same measure."""
    probs = sampling.target_probs(random_logits(2, VOCAB, seed=1), SamplingParams())
    draft = [int(probs[0].topk(2).indices[1])]
    generator = seeded(5)
    first = torch.zeros(VOCAB)
    for _ in range(DRAWS):
        correct, token = sampling.verify_sampled(draft, probs, None, None, generator, relaxed_threshold=0.1)
        first[draft[0] if correct else token] += 1
    expected = probs[0].double() / probs[0].double().sum() * DRAWS
    assert chisquare(first.tolist(), expected.tolist()).pvalue < 1e-6


def test_accepted_share_is_the_overlap_of_both_distributions() -> None:
    """Leviathan et al.: P(accept) = sum min(p, q)."""
    p = sampling.target_probs(random_logits(2, VOCAB, seed=3), SamplingParams())
    q = torch.softmax(random_logits(1, VOCAB, seed=4), -1)
    ids, generator = torch.arange(VOCAB)[None], seeded(6)
    accepted = 0
    for _ in range(DRAWS):
        draft = [sampling.sample(q[0], generator)]
        accepted += sampling.verify_sampled(draft, p, ids, q, generator)[0]
    overlap = float(torch.minimum(p[0], q[0]).sum())
    assert abs(accepted / DRAWS - overlap) < 4 * math.sqrt(overlap * (1 - overlap) / DRAWS)
