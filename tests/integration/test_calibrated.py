"""The whole pipeline against a server whose truth is known: every figure of the summary within 1% of it.

The truth of times is what the server's own log says it did, so that a busy machine moves both; counts are the script's.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest

from orchestrator import report
from orchestrator.analysis.results import Summary, read_summary
from orchestrator.measuring import execute
from orchestrator.schema import ArmConfig
from runners.base import ServerFailure, ServerHandle
from tests.calibrated_server import Line, write_script
from tests.plan_factory import arm, comparison, load, suite
from tests.traps import arm as arm_of

PROMPTS, REPEATS, LIMIT, PROPOSED = 4, 2, 24, 3
CORRECT = [
    [3, 3, 3, 1, 3, 0, 2, 2],  # 17 in 8 steps: 26 tokens, of which the last two are past the limit
    [0, 1, 2, 3, 0, 0, 1, 2, 3, 3],  # 15 in 10 steps
    [2, 2, 3, 0, 1],  # ends early, with an end-of-sequence token
    [0] * 23,  # a drafter that is never right
]


def tokens_of(correct: list[int]) -> list[int]:
    """Of each chunk: one of the prefill, then correct drafts and the bonus token, cut at the limit."""
    tokens = [1]
    for right in correct:
        tokens.append(min(right + 1, LIMIT - sum(tokens)))
    return tokens


def prompt_of(number: int) -> str:
    return f"prompt {'x' * number}<"


def script(name: str) -> list[Line]:
    lines = []
    for number, correct in enumerate(CORRECT):
        chunks, ttft = tokens_of(correct), 0.4 + 0.04 * number
        finish = "stop" if sum(chunks) < LIMIT else "length"
        if name == "plain":
            gaps, chunks, correct = [0.05] * (sum(chunks) - 1), [1] * sum(chunks), []
        else:
            gaps = [0.065 + 0.0025 * (step % 3) for step in range(len(chunks) - 1)]
        if number == 1:
            gaps[len(gaps) // 2] += 0.7  # a stall
        lines.append(Line(prompt_of(number), ttft, gaps, chunks, correct, PROPOSED, finish))
    return lines


class CalibratedRunner:
    """Starts the calibrated server with the script of its arm."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder

    def start(self, config: dict[str, Any], directory: Path, on_status: Callable[[str], None]) -> ServerHandle:
        path = write_script(script(self.name), self.folder / f"{self.name}.json")
        command = [sys.executable, "-m", "tests.calibrated_server", str(path), str(self.log)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        url = f"http://127.0.0.1:{self.process.stdout.readline().strip()}"
        return ServerHandle(url, directory / "server.log", command, {}, tokenizer=self.folder)

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.jsonl"

    def stop(self, handle: ServerHandle) -> None:
        self.process.kill()
        self.process.wait()

    def failure(self, handle: ServerHandle) -> ServerFailure | None:
        return None

    def peak_memory_bytes(self, handle: ServerHandle) -> int | None:
        return None


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Summary, Path]:
    folder = tmp_path_factory.mktemp("calibrated")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}<{% endfor %}")
    arms = [arm(name, suite(PROMPTS, REPEATS, LIMIT), load()) for name in ("plain", "ngram")]
    with pytest.MonkeyPatch.context() as patch:

        def make_runner(config: ArmConfig) -> CalibratedRunner:
            return CalibratedRunner(config.name, folder)

        patch.setattr(execute, "make_runner", make_runner)
        patch.setattr(report, "write", lambda summary, directory: None)
        assert execute.run(*comparison(folder, *arms), folder / "run") == 0
    return read_summary(folder / "run" / "summary.json"), folder


def logged(folder: Path, name: str) -> list[dict[str, Any]]:
    """What the server did for the measured requests, with the script's counts."""
    entries = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    warmup = len(entries) // REPEATS - PROMPTS
    trials = [entries[: warmup + PROMPTS], entries[warmup + PROMPTS :]]
    by_prompt = {line.prompt: line for line in script(name)}
    kept = [entry for trial in trials for entry in trial[warmup:]]
    assert len(kept) == PROMPTS * REPEATS
    return [entry | {"line": by_prompt[entry["prompt"]]} for entry in kept]


def near(truth: float) -> Any:
    return pytest.approx(truth, rel=0.01)


@pytest.mark.parametrize("name", ["plain", "ngram"])
def test_times_are_the_servers_own(measured: tuple[Summary, Path], name: str) -> None:
    summary, folder = measured
    point = arm_of(summary, name).point
    assert point is not None and point.metrics.outcomes == {"ok": PROMPTS * REPEATS}
    requests = logged(folder, name)
    ttft = [one["chunks"][0] - one["arrived"] for one in requests]
    decode = [one["chunks"][-1] - one["chunks"][0] for one in requests]
    whole = [one["ended"] - one["arrived"] for one in requests]
    tokens = [sum(one["line"].tokens) for one in requests]
    after = [total - one["line"].tokens[0] for one, total in zip(requests, tokens, strict=True)]
    tpot = [seconds / count for seconds, count in zip(decode, after, strict=True)]
    assert point.metrics.ttft_s.mean == near(fmean(ttft)) and point.metrics.ttft_s.p50 == near(median(ttft))
    assert point.metrics.tpot_s.mean == near(fmean(tpot)) and point.metrics.tpot_s.p50 == near(median(tpot))
    assert point.metrics.e2e_s.mean == near(fmean(whole)) and point.metrics.e2e_s.p50 == near(median(whole))
    assert point.output_tok_s == near(sum(tokens) / sum(whole))
    assert point.decode_tok_s == near(sum(after) / sum(decode))
    assert point.metrics.output_lengths == tokens
    steps = sum(len(one["line"].correct) for one in requests) or sum(after)
    assert point.step_ms == near(1e3 * sum(decode) / steps)
    per_token = [
        (later - earlier) / count
        for one in requests
        for earlier, later, count in zip(one["chunks"], one["chunks"][1:], one["line"].tokens[1:], strict=False)
        for _ in range(count)
    ]
    assert point.metrics.itl_s.mean == near(fmean(per_token)) and point.metrics.itl_s.n == sum(after)
    # The stall is seen where it was: in the longest gap, not smeared over the mean of a request.
    assert max(per_token) > 0.17 and point.metrics.itl_s.p99 is not None and point.metrics.itl_s.p99 > 0.13


def test_acceptance_is_the_scripts(measured: tuple[Summary, Path]) -> None:
    summary, _ = measured
    point = arm_of(summary, "ngram").point
    assert point is not None and point.acceptance is not None
    found = point.acceptance
    every = [right for correct in CORRECT for right in correct]
    assert found.requests == PROMPTS, "a greedy repeat is no further evidence"
    assert found.tau == pytest.approx(1 + sum(every) / len(every))
    assert found.tau_mean_of_requests == pytest.approx(fmean(1 + sum(c) / len(c) for c in CORRECT))
    weights = [sum(tokens_of(correct)) for correct in CORRECT]
    weighted = sum(w * (1 + sum(c) / len(c)) for w, c in zip(weights, CORRECT, strict=True)) / sum(weights)
    assert found.tau_token_weighted == pytest.approx(weighted)
    assert found.committed_per_step == pytest.approx(sum(w - 1 for w in weights) / len(every))
    assert found.histogram == [every.count(number) for number in range(PROPOSED + 1)]
    assert found.proposed_per_step == PROPOSED and found.window_mean == PROPOSED + 1
    for place in found.positions:
        right = sum(correct >= place.position for correct in every)
        before = sum(correct >= place.position - 1 for correct in every)
        assert place.joint == pytest.approx(right / len(every)) and place.conditional == pytest.approx(right / before)
    for category, numbers in (("long", (0, 2)), ("short", (1, 3))):
        own = [right for number in numbers for right in CORRECT[number]]
        assert point.acceptance_by_category[category].tau == pytest.approx(1 + sum(own) / len(own))
    assert point.server_totals is not None and point.server_totals.disagreements == []
    assert point.server_totals.tau == pytest.approx(found.tau)
    assert point.server_totals.committed_per_step == pytest.approx(found.committed_per_step)


def test_the_speedup_is_that_of_the_pairs(measured: tuple[Summary, Path]) -> None:
    summary, folder = measured
    point = arm_of(summary, "ngram").point
    assert point is not None and point.speedup is not None and point.decode_speedup is not None
    sides = {name: logged(folder, name) for name in ("plain", "ngram")}

    def truth(seconds: Callable[[dict[str, Any]], float]) -> float:
        logs = []
        for line in script("plain"):
            mine, theirs = (
                [one for one in side if one["prompt"] == line.prompt] for side in (sides["ngram"], sides["plain"])
            )
            logs.append(fmean(math.log(seconds(b) / seconds(a)) for a, b in zip(mine, theirs, strict=True)))
        return math.exp(fmean(logs))

    assert point.speedup.ratio == near(truth(lambda one: one["ended"] - one["arrived"]))
    assert point.decode_speedup.ratio == near(truth(lambda one: one["chunks"][-1] - one["chunks"][0]))
    assert (point.speedup.n_prompts, point.speedup.n_pairs) == (PROMPTS, PROMPTS * REPEATS)
    assert (
        arm_of(summary, "ngram").lossless is not None
        and arm_of(summary, "ngram").lossless.identical == PROMPTS * REPEATS
    )


def test_an_early_end_is_an_end_and_not_a_loss(measured: tuple[Summary, Path]) -> None:
    summary, _ = measured
    point = arm_of(summary, "ngram").point
    assert point is not None
    assert point.metrics.finish_reasons == {"length": 3 * REPEATS, "stop": REPEATS}
