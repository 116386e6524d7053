"""SGLang's dialect: what is accepted, what is refused with which words, and the shape of the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runners.engine import protocol
from runners.engine.metrics_text import Histogram
from runners.engine.protocol import Ask, BadRequest, Limits, OpenAIWriter, Snapshot
from runners.engine.request import Finish
from runners.engine.tokenizer import Tokenizer
from tests import tiny_llama

LIMITS = Limits(vocab_size=tiny_llama.VOCAB, context_length=32, eos_token_ids=frozenset([tiny_llama.EOS]))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(tiny_llama.write(tmp_path_factory.mktemp("tiny")))


def generate(tokenizer: Tokenizer, **body: Any) -> Ask:
    return protocol.parse_generate({"text": "a bad cab"} | body, tokenizer, LIMITS)


def chat(tokenizer: Tokenizer, **body: Any) -> Ask:
    return protocol.parse_chat({"messages": [{"role": "user", "content": "a"}]} | body, tokenizer, LIMITS)


def test_generate_reads_sglangs_fields(tokenizer: Tokenizer) -> None:
    ask = generate(
        tokenizer,
        sampling_params={"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "max_new_tokens": 5,
                         "stop": "x", "stop_token_ids": [9], "sampling_seed": 4},
        stream=True, rid="mine", return_logprob=True, top_logprobs_num=2, lora_path=None,
    )  # fmt: skip
    assert ask.prompt == tokenizer.encode("a bad cab")
    assert (ask.sampling.temperature, ask.sampling.top_p, ask.sampling.top_k, ask.sampling.min_p) == (0.5, 0.9, 7, 0.1)
    assert (ask.sampling.seed, ask.max_new_tokens, ask.stop, ask.stop_token_ids) == (4, 5, ("x",), frozenset([2, 9]))
    assert (ask.stream, ask.rid, ask.top_logprobs) == (True, "mine", 2)


def test_defaults_are_sglangs(tokenizer: Tokenizer) -> None:
    with pytest.raises(BadRequest, match="at most"):  # 128 tokens do not fit this context
        generate(tokenizer)
    ask = generate(tokenizer, sampling_params={"max_new_tokens": None})
    assert ask.sampling.temperature == 1.0
    assert ask.max_new_tokens == 32 - len(ask.prompt)
    assert ask.top_logprobs is None
    assert generate(tokenizer, sampling_params={"max_new_tokens": 1}, return_logprob=True).top_logprobs == 0


def test_ignore_eos_ignores_every_stop_token(tokenizer: Tokenizer) -> None:
    ask = generate(tokenizer, sampling_params={"max_new_tokens": 1, "ignore_eos": True, "stop_token_ids": [9]})
    assert ask.stop_token_ids == frozenset()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text": None}, "Either text or input_ids should be provided."),
        ({"input_ids": [1]}, "both given"),
        ({"text": ""}, "empty"),
        ({"text": None, "input_ids": [1, 64]}, "Token id 64 is outside the vocabulary of 64 tokens."),
        ({"text": None, "input_ids": [5] * 32}, r"The input \(32 tokens\) is longer than the model's context length"),
        ({"sampling_params": {"max_new_tokens": 99}}, "Ask for at most"),
        ({"sampling_params": {"max_new_tokens": 0}}, "max_new_tokens"),
        (
            {"sampling_params": {"temprature": 0}},
            r"sampling_params\.temprature is not known here; did you mean temperature",
        ),
        (
            {"sampling_params": {"json_schema": "{}"}},
            r"sampling_params\.json_schema is not known here; allowed: max_new",
        ),
        ({"sampling_params": {"max_new_tokens": 1, "top_p": 2}}, r"top_p must be in \(0, 1\]"),
        ({"text": 5}, "text"),
    ],
)
def test_a_bad_generate_body_is_refused(tokenizer: Tokenizer, body: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        generate(tokenizer, **body)


def test_chat_renders_the_template(tokenizer: Tokenizer) -> None:
    parts = [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]
    ask = chat(tokenizer, messages=[{"role": "user", "content": parts}], max_tokens=3, seed=5)
    assert ask.prompt == [1, *tokenizer.encode("bc"), 2, 1]
    assert (ask.max_new_tokens, ask.sampling.seed) == (3, 5)
    assert chat(tokenizer, max_tokens=3, max_completion_tokens=4).max_new_tokens == 4
    assert chat(tokenizer).max_new_tokens == 32 - 4


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text"),
        ({"temperature": -1}, "temperature must be a non-negative finite number"),
        ({"n": 2}, "n:"),
        ({"tools": [{}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logprobs": True}, "logprobs"),
    ],
)
def test_what_chat_cannot_serve_is_refused(tokenizer: Tokenizer, body: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        chat(tokenizer, **body)


def snapshot(text: str, tokens: int, finish: Finish | None = None) -> Snapshot:
    return Snapshot(text, list(range(tokens)), 4, {"id": "r"}, finish)


def test_chat_chunks_are_deltas_then_finish_then_usage(tokenizer: Tokenizer) -> None:
    ask = chat(tokenizer, stream=True, stream_options={"include_usage": True})
    writer = OpenAIWriter("r", "m", True, ask)
    parts = [
        *writer.chunks(snapshot("", 1)),
        *writer.chunks(snapshot("ab", 2)),
        *writer.chunks(snapshot("abc", 3, Finish("stop", matched=2))),
    ]
    deltas = [part["choices"][0]["delta"] for part in parts[:-1]]
    assert [delta.get("content") for delta in deltas] == ["", "ab", "c", None]
    assert deltas[0]["role"] == "assistant"
    assert [part["choices"][0]["finish_reason"] for part in parts[:-1]] == [None, None, None, "stop"]
    assert parts[-2]["choices"][0]["matched_stop"] == 2
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"]["total_tokens"] == 7
    assert all("usage" not in part for part in parts[:-1])


def test_usage_may_come_with_every_chunk(tokenizer: Tokenizer) -> None:
    ask = chat(tokenizer, stream=True, stream_options={"continuous_usage_stats": True})
    parts = OpenAIWriter("r", "m", True, ask).chunks(snapshot("ab", 2))
    assert "usage" not in parts[0]
    assert parts[1]["usage"]["completion_tokens"] == 2


def test_completions_carry_text(tokenizer: Tokenizer) -> None:
    ask = protocol.parse_completion({"prompt": [5, 6], "max_tokens": 2}, tokenizer, LIMITS)
    writer = OpenAIWriter("r", "m", False, ask)
    whole = writer.whole(snapshot("ab", 2, Finish("length")))
    assert whole["object"] == "text_completion"
    assert whole["choices"][0]["text"] == "ab"
    assert whole["choices"][0]["finish_reason"] == "length"


COUNTERS = {"spec_verify_ct": 1, "spec_num_correct_drafts": 1, "spec_num_proposed_drafts": 3}


def speculated(text: str, tokens: int, finish: Finish | None = None) -> Snapshot:
    return Snapshot(text, list(range(tokens)), 4, {"id": "r"} | (COUNTERS if finish else {}), finish)


def test_a_chat_tells_counters_and_token_ids_in_sglext_where_asked(tokenizer: Tokenizer) -> None:
    wants = {"return_spec_tokens_details": True, "return_output_ids_in_sglext": True}
    ask = chat(tokenizer, stream=True, stream_options={"include_usage": True}, **wants)
    writer = OpenAIWriter("r", "m", True, ask)
    parts = [*writer.chunks(speculated("a", 1)), *writer.chunks(speculated("abc", 3, Finish("length")))]
    extension = {"spec_tokens_details": COUNTERS | {"spec_cap_lens_histogram": []}, "output_ids": [[0, 1, 2]]}
    assert [part.get("sglext") for part in parts] == [None] * (len(parts) - 2) + [extension, None]
    assert parts[-2]["choices"] == [] and parts[-1]["usage"]["completion_tokens"] == 3
    last = speculated("abc", 3, Finish("length"))
    assert OpenAIWriter("r", "m", True, ask).whole(last)["sglext"] == extension
    assert "sglext" not in OpenAIWriter("r", "m", True, chat(tokenizer)).whole(last)
    plain = OpenAIWriter("r", "m", True, chat(tokenizer, return_spec_tokens_details=True))
    assert "sglext" not in plain.whole(snapshot("abc", 3, Finish("length"))), "no verification step, no counters"


def test_a_completion_tells_the_token_ids_of_every_chunk_where_asked(tokenizer: Tokenizer) -> None:
    body = {"prompt": [5, 6], "max_tokens": 4, "return_spec_tokens_details": True, "return_token_ids": True}
    ask = protocol.parse_completion(body, tokenizer, LIMITS)
    writer = OpenAIWriter("r", "m", False, ask)
    parts = [
        *writer.chunks(speculated("a", 1)),
        *writer.chunks(speculated("a", 2)),  # no text of its own yet
        *writer.chunks(speculated("abcd", 4, Finish("length"))),
    ]
    choices = [choice for part in parts for choice in part["choices"]]
    assert [choice.get("token_ids") for choice in choices] == [[0], [1], [2, 3], None]
    assert "".join(choice["text"] for choice in choices) == "abcd"
    assert parts[-1]["sglext"]["spec_tokens_details"]["spec_verify_ct"] == 1 and len(parts) == 5
    whole = OpenAIWriter("r", "m", False, ask).whole(speculated("abcd", 4, Finish("length")))
    assert whole["choices"][0]["token_ids"] == [0, 1, 2, 3]


def test_finish_reasons_have_sglangs_shape() -> None:
    assert Finish("length").as_json(7) == {"type": "length", "length": 7}
    assert Finish("stop", matched="x").as_json(7) == {"type": "stop", "matched": "x"}
    assert Finish("abort", message="m").as_json(7)["type"] == "abort"


def test_a_histogram_counts_bounds_inclusively() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1]
    assert histogram.sum == 12.0


def test_text_of_incomplete_characters_is_held_back(target_folder: Path) -> None:
    tokenizer = Tokenizer(target_folder)
    text = "Naïve café 🙂🎉 日本"
    ids = tokenizer.encode(text)
    stream = tokenizer.stream()
    pieces = [stream.push(token) for token in ids]
    assert "".join(pieces) == text == tokenizer.decode(ids)
    assert "" in pieces and all("\ufffd" not in piece for piece in pieces)
