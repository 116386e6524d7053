"""``/v1/completions`` and ``/v1/chat/completions`` as SGLang serves them.

How many tokens a chunk brought is in its ``usage`` (``continuous_usage_stats``), the counters of speculation are in
``sglext``; token ids come with completions always, with chat from SGLang 0.5.23 on.
"""

from __future__ import annotations

from typing import Any

import orjson

from orchestrator.load.answer import Answer, counters, told
from orchestrator.load.events import DONE
from orchestrator.load.request import Request

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


def body(request: Request) -> bytes:
    sampling = request.sampling
    content: dict[str, Any] = {
        "model": request.model,
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": sampling.seed,
        "ignore_eos": sampling.ignore_eos,
        "stop": list(sampling.stop),
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_spec_tokens_details": True,
    }
    if request.endpoint == "chat":
        content |= {"messages": request.messages, "return_output_ids_in_sglext": True}
        if request.template_kwargs:
            content["chat_template_kwargs"] = request.template_kwargs
    else:
        content |= {"prompt": request.text, "return_token_ids": True}
    return orjson.dumps(content)


class OpenAIReader:
    """Of both endpoints."""

    def __init__(self) -> None:
        self.answer = Answer()
        self._texts: list[str] = []
        self._usage: dict[str, Any] | None = None
        self._uncounted = False
        self._done = False

    def event(self, seconds: float, data: bytes) -> None:
        if self.answer.problem:
            return
        if data == DONE:
            self._done = True
            return
        try:
            event = orjson.loads(data)
            usage = event.get("usage")
            for choice in event["choices"]:
                self._choice(choice, usage is not None)
            if usage is not None:
                self.answer.count(seconds, usage["completion_tokens"])
                self._usage = usage
            if (extension := event.get("sglext")) is not None:
                self._extension(extension)
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            self.answer.fail("error", told(problem, data))

    def _choice(self, choice: dict[str, Any], counted: bool) -> None:
        delta = choice.get("delta", choice)
        text = delta.get("content") or delta.get("text")
        # What a model thinks is output like what it answers; which of the two it is, only the server's parser knows.
        if thought := delta.get("reasoning_content"):
            text = thought + (text or "")
        if text:
            self._texts.append(text)
            self._uncounted |= not counted
        if ids := choice.get("token_ids"):
            self.answer.output_ids += ids
        if reason := choice.get("finish_reason"):
            self.answer.finish_reason = reason

    def _extension(self, extension: dict[str, Any]) -> None:
        if extension.get("output_ids"):
            self.answer.output_ids = extension["output_ids"][0]
        self.answer.spec = counters(extension.get("spec_tokens_details") or {})

    def finish(self) -> Answer:
        answer = self.answer
        answer.text = "".join(self._texts)
        if self._usage is not None:
            answer.prompt_tokens, answer.completion_tokens = (
                self._usage.get("prompt_tokens"),
                self._usage["completion_tokens"],
            )
            answer.cached_tokens = (self._usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if answer.finish_reason == "abort":
            answer.fail("error", "aborted by the server")
        answer.end(self._done)
        if answer.completion_tokens is None or self._uncounted:
            answer.fail("error", "the server does not count tokens per chunk (stream_options.continuous_usage_stats)")
        if answer.output_ids and len(answer.output_ids) != answer.completion_tokens:
            answer.fail("error", f"{len(answer.output_ids)} token ids, but {answer.completion_tokens} tokens counted")
        return answer
