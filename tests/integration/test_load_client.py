"""The load client against the embedded engine as a process: every endpoint, closed and open loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from orchestrator.analysis.acceptance import disagreement
from orchestrator.load.arrivals import schedule
from orchestrator.load.loops import closed_loop, open_loop
from orchestrator.load.request import Endpoint, Limits, Request, Sampling
from orchestrator.measuring.records import RequestRecord
from tests import record_factory, tiny_llama
from tests.engine_process import START_S, Engine, running

LIMITS = Limits(timeout_s=60, stall_timeout_s=30)


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tiny_llama.write(tmp_path_factory.mktemp("tiny"), max_position_embeddings=16384)
    log = tmp_path_factory.mktemp("ngram") / "server.log"
    with running(folder, log, "--drafter", "ngram", "--block-size", "6", "--max-running-requests", "8") as engine:
        yield engine


def in_loop(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(work, START_S))


def request(number: int, endpoint: Endpoint = "generate", tokens: int = 40) -> Request:
    return record_factory.request(
        text="a bad cab abcdef " * (1 + number % 3), sampling=Sampling(max_new_tokens=tokens, ignore_eos=True),
        arm="ngram", prompt_id=f"p{number}", endpoint=endpoint, model="tiny",
        messages=({"role": "user", "content": "a bad cab"},),
    )  # fmt: skip


def test_every_endpoint_counts_the_same_tokens_of_the_same_prompt(drafting: Engine) -> None:
    kept: dict[str, RequestRecord] = {}
    endpoints: tuple[Endpoint, ...] = ("generate", "completions", "chat")
    requests = [request(number, endpoint, tokens=200) for number, endpoint in enumerate(endpoints)]
    requests = [replace(one, text=requests[0].text) for one in requests]
    in_loop(closed_loop(drafting.url, requests, 1, LIMITS, lambda record: kept.update({record.endpoint: record})))
    assert [(one.outcome, one.error) for one in kept.values()] == [("ok", None)] * 3
    for one in kept.values():
        assert one.completion_tokens == one.chunks[-1][1] == 200 and one.finish_reason == "length"
        assert one.ttft_s is not None and one.e2e_s is not None and 0 < one.ttft_s <= one.chunks[-1][0] <= one.e2e_s
        assert any(after - before > 1 for (_, before), (_, after) in zip(one.chunks, one.chunks[1:], strict=False))
    generated, completed = kept["generate"], kept["completions"]
    assert generated.text == completed.text and generated.prompt_tokens == completed.prompt_tokens
    assert len(generated.output_ids) == 200 and disagreement(generated) is None
    assert generated.prompt_sha256 == completed.prompt_sha256 != kept["chat"].prompt_sha256


def test_what_the_engine_refuses_is_the_outcome_of_that_request(drafting: Engine) -> None:
    kept: list[RequestRecord] = []
    too_long = [request(0, endpoint, tokens=10**6) for endpoint in ("generate", "completions", "chat")]
    in_loop(closed_loop(drafting.url, [*too_long, request(1)], 1, LIMITS, kept.append))
    assert [one.outcome for one in kept] == ["error", "error", "error", "ok"]
    assert all(one.error is not None and "HTTP 400" in one.error for one in kept[:3])


def test_many_streams_at_once_each_get_their_own_answer(drafting: Engine) -> None:
    alone: dict[str, RequestRecord] = {}
    together: dict[str, RequestRecord] = {}
    requests = [request(number) for number in range(16)]
    in_loop(closed_loop(drafting.url, requests, 1, LIMITS, lambda one: alone.update({one.prompt_id: one})))
    in_loop(closed_loop(drafting.url, requests, 8, LIMITS, lambda one: together.update({one.prompt_id: one})))
    assert {one.outcome for one in [*alone.values(), *together.values()]} == {"ok"}
    assert {name: one.output_ids for name, one in alone.items()} == {
        name: one.output_ids for name, one in together.items()
    }
    assert 1 <= sum(not one.steady for one in together.values()) <= 7, "those that were left when work ran out"
    assert all(one.steady for one in alone.values())


def test_an_open_loop_is_on_time_beside_a_working_engine(drafting: Engine) -> None:
    kept: list[RequestRecord] = []
    requests = [request(number) for number in range(12)]
    times = schedule("poisson", 30.0, len(requests), seed=3, repeat=0)
    in_loop(open_loop(drafting.url, requests, times, LIMITS, kept.append))
    assert {one.outcome for one in kept} == {"ok"} and len(kept) == 12
    planned = sorted(one.sent_at - (one.late_s or 0.0) for one in kept)
    assert [time - planned[0] for time in planned] == pytest.approx(times, abs=1e-6)


def test_the_log_of_the_engine_has_no_traceback(drafting: Engine) -> None:
    assert "Traceback" not in Path(drafting.log).read_text()
