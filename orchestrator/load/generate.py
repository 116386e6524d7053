"""SGLang's ``/generate``.

Its stream is cumulative (each event repeats all text and tokens) or, with ``--incremental-streaming-output``, brings
the new part only, of log-probabilities too; all other ``meta_info`` is cumulative in both. Which one it is shows in the
first two events with tokens.
"""

from __future__ import annotations

from typing import Any

import orjson

from orchestrator.load.answer import Answer, Top2, counters, parse_event, told
from orchestrator.load.events import DONE
from orchestrator.load.request import Request

PATH = "/generate"
_COUNTER = b'"completion_tokens":'
"""Cannot stand inside a JSON string, where its quotes would be escaped."""


def body(request: Request) -> bytes:
    sampling = request.sampling
    content: dict[str, Any] = {
        "text": request.text,
        "sampling_params": {
            "max_new_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "sampling_seed": sampling.seed,
            "ignore_eos": sampling.ignore_eos,
            "stop": list(sampling.stop),
        },
        "stream": True,
    }
    if request.phase == "probe":
        content |= {"return_logprob": True, "top_logprobs_num": 2}
    return orjson.dumps(content)


class GenerateReader:
    """Of a cumulative stream only the last event is read whole, of those before it the token count alone: an answer of
    n chunks would otherwise cost n²/2 chunks of memory and of parsing."""

    def __init__(self) -> None:
        self.answer = Answer()
        self._cumulative: bool | None = None
        """None: not known yet."""
        self._pieces: list[dict[str, Any]] = []
        self._last: bytes | None = None
        """Event of a cumulative stream that is not read yet."""
        self._done = False

    def event(self, seconds: float, data: bytes) -> None:
        if self.answer.problem:
            return
        if data == DONE:
            self._done = True
            return
        if self._cumulative and (tokens := _counted(data)) is not None:
            self._last = data
            self.answer.count(seconds, tokens)
            return
        try:
            event = parse_event(data)
            tokens, ids = event["meta_info"]["completion_tokens"], event["output_ids"]
            if self._cumulative is None and self.answer.chunks and tokens > self.answer.chunks[-1][1]:
                self._cumulative = len(ids) >= tokens
            self.answer.count(seconds, tokens)
            self._pieces.append({"output_ids": ids, "text": event["text"], "meta_info": event["meta_info"]})
        except (KeyError, TypeError, ValueError) as problem:
            self.answer.fail("error", told(problem))

    def finish(self) -> Answer:
        answer = self.answer
        try:
            if self._last is not None:
                self._pieces.append(parse_event(self._last))
            if self._pieces:
                self._conclude()
        except (KeyError, TypeError, ValueError) as problem:
            answer.fail("error", told(problem))
        answer.end(self._done)
        return answer

    def _conclude(self) -> None:
        answer, last = self.answer, self._pieces[-1]
        meta = last["meta_info"]
        total = meta["completion_tokens"]
        answer.completion_tokens = total
        answer.prompt_tokens, answer.cached_tokens = meta.get("prompt_tokens"), meta.get("cached_tokens")
        reason = meta.get("finish_reason") or {}
        answer.finish_reason = reason.get("type")
        if answer.finish_reason == "abort":
            answer.fail("error", f"aborted by the server: {reason.get('message') or 'no reason given'}")
        if len(last["output_ids"]) == total:
            answer.output_ids, answer.text, answer.top2 = last["output_ids"], last["text"], _top2([last])
        elif not self._cumulative and sum(len(piece["output_ids"]) for piece in self._pieces) == total:
            answer.output_ids = [token for piece in self._pieces for token in piece["output_ids"]]
            answer.text, answer.top2 = "".join(piece["text"] for piece in self._pieces), _top2(self._pieces)
        else:
            form = "neither those of a cumulative nor of an incremental stream"
            answer.fail("error", f"the output_ids are {form} of {total} tokens")
        answer.spec = counters(meta)


def _counted(data: bytes) -> int | None:
    """``completion_tokens`` of an event without reading it whole; None where it is not found."""
    place = data.rfind(_COUNTER)  # meta_info stands last
    if place < 0:
        return None
    start = place + len(_COUNTER)
    end = data.find(b",", start)
    digits = data[start : end if end >= 0 else start + 16].rstrip(b"} ")
    return int(digits) if digits.strip().isdigit() else None


def _top2(pieces: list[dict[str, Any]]) -> Top2 | None:
    """``output_top_logprobs`` ([log-probability, token id, text] per candidate) as the record keeps it."""
    places = [place for piece in pieces for place in piece["meta_info"].get("output_top_logprobs") or ()]
    if not places or any(len(place) < 2 for place in places):
        return None
    top: Top2 = []
    for place in places:
        (first, one, *_), (second, other, *_) = sorted(place, key=lambda entry: -entry[0])[:2]
        top.append(((one, first), (other, second)))
    return top
