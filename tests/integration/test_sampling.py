"""Sampled output of the real engine follows the target's own distribution, with both trained drafters.

Many requests with different seeds answer one prompt. Their first token is nearly certain, the two after it are open and
are what the first verification step drafts. How often they come is compared with the target's exact probabilities by
total variation; the floor is what as many draws from the exact distribution itself exceed once in a thousand times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from runners.engine.drafters import load_drafter
from runners.engine.linear import pack
from runners.engine.llama import Llama
from runners.engine.request import Output, Request
from runners.engine.sampling import SamplingParams
from runners.engine.scheduler import Scheduler, Verification
from runners.engine.tokenizer import Tokenizer

PROMPT = "<|im_start|>user\nGive me advice.<|im_end|>\n<|im_start|>assistant\nIt is important"
SAMPLES = 300
BLOCK = 4
SHOWN = 5
"""Tokens that have a cell of their own at each of the two positions; the others share one."""
FILTERS = [(1.0, -1), (0.9, 20)]
"""top_p, top_k; the temperature is 1."""

Cells = dict[tuple[int, int], float]
REST = -1


@pytest.fixture(scope="module", autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def target(target_folder: Path) -> Llama:
    target = Llama.load(target_folder)
    pack(target)  # as the server does
    return target


@pytest.fixture(scope="module")
def tokenizer(target_folder: Path) -> Tokenizer:
    return Tokenizer(target_folder)


def filtered(probs: Tensor, top_p: float, top_k: int) -> Tensor:
    """[vocab] probabilities after top-k, then top-p, written down once more and naively."""
    values, order = probs.double().sort(descending=True)
    if top_k > 0:
        values[top_k:] = 0
    values /= values.sum()
    values[values.cumsum(0) - values >= top_p] = 0
    return torch.zeros_like(values).scatter(0, order, values / values.sum())


@torch.inference_mode()
def following(target: Llama, text: Sequence[int], top_p: float, top_k: int) -> Tensor:
    """[vocab] exact probabilities of the token after ``text``, by one forward of all of it."""
    hidden, _ = target(torch.tensor(text), [target.new_cache(len(text))], [len(text)], ())
    return filtered(target.logits(hidden[-1:])[0].softmax(-1), top_p, top_k)


def exact(target: Llama, text: Sequence[int], top_p: float, top_k: int) -> Cells:
    """Joint probabilities of the two tokens after ``text``: the likeliest each, and the rest."""
    cells: Cells = {}
    first = following(target, text, top_p, top_k)
    for one in first.topk(SHOWN).indices.tolist():
        second = following(target, [*text, one], top_p, top_k)
        shown = second.topk(SHOWN).indices.tolist()
        for two in shown:
            cells[one, two] = float(first[one] * second[two])
        cells[one, REST] = float(first[one] * (1 - second[shown].sum()).clamp(min=0))
    cells[REST, REST] = max(0.0, 1 - sum(cells.values()))
    return cells


def cell(pair: tuple[int, int], cells: Cells) -> tuple[int, int]:
    coarser = (pair[0], REST)
    return pair if pair in cells else coarser if coarser in cells else (REST, REST)


def distance(pairs: Sequence[tuple[int, int]], cells: Cells) -> float:
    """Total variation between the pairs' frequencies and the exact probabilities."""
    counts = Counter(cell(pair, cells) for pair in pairs)
    return 0.5 * sum(abs(counts[key] / len(pairs) - chance) for key, chance in cells.items())


def floor(cells: Cells, n: int) -> float:
    """The distance that ``n`` draws from the exact distribution stay below in 999 of 1000 cases."""
    chances = np.array(list(cells.values()))
    chances /= chances.sum()
    draws = np.random.default_rng(0).multinomial(n, chances, size=20_000)
    return float(np.quantile(0.5 * np.abs(draws / n - chances).sum(1), 0.999))


@pytest.fixture(scope="module")
def text(target: Llama, tokenizer: Tokenizer) -> list[int]:
    """The prompt and its likeliest first token, which is nearly certain."""
    prompt = tokenizer.encode(PROMPT)
    first = following(target, prompt, *FILTERS[0])
    assert first.max() > 0.9
    return [*prompt, int(first.argmax())]


def drawn(
    target: Llama,
    tokenizer: Tokenizer,
    name: str,
    verification: Verification,
    text: list[int],
    top_p: float,
    top_k: int,
) -> tuple[list[tuple[int, int]], float]:
    """The second and third tokens of the answers that begin as ``text`` ends, and the share of drafts accepted."""
    outputs: list[list[int]] = []

    def update(output: Output) -> None:
        if output.finish is not None:
            outputs.append(list(output.ids))

    scheduler = Scheduler(target, tokenizer, load_drafter(name, target, BLOCK), verification, 8, seed=0)
    for seed in range(SAMPLES):
        scheduler.add(Request(str(seed), text[:-1], SamplingParams(1.0, top_p, top_k, seed=seed), 3, update))
    while not scheduler.idle:
        scheduler.step()
    assert scheduler.totals.verify_ct == SAMPLES
    pairs = [(ids[1], ids[2]) for ids in outputs if ids[0] == text[-1]]
    return pairs, scheduler.totals.correct / scheduler.totals.proposed


@pytest.mark.parametrize(("top_p", "top_k"), FILTERS, ids=["all", "filtered"])
@pytest.mark.parametrize("name", ["dflash2", "dspine"])
def test_sampled_output_follows_the_target(
    name: str,
    top_p: float,
    top_k: int,
    target: Llama,
    tokenizer: Tokenizer,
    text: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    cells = exact(target, text, top_p, top_k)
    pairs, accepted = drawn(target, tokenizer, name, Verification(), text, top_p, top_k)
    assert len(pairs) > 0.8 * SAMPLES
    assert 0.1 < accepted < 0.9, "drafts are taken, and drafts are refused"
    found, least = distance(pairs, cells), floor(cells, len(pairs))
    with capsys.disabled():
        print(
            f"\n{name}: TV {found:.3f}, floor {least:.3f}, n {len(pairs)}, {len(cells)} cells, {accepted:.2f} accepted"
        )
    assert found < least


@pytest.mark.parametrize("name", ["dflash2", "dspine"])
def test_relaxed_verification_is_caught_by_the_same_measure(
    name: str, target: Llama, tokenizer: Tokenizer, text: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    cells = exact(target, text, *FILTERS[0])
    relaxed = Verification("relaxed", accept_threshold=0.01)
    pairs, accepted = drawn(target, tokenizer, name, relaxed, text, *FILTERS[0])
    found, least = distance(pairs, cells), floor(cells, len(pairs))
    with capsys.disabled():
        print(f"\n{name}, relaxed: TV {found:.3f}, floor {least:.3f}, n {len(pairs)}, {accepted:.2f} accepted")
    assert found > least
