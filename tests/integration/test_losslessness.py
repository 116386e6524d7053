"""Greedy output on every prompt of the shipped suite, token by token: plain against transformers, speculation against
plain; and the counters of speculation recomputed from the stream of tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from runners.engine.drafters import load_drafter
from runners.engine.drafters.base import Draft, Drafter
from runners.engine.linear import pack
from runners.engine.llama import Llama
from runners.engine.request import Output, Request
from runners.engine.sampling import SamplingParams
from runners.engine.scheduler import Scheduler, Verification
from runners.engine.tokenizer import Tokenizer

SUITE = Path(__file__).resolve().parents[2] / "conf" / "suite" / "short_long_16.yaml"
TOKENS = 64
NEAR_TIE = 1e-3
"""A fork is excused only where the plain arm's two likeliest tokens are closer than this in log-probability."""
WIDEST = 16
ARMS = [
    ("ngram", 8, "static"),
    *((drafter, block, "static") for drafter in ("dflash2", "dspine") for block in (4, 8, 16)),
    ("dspine", 16, "dynamic"),
]


@dataclass
class Run:
    """One request: its output, and how many tokens each step brought to it. The first are the prefill's."""

    groups: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    """Per position: log-probability of the likeliest token less that of the second; only where they were asked for."""
    output: Output | None = None


def serve(
    scheduler: Scheduler, prompts: Mapping[str, list[int]], tokens: int = TOKENS, **options: Any
) -> dict[str, Run]:
    runs = {prompt_id: Run() for prompt_id in prompts}

    def update(output: Output) -> None:
        run = runs[output.request.rid]
        run.groups.append(len(output.ids) - len(run.ids))
        run.ids = list(output.ids)
        run.margins = [first[0] - second[0] for first, second in output.top_logprobs]
        run.output = output

    fields = {"stop_token_ids": scheduler.target.config.eos_token_ids} | options
    for prompt_id, prompt in prompts.items():
        scheduler.add(Request(prompt_id, prompt, SamplingParams(0.0), tokens, update, **fields))
    while not scheduler.idle:
        scheduler.step()
    return runs


@dataclass
class Bench:
    folder: Path
    target: Llama
    tokenizer: Tokenizer
    prompts: dict[str, list[int]]
    plain: dict[str, Run]
    after: dict[str, Run]
    """What the plain arm would have said past the end of its output."""

    def scheduler(self, drafter: Drafter | None, mode: str = "static", running: int = 1) -> Scheduler:
        return Scheduler(self.target, self.tokenizer, drafter, Verification(mode), running, seed=0)


@pytest.fixture(scope="module", autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def bench(target_folder: Path, _two_threads: None) -> Bench:
    target = Llama.load(target_folder)
    pack(target)  # as the server does
    tokenizer = Tokenizer(target_folder)
    prompts = {
        prompt["id"]: tokenizer.encode_chat(prompt["messages"])
        for prompt in yaml.safe_load(SUITE.read_text())["prompts"]
    }
    assert len(prompts) == 16
    bench = Bench(target_folder, target, tokenizer, prompts, {}, {})
    bench.plain = serve(bench.scheduler(None), prompts, top_logprobs=2)
    whole = {prompt_id: prompt + bench.plain[prompt_id].ids for prompt_id, prompt in prompts.items()}
    bench.after = serve(bench.scheduler(None, running=4), whole, WIDEST, top_logprobs=2, stop_token_ids=frozenset())
    return bench


def compared(
    arm: str, outputs: Mapping[str, Sequence[int]], plain: Mapping[str, Run], say: pytest.CaptureFixture[str]
) -> set[str]:
    """Prompts on which the output is the plain arm's. Fails on a fork that no near-tie of the plain arm excuses; says
    which were excused, and how many positions were compared."""
    identical, positions, unexcused = set(), 0, []
    with say.disabled():
        for prompt_id, ids in outputs.items():
            run = plain[prompt_id]
            fork = next((i for i, pair in enumerate(zip(ids, run.ids, strict=False)) if pair[0] != pair[1]), None)
            if fork is None and len(ids) == len(run.ids):
                identical.add(prompt_id)
                positions += len(ids)
                continue
            fork = min(len(ids), len(run.ids)) if fork is None else fork
            positions += fork
            margin = run.margins[fork] if fork < len(run.margins) else None
            told = f"{arm}: {prompt_id} forks at position {fork}, where plain's margin is {margin}"
            if margin is None or margin >= NEAR_TIE:
                unexcused.append(told)
            else:
                print(f"\nnear-tie: {told}")
        print(f"\n{arm}: {positions} positions compared, {len(identical)} of {len(outputs)} outputs identical")
    assert unexcused == []
    return identical


def test_plain_output_is_that_of_transformers(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    reference = AutoModelForCausalLM.from_pretrained(bench.folder, dtype=torch.float32)
    outputs = {}
    for prompt_id, prompt in bench.prompts.items():
        whole = reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=TOKENS,
            do_sample=False,
        )
        outputs[prompt_id] = whole[0, len(prompt) :].tolist()
    compared("transformers", outputs, bench.plain, capsys)


def recorded(drafter: Drafter) -> dict[tuple[int, ...], list[Draft]]:
    """Prompt -> its drafts in order, filled while the drafter is used. They are read after their verification, so that
    what dynamic verification cuts off is not in them."""
    drafts: dict[tuple[int, ...], list[Draft]] = {}
    states: list[tuple[Any, tuple[int, ...]]] = []
    opens, proposes = drafter.open, drafter.propose

    def opened(prompt: Sequence[int]) -> Any:
        states.append((opens(prompt), tuple(prompt)))
        drafts[tuple(prompt)] = []
        return states[-1][0]

    def propose(asked: Sequence[Any], *arguments: Any) -> list[Draft]:
        proposals = proposes(asked, *arguments)
        for state, draft in zip(asked, proposals, strict=True):
            (prompt,) = [prompt for known, prompt in states if known is state]
            drafts[prompt].append(draft)
        return proposals

    drafter.open, drafter.propose = opened, propose  # type: ignore[method-assign]
    return drafts


def agreement(draft: Sequence[int], truth: Sequence[int]) -> int:
    return next((i for i, pair in enumerate(zip(draft, truth, strict=False)) if pair[0] != pair[1]), len(draft))


@pytest.mark.parametrize(("name", "block", "mode"), ARMS, ids=["-".join(map(str, arm)) for arm in ARMS])
def test_speculation_changes_no_token_and_counts_right(
    name: str, block: int, mode: str, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    drafter = load_drafter(name, bench.target, block)
    drafts = recorded(drafter)
    scheduler = bench.scheduler(drafter, mode, running=WIDEST // block)
    runs = serve(scheduler, bench.prompts)
    identical = compared(f"{name}-{block}-{mode}", {key: run.ids for key, run in runs.items()}, bench.plain, capsys)

    steps = correct = past_the_end = 0
    for prompt_id in identical:
        run, after = runs[prompt_id], bench.after[prompt_id]
        truth = run.ids + after.ids
        groups = run.groups[1:]
        assert run.groups[0] == 1 and sum(groups) == len(run.ids) - 1
        if sum(run.groups[:-1]) == TOKENS - 1:
            assert groups.pop() == 1  # a request that lacks one token is decoded plainly: no verification
        histogram: Counter[int] = Counter()
        done = 1
        for step, (size, draft) in enumerate(zip(groups, drafts[tuple(bench.prompts[prompt_id])], strict=True), 1):
            right = agreement(draft.tokens, truth[done:])
            past = right + 1 - size
            assert past == 0 or (past > 0 and step == len(groups) and done + size == len(run.ids)), prompt_id
            histogram[size - 1 + past] += 1
            past_the_end += past
            done += size
        assert run.output is not None and run.output.spec is not None
        spec = run.output.spec
        assert spec.verify_ct == len(groups)
        assert spec.correct == sum(size - 1 for size in groups) + (past if groups else 0)
        assert Counter({i: n for i, n in enumerate(spec.histogram) if n}) == histogram
        assert spec.proposed == sum(len(draft.tokens) for draft in drafts[tuple(bench.prompts[prompt_id])])
        steps += spec.verify_ct
        correct += spec.correct
    if len(identical) == len(runs):
        assert (scheduler.totals.verify_ct, scheduler.totals.correct) == (steps, correct)
    assert correct > past_the_end > 0, "some drafts are taken, and some are past an end"
    with capsys.disabled():
        print(f"  tau {1 + correct / steps:.2f}: {correct} drafts in {steps} steps, {past_the_end} past the end")
