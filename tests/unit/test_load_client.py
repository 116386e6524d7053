"""The client against a server whose stream and faults are known."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine
from typing import Any

import pytest

from orchestrator.analysis.acceptance import disagreement
from orchestrator.load.answer import Answer
from orchestrator.load.events import EventSplitter
from orchestrator.load.generate import GenerateReader
from orchestrator.load.http import Address, Line
from orchestrator.load.loops import closed_loop
from orchestrator.load.request import Limits, Request, Sampling
from orchestrator.load.send import send
from orchestrator.measuring.records import RequestRecord
from tests.fake_server import Fake, serve
from tests.record_factory import request

LIMITS = Limits(timeout_s=10.0, stall_timeout_s=10.0)


def ask(fake: Fake, one: Request | None = None, limits: Limits = LIMITS) -> RequestRecord:
    async def go() -> RequestRecord:
        line = Line(Address.of(fake.url))
        try:
            return await send(line, one or request(), limits)
        finally:
            line.close()

    return run(go())


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 30))


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("drafts", [0, 3])
def test_cumulative_and_incremental_streams_give_the_same_record(incremental: bool, drafts: int) -> None:
    with serve(Fake(incremental=incremental, drafts=drafts)) as fake:
        record = ask(fake)
    assert (record.outcome, record.error) == ("ok", None)
    assert record.output_ids == [6, 7, 8, 9, 10, 11, 12]
    assert record.text == " 6 7 8 9 10 11 12"
    assert [tokens for _, tokens in record.chunks] == ([1, 5, 7] if drafts else [1, 2, 3, 4, 5, 6, 7])
    times = [seconds for seconds, _ in record.chunks]
    assert times == sorted(times) and record.e2e_s is not None and record.e2e_s >= times[-1] > 0
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (5, 7, 2)
    assert record.finish_reason == "length"
    if drafts:
        assert record.spec is not None and record.spec.spec_verify_ct == 2
        assert record.spec.spec_correct_drafts_histogram == [0, 0, 0, 2]
        assert disagreement(record) is None, "the last step is cut from three drafts to one"
    else:
        assert record.spec is None


def test_all_sampling_parameters_are_sent() -> None:
    sampling = Sampling(max_new_tokens=3, temperature=0.7, top_p=0.9, top_k=40, seed=5, stop=("\n\n",))
    with serve(Fake()) as fake:
        record = ask(fake, request(sampling=sampling))
    assert fake.bodies == [
        {
            "text": "prompt",
            "stream": True,
            "sampling_params": {
                "max_new_tokens": 3,
                "temperature": 0.7,
                "top_p": 0.9,
                "top_k": 40,
                "sampling_seed": 5,
                "ignore_eos": False,
                "stop": ["\n\n"],
            },
        }
    ]
    assert record.prompt_sha256 == hashlib.sha256(b"prompt").hexdigest()


@pytest.mark.parametrize(
    ("fault", "outcome", "says"),
    [
        ("http", "error", "HTTP 400: too long"),
        ("error_event", "error", "error inside the stream: out of memory"),
        ("abort", "error", "aborted by the server: the request was aborted"),
        ("not_json", "error", "not JSON"),
        ("no_meta", "error", "not in SGLang's form"),
        ("no_ids", "error", "neither those of a cumulative nor of an incremental"),
        ("no_done", "truncated", "without [DONE]"),
        ("drop", "truncated", "ended inside the answer"),
        ("stall", "stalled", "no byte for 0.3 s"),
    ],
)
def test_a_fault_is_the_outcome_of_that_request(fault: str, outcome: str, says: str) -> None:
    with serve(Fake(fault=lambda body: fault)) as fake:
        record = ask(fake, limits=Limits(10, 0.3))
    assert record.outcome == outcome
    assert record.error is not None and says in record.error
    assert record.e2e_s is None
    if fault in ("drop", "stall", "error_event"):
        assert [tokens for _, tokens in record.chunks] == [1, 2, 3], "what had arrived is kept"


def test_an_output_that_the_server_has_no_room_for_is_not_a_whole_one() -> None:
    """SGLang says "length" of it, as where the token limit is reached (recorded: output-over-the-cache.json)."""
    with serve(Fake(change=lambda ids, body: ids[:4])) as fake:
        record = ask(fake)
    assert (record.outcome, record.finish_reason, record.completion_tokens) == ("truncated", "length", 4)
    assert record.error == "the server ended it after 4 of 7 tokens: its cache or its context holds no more"
    assert record.output_ids == [6, 7, 8, 9] and record.e2e_s is None


def test_a_request_that_goes_on_for_too_long_is_given_up() -> None:
    with serve(Fake(delay_s=0.1)) as fake:
        record = ask(fake, request(tokens=60), limits=Limits(timeout_s=0.45, stall_timeout_s=0.3))
    assert (record.outcome, record.error) == ("timeout", "no end after 0.45 s"), "it never stood still, so no stall"
    assert [tokens for _, tokens in record.chunks][:3] == [1, 2, 3] and record.e2e_s is None


def test_a_server_that_is_not_there_is_an_error_of_the_request() -> None:
    with serve(Fake()) as fake:
        pass
    record = ask(fake)
    assert record.outcome == "error" and "no connection to 127.0.0.1" in (record.error or "")


def test_one_bad_request_does_not_touch_the_others() -> None:
    with serve(Fake(fault=lambda body: "error_event" if body["text"] == "bad" else None)) as fake:
        records = loop(fake, [request(), request(text="bad"), request(text="later")], 1)
    assert [record.outcome for record in records] == ["ok", "error", "ok"]


def test_the_closed_loop_keeps_the_requested_number_in_flight() -> None:
    with serve(Fake(delay_s=0.02)) as fake:
        records = loop(fake, [request(prompt_id=f"p{number}") for number in range(9)], 3)
    assert fake.most_in_flight == 3
    assert sorted(record.prompt_id for record in records) == [f"p{number}" for number in range(9)]


def test_a_cancelled_load_keeps_what_was_in_flight_and_sends_no_more() -> None:
    kept: list[RequestRecord] = []

    async def go(fake: Fake) -> None:
        task = asyncio.create_task(
            closed_loop(fake.url, [request(prompt_id=f"p{n}") for n in range(6)], 2, LIMITS, kept.append)
        )
        while len(fake.bodies) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with serve(Fake(fault=lambda body: "stall")) as fake:
        run(go(fake))
        assert len(fake.bodies) == 2
    assert [record.outcome for record in kept] == ["cancelled", "cancelled"]
    assert all(record.chunks for record in kept)


def test_a_probe_asks_for_the_two_likeliest_tokens() -> None:
    with serve(Fake()) as fake:
        record = ask(fake, request(tokens=2, phase="probe"))
    assert (fake.bodies[0]["return_logprob"], fake.bodies[0]["top_logprobs_num"]) == (True, 2)
    assert record.top2 == [((6, -0.5), (7, -3.0)), ((7, -0.5), (8, -3.0))]


def test_an_event_is_dated_by_the_read_that_completed_it() -> None:
    def event(tokens: int, last: bool = False) -> bytes:
        reason = '{"type":"stop"}' if last else "null"
        ids = ",".join(map(str, range(tokens)))
        return (
            f'data: {{"text":"x","output_ids":[{ids}],"meta_info":'
            f'{{"completion_tokens":{tokens},"finish_reason":{reason}}}}}\r\n\r\n'
        ).encode()

    one, two, three = event(1), event(4), event(6, last=True)
    reads = [(0.1, one + two[:10]), (0.2, two[10:-1]), (0.3, two[-1:] + three), (0.4, b"data: [DONE]\n\n")]
    answer = parse(reads)
    assert answer.problem is None
    assert answer.chunks == [(0.1, 1), (0.3, 4), (0.3, 6)]
    assert answer.finish_reason == "stop"


def test_an_event_without_new_tokens_is_no_chunk() -> None:
    text = '{"text":"","output_ids":[1],"meta_info":{"completion_tokens":1,"finish_reason":%s}}'
    reasons = {0.1: "null", 0.2: '{"type":"stop"}'}
    reads = [(seconds, f"data: {text % reason}\n\n".encode()) for seconds, reason in reasons.items()]
    assert parse([*reads, (0.2, b"data: [DONE]\n\n")]).chunks == [(0.1, 1)]


def loop(fake: Fake, requests: list[Request], concurrency: int) -> list[RequestRecord]:
    kept: list[RequestRecord] = []

    run(closed_loop(fake.url, requests, concurrency, LIMITS, kept.append))
    return kept


def parse(reads: list[tuple[float, bytes]]) -> Answer:
    reader = GenerateReader()
    splitter = EventSplitter(reader.event)
    for seconds, data in reads:
        splitter.feed(seconds, data)
    return reader.finish()
