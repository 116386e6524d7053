"""Streams, errors and metrics of a real SGLang 0.5.16, read as the load client and the cross-check read them.

From one H200 with dummy weights: the text is noise, and hardly a draft is right. Streams are shortened in the middle
(each event of /generate repeats what came before, usage counts on), paths are made up.
"""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest

from orchestrator.load import generate, openai
from orchestrator.load.answer import Answer, Reader, message
from orchestrator.load.events import EventSplitter
from orchestrator.measuring.records import SpecCounters
from orchestrator.measuring.server_totals import counters

RESPONSES = Path(__file__).parent / "sglang_responses"
ERRORS = json.loads((RESPONSES / "errors.json").read_text(encoding="utf-8"))


def answer(name: str, reader: Reader, piece: int = 97) -> Answer:
    """The answer of a recorded stream that comes in pieces which end anywhere."""
    stream = (RESPONSES / f"{name}.sse").read_bytes()
    splitter = EventSplitter(reader.event)
    for place in range(0, len(stream), piece):
        splitter.feed(place / len(stream), stream[place : place + piece])
    return reader.finish()


@pytest.mark.parametrize(("name", "window"), [("plain", None), ("dflash", 16), ("dspark", 8), ("hybrid-dflash", 16)])
def test_a_stream_of_generate(name: str, window: int | None) -> None:
    found = answer(f"generate-{name}", generate.GenerateReader())
    assert found.problem is None and found.finish_reason == "length"
    assert len(found.output_ids) == found.completion_tokens == 48
    assert (found.prompt_tokens, len(found.text.split())) == (23, 48)
    assert [tokens for _, tokens in found.chunks] == [1, 2, 3, 47, 48]
    if window is None:
        assert found.spec is None
        return
    assert found.spec is not None
    steps, drafts = found.spec.spec_verify_ct, found.spec.spec_num_proposed_drafts
    assert drafts == steps * (window - 1)
    assert sum(found.spec.spec_correct_drafts_histogram or ()) == steps
    assert steps + found.spec.spec_num_correct_drafts == 47, "the prefill brings the first token"


def test_a_stream_of_chat_that_counts_each_chunk() -> None:
    found = answer("chat-continuous-usage", openai.OpenAIReader())
    assert found.problem is None and found.finish_reason == "length"
    assert (found.prompt_tokens, found.completion_tokens, found.spec) == (31, 12, None)
    assert [tokens for _, tokens in found.chunks] == list(range(1, 13))
    assert len(found.text.split()) == 12


@pytest.mark.parametrize("name", ["chat", "completions"])
def test_a_stream_that_counts_at_its_end_only_is_not_taken(name: str) -> None:
    """How many tokens a chunk brought is not told, so its stamps say nothing."""
    found = answer(f"{name}-usage-at-the-end", openai.OpenAIReader())
    assert found.problem is not None and "does not count tokens per chunk" in found.problem[1]


def test_an_output_that_the_cache_does_not_hold_says_nothing_of_it() -> None:
    """400 tokens were asked for, of a cache of 512 that held 300 of the prompt. Only the count tells (load/send.py)."""
    meta = json.loads((RESPONSES / "output-over-the-cache.json").read_text(encoding="utf-8"))["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 210} and meta["completion_tokens"] == 210


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_is_told_in_the_server_s_words(case: str) -> None:
    status, body = ERRORS[case]
    assert status in (400, 404)
    told = message(body.encode() if isinstance(body, str) else orjson.dumps(body))
    assert told and not told.startswith("{'error'") and '"object"' not in told
    words = {
        "a prompt longer than the context": "longer than the model's context length (40960 tokens)",
        "a prompt longer than the cache": "exceeds the maximum allowed length (506 tokens)",
        "log-probabilities under DFLASH": "does not support return_logprob",
        "log-probabilities under DSPARK": "does not support return_logprob",
        "no prompt": "Either text, input_ids",
        "a wrong parameter of chat": "temperature must be",
        "no JSON": "JSON decode error",
        "no such path": "Not Found",
        "a flush while it works": "Flush cache failed.",
    }
    assert words[case] in told


def test_the_totals_of_a_server() -> None:
    before, after = (
        counters((RESPONSES / f"metrics-dflash-{when}.txt").read_text(encoding="utf-8")) for when in ("before", "after")
    )
    assert before == {"verify_steps": 7, "output_tokens": 8, "prompt_tokens": 11, "requests": 1}
    assert after == {
        "verify_steps": 971, "output_tokens": 991, "prompt_tokens": 539, "requests": 20, "cached_tokens": 179,
    }  # fmt: skip
    committed = after["output_tokens"] - after["requests"]
    assert committed == after["verify_steps"], "no draft was right: each step brought one token"


def test_counters_under_their_older_names_are_not_needed() -> None:
    """0.5.16 gives both; the older ones are gone in 0.5.22."""
    last = (RESPONSES / "generate-dflash.sse").read_text(encoding="utf-8").split("\n\n")[-3]
    meta = json.loads(last.removeprefix("data: "))["meta_info"]
    assert {"spec_accepted_drafts", "spec_num_correct_drafts"} <= set(meta)
    assert set(SpecCounters.model_fields) & {"spec_accepted_drafts", "spec_proposed_drafts"} == set()
