"""What the endpoints are sent, and what their streams say."""

from __future__ import annotations

import tracemalloc
from typing import Any

import orjson
import pytest

from orchestrator.load import generate, openai
from orchestrator.load.answer import Answer, Reader, message
from orchestrator.load.request import Request, Sampling
from orchestrator.measuring.records import SpecCounters
from tests import record_factory

COUNTERS: dict[str, Any] = {
    "spec_verify_ct": 2,
    "spec_num_correct_drafts": 3,
    "spec_num_proposed_drafts": 6,
    "spec_correct_drafts_histogram": [0, 1, 1],
}


def request(**fields: Any) -> Request:
    sampling = Sampling(max_new_tokens=9, temperature=0.5, top_p=0.9, top_k=40, seed=7, stop=("X",))
    chat = {"messages": ({"role": "user", "content": "Hi"},), "template_kwargs": {"enable_thinking": False}}
    return record_factory.request(**({"text": "<user>Hi", "sampling": sampling, "model": "target", **chat} | fields))


def read(reader: Reader, *events: Any) -> Answer:
    for place, event in enumerate(events):
        reader.event(float(place), event if isinstance(event, bytes) else orjson.dumps(event))
    return reader.finish()


# /generate ----------------------------------------------------------------------------------------------------------


def generated(ids: list[int], tokens: int, text: str = "t", **meta: Any) -> dict[str, Any]:
    told = {"prompt_tokens": 4, "completion_tokens": tokens, "cached_tokens": 1, "finish_reason": None}
    return {"text": text, "output_ids": ids, "meta_info": told | meta}


END = {"finish_reason": {"type": "stop"}}


def test_of_a_cumulative_stream_the_last_event_is_what_counts() -> None:
    answer = read(
        generate.GenerateReader(),
        generated([5], 1, "a"), generated([5, 6, 7], 3, "abc"), generated([5, 6, 7], 3, "abc"),
        generated([5, 6, 7, 8], 4, 'abc"completion_tokens":9', **END, **COUNTERS), b"[DONE]",
    )  # fmt: skip
    assert answer.problem is None
    assert (answer.output_ids, answer.text) == ([5, 6, 7, 8], 'abc"completion_tokens":9')
    assert answer.chunks == [(0.0, 1), (1.0, 3), (3.0, 4)], "an event without new tokens is no chunk"
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (4, 4, 1)
    assert answer.spec == SpecCounters.model_validate(COUNTERS) and answer.finish_reason == "stop"


def test_of_an_incremental_stream_all_events_count() -> None:
    answer = read(
        generate.GenerateReader(),
        generated([5], 1, "a"), generated([6, 7], 3, "bc"), generated([], 3, ""), generated([8], 4, "d", **END),
        b"[DONE]",
    )  # fmt: skip
    assert (answer.problem, answer.output_ids, answer.text) == (None, [5, 6, 7, 8], "abcd")
    assert answer.chunks == [(0.0, 1), (1.0, 3), (3.0, 4)]


@pytest.mark.parametrize("incremental", [False, True])
def test_the_form_is_found_out_also_when_the_first_event_brings_several_tokens(incremental: bool) -> None:
    ids = list(range(10, 21))
    ends = [3, 6, 11]  # 3 + 3: the second event of an incremental stream is as long as the first of a cumulative one
    events = [
        generated(ids[(before if incremental else 0) : end], end, **(END if end == 11 else {}))
        for before, end in zip([0, *ends], ends, strict=False)
    ]
    answer = read(generate.GenerateReader(), generated([], 0), *events, b"[DONE]")
    assert (answer.problem, answer.output_ids) == (None, ids)


@pytest.mark.parametrize("incremental", [False, True])
def test_the_likeliest_tokens_belong_to_their_positions_in_both_forms(incremental: bool) -> None:
    ids = [5, 6, 7, 8]
    likely = [[[-0.1 * token, token, None], [-9.0, 99, None]] for token in ids]
    events = []
    for before, end in ((0, 1), (1, 3), (3, 4)):
        start = before if incremental else 0
        told = {"output_top_logprobs": likely[start:end], **(END if end == 4 else {})}
        events.append(generated(ids[start:end], end, **told))
    answer = read(generate.GenerateReader(), *events, b"[DONE]")
    assert answer.problem is None
    assert answer.top2 == [((token, pytest.approx(-0.1 * token)), (99, -9.0)) for token in ids]


@pytest.mark.parametrize("count", [1, 2])
def test_the_answer_may_come_in_one_event(count: int) -> None:
    ids = [3, 4, 5][:count]
    answer = read(generate.GenerateReader(), generated(ids, count, **END), b"[DONE]")
    assert (answer.problem, answer.output_ids, answer.chunks) == (None, ids, [(0.0, count)])


def test_a_long_cumulative_answer_does_not_cost_the_square_of_its_length() -> None:
    reader = generate.GenerateReader()
    tokens = 4000
    ids = list(range(tokens))
    events = [orjson.dumps(generated(ids[:end], end, "word " * end)) for end in range(1, tokens, 40)]
    events[-1] = orjson.dumps(generated(ids[: tokens - 39], tokens - 39, "word " * (tokens - 39), **END))
    tracemalloc.start()
    for event in events:
        reader.event(0.0, bytes(bytearray(event)))  # a copy, as the socket would give it
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(map(len, events)) > 20 * len(events[-1])
    assert kept < 3 * len(events[-1]), "one event is kept, not all of them"
    reader.event(0.0, b"[DONE]")
    assert len(reader.finish().output_ids) == tokens - 39 and len(reader.answer.chunks) == len(events)


@pytest.mark.parametrize(
    ("events", "outcome", "says"),
    [
        ([generated([5], 1), generated([5, 6], 2), {"error": {"message": "out of memory"}}], "error", "out of memory"),
        ([generated([5], 1), generated([5, 6], 2), b"<html>"], "error", "not JSON"),
        ([generated([5], 1), generated([5, 6], 2), b"[1]"], "error", "not an object"),
        ([generated([5], 1), {"text": "no meta_info"}], "error", "not in SGLang's form"),
        ([generated([5], 1), generated([6], 4, **END), b"[DONE]"], "error", "neither those of a cumulative"),
        ([generated([5], 1), generated([5, 6], 2), generated([], 3, **END), b"[DONE]"], "error", "neither those of"),
        ([generated([5], 1), generated([5, 6], 2, **END)], "truncated", "without [DONE]"),
        ([generated([5], 1), generated([5, 6], 2), b"[DONE]"], "error", "without a finish reason"),
        ([], "truncated", "without [DONE]"),
        (
            [generated([5], 1, finish_reason={"type": "abort", "message": "too slow"}), b"[DONE]"],
            "error",
            "aborted by the server: too slow",
        ),
        ([generated([5], 1, **END, spec_verify_ct=2), b"[DONE]"], "error", "not in SGLang's form"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_stream_is_told(events: list[Any], outcome: str, says: str) -> None:
    answer = read(generate.GenerateReader(), *events)
    assert answer.problem is not None and answer.problem[0] == outcome and says in answer.problem[1]


def test_no_verification_step_is_no_counters() -> None:
    none = dict.fromkeys(COUNTERS, 0) | {"spec_correct_drafts_histogram": []}
    for meta in ({}, none):
        assert read(generate.GenerateReader(), generated([5], 1, **END, **meta), b"[DONE]").spec is None


# OpenAI -------------------------------------------------------------------------------------------------------------


def usage(tokens: int) -> dict[str, Any]:
    return {"prompt_tokens": 4, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 1}}


def chat(content: str | None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}], **more}


def test_a_chat_stream_has_its_tokens_in_the_usage_of_its_chunks() -> None:
    answer = read(
        openai.OpenAIReader(),
        chat(""), {"choices": [{"delta": {"reasoning_content": "hm "}}], "usage": usage(1)},
        chat("a", usage=usage(3)), chat("b", usage=usage(3)), chat(None, "stop"),
        {"choices": [], "sglext": {"spec_tokens_details": COUNTERS | {"spec_cap_lens_histogram": []},
                                   "output_ids": [[5, 6, 7, 8]]}},
        {"choices": [], "usage": usage(4)}, b"[DONE]",
    )  # fmt: skip
    assert answer.problem is None
    assert answer.chunks == [(1.0, 1), (2.0, 3), (6.0, 4)], "the token that ends an answer has no text of its own"
    assert (answer.text, answer.output_ids, answer.finish_reason) == ("hm ab", [5, 6, 7, 8], "stop")
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (4, 4, 1)
    assert answer.spec == SpecCounters.model_validate(COUNTERS)


def test_a_completions_stream_has_its_token_ids_in_its_chunks() -> None:
    def part(text: str, ids: list[int], tokens: int, finish: str | None = None) -> dict[str, Any]:
        return {"choices": [{"text": text, "token_ids": ids, "finish_reason": finish}], "usage": usage(tokens)}

    answer = read(openai.OpenAIReader(), part("a", [5], 1), part("bc", [6, 7], 3, "length"),
                  {"choices": [], "usage": usage(3)}, b"[DONE]")  # fmt: skip
    assert (answer.problem, answer.text, answer.output_ids) == (None, "abc", [5, 6, 7])
    assert (answer.chunks, answer.finish_reason, answer.spec) == ([(0.0, 1), (1.0, 3)], "length", None)


@pytest.mark.parametrize(
    ("events", "outcome", "says"),
    [
        ([chat("a"), chat(None, "stop"), {"choices": [], "usage": usage(1)}, b"[DONE]"], "error", "continuous_usage"),
        ([chat("a"), chat(None, "stop"), b"[DONE]"], "error", "continuous_usage_stats"),
        ([chat("a", usage=usage(1)), {"error": {"message": "preempted", "code": 500}}], "error", "preempted"),
        ([chat("a", usage=usage(1)), {"object": "error", "message": "flat"}], "error", "flat"),
        ([chat("a", usage=usage(1))], "truncated", "without [DONE]"),
        ([chat("a", usage=usage(1)), b"[DONE]"], "error", "without a finish reason"),
        ([chat("a", "abort", usage=usage(1)), b"[DONE]"], "error", "aborted by the server"),
        ([chat("a", usage={"tokens": 1})], "error", "not in SGLang's form"),
        ([{"choices": ["a"]}], "error", "not in SGLang's form"),
        (
            [{"choices": [{"text": "a", "token_ids": [5, 6], "finish_reason": "stop"}], "usage": usage(1)}, b"[DONE]"],
            "error",
            "2 token ids, but 1 tokens counted",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_openai_stream_is_told(events: list[Any], outcome: str, says: str) -> None:
    answer = read(openai.OpenAIReader(), *events)
    assert answer.problem is not None and answer.problem[0] == outcome and says in answer.problem[1]


def test_every_dialect_is_sent_all_sampling_parameters() -> None:
    sent = orjson.loads(openai.body(request(endpoint="completions")))
    sampling = {"max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "seed": 7, "ignore_eos": False,
                "stop": ["X"]}  # fmt: skip
    stream = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    asks = {"model": "target", "return_spec_tokens_details": True}
    assert sent == {**sampling, **stream, **asks, "prompt": "<user>Hi", "return_token_ids": True}
    sent = orjson.loads(openai.body(request(endpoint="chat")))
    assert sent == {
        **sampling, **stream, **asks, "messages": [{"role": "user", "content": "Hi"}],
        "chat_template_kwargs": {"enable_thinking": False}, "return_output_ids_in_sglext": True,
    }  # fmt: skip
    assert "chat_template_kwargs" not in orjson.loads(openai.body(request(endpoint="chat", template_kwargs={})))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "too long"}}', "too long"),
        (b'{"error": "flat"}', "flat"),
        (b'{"object": "error", "message": "openai"}', "openai"),
        (b'["list"]', "['list']"),
        (b"plain words\n", "plain words"),
        (b"", "no text"),
    ],
)
def test_the_text_of_an_error_body_is_found(body: bytes, text: str) -> None:
    assert message(body) == text
