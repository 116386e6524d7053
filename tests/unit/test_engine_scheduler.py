"""The scheduler with a target of random weights and drafters whose proposals are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from runners.engine import scheduler as scheduler_module
from runners.engine.drafters.base import Draft, Drafter, DraftSampling
from runners.engine.drafters.ngram import NgramDrafter
from runners.engine.llama import Llama
from runners.engine.request import Finish, Output, Request
from runners.engine.sampling import SamplingParams
from runners.engine.scheduler import Scheduler, Verification
from runners.engine.tokenizer import Tokenizer
from tests import tiny_llama

GREEDY = SamplingParams(temperature=0.0)
PROMPTS = [[5, 9, 33], [17, 40, 5, 61, 22], [8], [50, 3, 12, 44]]


class Recited(Drafter):
    """Drafts from known outputs, wrong at chosen places, and checks what the scheduler tells it."""

    name = "recited"

    def __init__(
        self,
        answers: dict[tuple[int, ...], list[int]],
        proposed: int,
        right: Sequence[int],
        layers: tuple[int, ...] = (),
    ) -> None:
        """``answers``: prompt -> output; ``right[k]``: how many drafts of proposal k (cyclic) are the answer's."""
        self.answers, self.proposed, self.right, self.capture_layers = answers, proposed, right, layers
        self.gives_confidence = True
        self.confidence = [1.0] * proposed
        self.calls = 0
        self.limits: list[int] = []

    @dataclass
    class State:
        prompt: tuple[int, ...]
        seen: list[int] = field(default_factory=list)
        drafts: int = 0

    def open(self, prompt: Sequence[int]) -> Any:
        return self.State(tuple(prompt))

    def extend(self, states: Sequence[Any], token_ids: Sequence[Sequence[int]], features: Tensor | None) -> None:
        for state, tokens in zip(states, token_ids, strict=True):
            state.seen += tokens
        if self.capture_layers:
            assert features is not None
            assert features.shape == (sum(map(len, token_ids)), len(self.capture_layers) * 32)

    def propose(
        self, states: Sequence[Any], anchors: Sequence[int], limits: Sequence[int], sampling: Sequence[DraftSampling]
    ) -> list[Draft]:
        self.calls += 1
        self.limits += limits
        drafts = []
        for state, anchor, limit in zip(states, anchors, limits, strict=True):
            whole = [*state.prompt, *self.answers[state.prompt]]
            done = len(state.seen)
            assert [*state.seen, anchor] == whole[: done + 1], "all committed and scored tokens, in order, once"
            truth = whole[done + 1 : done + 1 + min(limit, self.proposed)]
            right = self.right[state.drafts % len(self.right)]
            tokens = [t if i < right else (t + 1) % tiny_llama.VOCAB for i, t in enumerate(truth)]
            tokens += [0] * (min(limit, self.proposed) - len(truth))  # past the known answer
            state.drafts += 1
            drafts.append(Draft(tokens, confidence=self.confidence[: len(tokens)]))
        return drafts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def target(folder: Path) -> Llama:
    return Llama.load(folder)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder)


@dataclass
class Run:
    """What one request brought: every update's number of tokens, and the last state."""

    lengths: list[int]
    output: Output

    @property
    def ids(self) -> list[int]:
        return self.output.ids


class Bench:
    def __init__(self, target: Llama, tokenizer: Tokenizer) -> None:
        self.target, self.tokenizer = target, tokenizer

    def scheduler(
        self, drafter: Drafter | None = None, verification: Verification | None = None, running: int = 4
    ) -> Scheduler:
        return Scheduler(self.target, self.tokenizer, drafter, verification or Verification(), running, seed=0)

    def run(self, scheduler: Scheduler, prompts: list[list[int]], tokens: int = 24, **options: Any) -> list[Run]:
        runs: dict[str, Run] = {}

        def update(output: Output) -> None:
            run = runs.setdefault(output.request.rid, Run([], output))
            run.lengths.append(len(output.ids))

        for i, prompt in enumerate(prompts):
            fields = {"sampling": GREEDY, "max_new_tokens": tokens, "on_update": update} | options
            scheduler.add(Request(str(i), prompt, **fields))
        while not scheduler.idle:
            scheduler.step()
        return [runs[str(i)] for i in range(len(prompts))]

    def plain(self, prompts: list[list[int]], tokens: int = 24) -> list[list[int]]:
        return [self.run(self.scheduler(running=1), [p], tokens)[0].ids for p in prompts]

    def recited(self, tokens: int = 40, **options: Any) -> Recited:
        answers = {tuple(p): ids for p, ids in zip(PROMPTS, self.plain(PROMPTS, tokens), strict=True)}
        return Recited(answers, **options)


@pytest.fixture
def bench(target: Llama, tokenizer: Tokenizer) -> Bench:
    return Bench(target, tokenizer)


@pytest.mark.parametrize("running", [1, 3, 4])
@pytest.mark.parametrize("right", [[0], [4], [2, 0, 4, 1]])
def test_speculation_changes_no_token(bench: Bench, running: int, right: list[int]) -> None:
    drafter = bench.recited(proposed=4, right=right, layers=(0, 2))
    runs = bench.run(bench.scheduler(drafter, running=running), PROMPTS)
    assert [run.ids for run in runs] == bench.plain(PROMPTS)


def test_counters_follow_from_the_token_stream(bench: Bench) -> None:
    """Recomputed from the lengths of the updates alone: the first is the prefill's token, each other a step's."""
    drafter = bench.recited(proposed=4, right=[2, 0, 4, 1])
    for run in bench.run(bench.scheduler(drafter), PROMPTS, tokens=24):
        spec = run.output.spec
        assert spec is not None
        steps = [after - before for before, after in zip(run.lengths, run.lengths[1:], strict=False)]
        undrafted = run.lengths[-2] == 23  # one token was left: a decode without drafts, not a verification step
        if undrafted:
            assert steps.pop() == 1
        past_the_end = spec.correct + spec.verify_ct - sum(steps)
        assert 0 <= past_the_end <= 4
        histogram = [0] * 5
        for i, step in enumerate(steps):
            histogram[step - 1 + (past_the_end if i == len(steps) - 1 else 0)] += 1
        assert spec.histogram == histogram
        assert spec.verify_ct == len(steps)
        assert spec.proposed == 4 * len(steps)
        assert spec.correct == sum(i * n for i, n in enumerate(histogram))


def test_drafts_past_the_limit_count_as_correct(bench: Bench) -> None:
    drafter = bench.recited(proposed=6, right=[6])
    (run,) = bench.run(bench.scheduler(drafter), PROMPTS[:1], tokens=4)
    spec = run.output.spec
    assert spec is not None
    assert len(run.ids) == 4
    assert (spec.verify_ct, spec.correct, spec.proposed) == (1, 6, 6)
    info = run.output.meta_info()
    assert info["spec_accept_length"] == 4.0
    assert info["spec_accept_rate"] == 1.0
    assert info["spec_correct_drafts_histogram"] == [0, 0, 0, 0, 0, 0, 1]
    assert "spec_cap_length" not in info


def test_no_draft_is_made_for_the_last_token(bench: Bench) -> None:
    drafter = bench.recited(proposed=2, right=[2])
    (run,) = bench.run(bench.scheduler(drafter), PROMPTS[:1], tokens=8)  # 1 + 3 + 3 + 1
    assert drafter.calls == 2
    assert run.lengths == [1, 4, 7, 8]
    assert run.output.spec is not None and run.output.spec.verify_ct == 2


def test_one_proposal_and_one_forward_serve_all_requests(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = bench.recited(proposed=3, right=[3])
    forwards: list[int] = []
    forward = Llama.forward

    def counted(self: Llama, tokens: Tensor, *rest: Any) -> Any:
        forwards.append(len(tokens))
        return forward(self, tokens, *rest)

    monkeypatch.setattr(Llama, "forward", counted)
    bench.run(bench.scheduler(drafter), PROMPTS, tokens=9)
    assert forwards == [sum(map(len, PROMPTS)), 16, 16]
    assert drafter.calls == 2


def test_a_long_prompt_is_scored_in_pieces(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [[5, 9, 33, 20] * 5, [7, 8, 9]]
    whole = bench.plain(prompts, 12)
    monkeypatch.setattr(scheduler_module, "PREFILL_TOKENS", 6)
    assert [run.ids for run in bench.run(bench.scheduler(), prompts, tokens=12)] == whole
    answers = {tuple(p): ids for p, ids in zip(prompts, bench.plain(prompts, 24), strict=True)}
    drafter = Recited(answers, proposed=3, right=[3, 1])
    assert [run.ids for run in bench.run(bench.scheduler(drafter), prompts, tokens=12)] == whole


def test_the_window_ends_with_the_context(bench: Bench) -> None:
    prompt = [5, 9, 33] * 40  # 120 of 128 tokens
    answer = bench.plain([prompt], 8)[0]
    drafter = Recited({tuple(prompt): answer}, proposed=6, right=[1])
    (run,) = bench.run(bench.scheduler(drafter), [prompt], tokens=8)
    assert run.ids == answer
    assert drafter.limits == [6, 5, 3]  # scored tokens so far 120, 122, 124; one more is the anchor
    assert run.output.meta_info()["spec_cap_lens_histogram"] == [0, 0, 0, 0, 1, 0, 1, 1]


def test_eos_ends_the_output_inside_a_window(bench: Bench) -> None:
    (plain,) = bench.plain(PROMPTS[:1], 24)
    end = plain[9]
    cut = plain.index(end) + 1
    drafter = bench.recited(proposed=6, right=[6])
    (run,) = bench.run(bench.scheduler(drafter), PROMPTS[:1], stop_token_ids=frozenset([end]))
    assert run.ids == plain[:cut]
    assert run.output.finish == Finish("stop", matched=end)
    assert run.output.meta_info()["finish_reason"] == {"type": "stop", "matched": end}


def test_a_stop_text_may_span_tokens(bench: Bench) -> None:
    (plain,) = bench.plain(PROMPTS[:1], 24)
    text = bench.tokenizer.decode(plain)
    stop = text[9:13]
    for drafter in (None, bench.recited(proposed=5, right=[5])):
        (run,) = bench.run(bench.scheduler(drafter), PROMPTS[:1], stop=("never there", stop))
        assert run.output.text == text[: text.index(stop)]
        assert run.output.finish == Finish("stop", matched=stop)
        assert bench.tokenizer.decode(run.ids[:-1]) in text[: text.index(stop) + len(stop) - 1]


def test_what_may_begin_a_stop_text_is_held_back(bench: Bench) -> None:
    (plain,) = bench.plain(PROMPTS[:1], 24)
    text = bench.tokenizer.decode(plain)
    shown: list[str] = []

    def update(output: Output) -> None:
        shown.append(output.text[: len(output.text) - output.held_back()])

    stop = text[9:13]
    scheduler = bench.scheduler()
    scheduler.add(Request("r", PROMPTS[0], GREEDY, 24, update, stop=(stop,)))
    while not scheduler.idle:
        scheduler.step()
    final = text[: text.index(stop)]
    assert shown[-1] == final
    assert all(final.startswith(part) for part in shown)


def test_dynamic_verification_cuts_the_window(bench: Bench) -> None:
    drafter = bench.recited(proposed=4, right=[4])
    drafter.confidence = [0.9, 0.8, 0.5, 0.9]  # survival 0.9, 0.72, 0.36, 0.32
    (run,) = bench.run(bench.scheduler(drafter, Verification("dynamic", 0.4)), PROMPTS[:1], tokens=10)
    assert run.ids == bench.plain(PROMPTS[:1], 10)[0]
    info = run.output.meta_info()
    assert info["spec_num_proposed_drafts"] == 2 * info["spec_verify_ct"]
    assert info["spec_cap_length"] == 3.0
    assert info["spec_cap_lens_histogram"] == [0, 0, 0, 3, 0, 0]
    assert info["spec_correct_drafts_histogram"] == [0, 0, 3, 0, 0]


def test_dynamic_verification_may_verify_nothing(bench: Bench) -> None:
    drafter = bench.recited(proposed=4, right=[4])
    drafter.confidence = [0.1] * 4
    (run,) = bench.run(bench.scheduler(drafter, Verification("dynamic", 0.4)), PROMPTS[:1], tokens=5)
    info = run.output.meta_info()
    assert (info["spec_verify_ct"], info["spec_num_proposed_drafts"], info["spec_accept_rate"]) == (3, 0, 0.0)


def test_a_drafter_that_may_propose_less_tells_its_windows(bench: Bench) -> None:
    (run,) = bench.run(bench.scheduler(NgramDrafter(block_size=4)), PROMPTS[:1], tokens=60)
    info = run.output.meta_info()
    windows = info["spec_cap_lens_histogram"]
    assert sum(windows) == info["spec_verify_ct"] and windows[1] > 0, "some steps found no match"
    assert sum((size - 1) * count for size, count in enumerate(windows)) == info["spec_num_proposed_drafts"]
    assert info["spec_cap_length"] == 1 + info["spec_num_proposed_drafts"] / info["spec_verify_ct"]


def test_dynamic_verification_needs_a_confidence_head(bench: Bench) -> None:
    drafter = bench.recited(proposed=4, right=[4])
    drafter.gives_confidence = False
    with pytest.raises(ValueError, match="confidence head"):
        bench.scheduler(drafter, Verification("dynamic"))


def test_relaxed_verification_accepts_other_tokens(bench: Bench) -> None:
    drafter = bench.recited(proposed=4, right=[0])
    scheduler = bench.scheduler(drafter, Verification("relaxed", accept_threshold=0.0))
    scheduler.add(Request("r", PROMPTS[0], GREEDY, 6, lambda output: None))
    scheduler.step()
    assert scheduler.totals.correct == 4  # every draft is wrong, and a threshold of 0 takes them all


@pytest.mark.parametrize("drafted", [False, True])
def test_sampled_output_repeats_with_its_seed(bench: Bench, drafted: bool) -> None:
    class Fixed(Recited):
        def propose(self, states: Any, anchors: Any, limits: Sequence[int], sampling: Any) -> list[Draft]:
            return [Draft([7, 8]) for _ in states]

    def once(seed: int | None) -> list[list[int]]:
        drafter = Fixed({}, proposed=2, right=[0]) if drafted else None
        return [r.ids for r in bench.run(bench.scheduler(drafter), PROMPTS, sampling=SamplingParams(1.0, seed=seed))]

    assert once(3) == once(3)
    assert once(None) == once(None)
    assert once(3) != once(4)


def test_top_logprobs_are_the_targets_at_every_position(bench: Bench) -> None:
    (plain,) = bench.run(bench.scheduler(), PROMPTS[:1], top_logprobs=2)
    (drafted,) = bench.run(bench.scheduler(bench.recited(proposed=4, right=[2, 0])), PROMPTS[:1], top_logprobs=2)
    for run in (plain, drafted):
        info = run.output.meta_info()
        assert [one[1] for one in info["output_token_logprobs"]] == run.ids
        assert [top[0][1] for top in info["output_top_logprobs"]] == run.ids  # greedy: the likeliest is the output
        assert all(top[0][0] >= top[1][0] for top in info["output_top_logprobs"])
        assert info["output_token_logprobs_length"] == len(run.ids)
    for a, b in zip(plain.output.top_logprobs, drafted.output.top_logprobs, strict=True):
        assert a[0][0] == pytest.approx(b[0][0], abs=1e-4)


def test_abort_ends_waiting_and_running_requests(bench: Bench) -> None:
    ended: list[Output] = []

    def update(output: Output) -> None:
        if output.finish is not None:
            ended.append(output)

    scheduler = bench.scheduler(running=1)
    for rid in ("first", "second", "third"):
        scheduler.add(Request(rid, PROMPTS[0], GREEDY, 50, update))
    scheduler.step()
    finish = Finish("abort", message="because")
    scheduler.abort("first", finish)
    scheduler.abort("second", finish)
    assert [o.request.rid for o in ended] == ["first", "second"]
    assert ended[0].meta_info()["finish_reason"]["type"] == "abort"
    assert len(ended[0].ids) == 2
    scheduler.abort(None, finish)
    assert scheduler.idle


def test_flush_sets_recent_totals_back_and_needs_idleness(bench: Bench) -> None:
    scheduler = bench.scheduler(bench.recited(proposed=3, right=[3]))
    bench.run(scheduler, PROMPTS[:2], tokens=9)
    assert scheduler.recent == scheduler.totals
    assert scheduler.recent.output_tokens == 18
    assert scheduler.flush()
    assert scheduler.recent.output_tokens == 0 and scheduler.totals.output_tokens == 18
    scheduler.add(Request("r", PROMPTS[0], GREEDY, 5, lambda output: None))
    assert not scheduler.flush()
