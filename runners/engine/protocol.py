"""SGLang's HTTP dialect: bodies into requests, outputs into bodies. No HTTP and no engine here."""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runners.engine.request import Finish, Output
from runners.engine.sampling import SamplingParams
from runners.engine.tokenizer import Tokenizer

Body = TypeVar("Body", bound=BaseModel)


class BadRequest(ValueError):
    """The client's mistake; the message says what and what is allowed."""


class _SamplingBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    max_new_tokens: int | None = Field(default=128, ge=0)
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    sampling_seed: int | None = None


class _GenerateBody(BaseModel):
    # Unknown keys are passed over, as SGLang does: clients send keys of features that are off.
    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: dict[str, Any] | None = None
    stream: bool = False
    rid: str | None = None
    return_logprob: bool = False
    top_logprobs_num: int = Field(default=0, ge=0, le=64)


class _OpenAIBody(BaseModel):
    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int = -1
    min_p: float = 0.0
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    seed: int | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    return_spec_tokens_details: bool = False
    rid: str | None = None
    # What would change the answer and is not served is refused instead of passed over.
    n: int = Field(default=1, ge=1, le=1)
    tools: None = None
    response_format: None = None
    logprobs: bool | None = Field(default=None)
    frequency_penalty: float = Field(default=0.0, ge=0, le=0)
    presence_penalty: float = Field(default=0.0, ge=0, le=0)
    repetition_penalty: float = Field(default=1.0, ge=1, le=1)


class _ChatBody(_OpenAIBody):
    messages: list[dict[str, Any]] = Field(min_length=1)
    chat_template_kwargs: dict[str, Any] | None = None
    return_output_ids_in_sglext: bool = False


class _CompletionBody(_OpenAIBody):
    prompt: str | list[int]
    return_token_ids: bool = False


@dataclass(frozen=True)
class Ask:
    """A checked request of any endpoint."""

    prompt: list[int]
    sampling: SamplingParams
    max_new_tokens: int
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    top_logprobs: int | None
    stream: bool
    rid: str | None
    model: str | None = None
    include_usage: bool = False
    continuous_usage: bool = False
    spec_details: bool = False
    """The counters of speculation are wanted, in ``sglext``."""
    output_ids: bool = False
    """Token ids are wanted: of a chat in ``sglext``, of a completion in its choices."""


@dataclass(frozen=True)
class Limits:
    """What the model allows."""

    vocab_size: int
    context_length: int
    eos_token_ids: frozenset[int]


def parse_generate(body: Any, tokenizer: Tokenizer, limits: Limits) -> Ask:
    """Body of ``POST /generate``. Raises BadRequest."""
    parsed = _validate(_GenerateBody, body)
    if (parsed.text is None) == (parsed.input_ids is None):
        if parsed.text is None:
            raise BadRequest("Either text or input_ids should be provided.")
        raise BadRequest("text and input_ids are both given; give one of them.")
    options = _validate(_SamplingBody, parsed.sampling_params or {}, "sampling_params.")
    prompt = parsed.input_ids if parsed.input_ids is not None else tokenizer.encode(parsed.text or "")
    sampling = _sampling(options.temperature, options.top_p, options.top_k, options.min_p, options.sampling_seed)
    return _ask(
        parsed,
        limits,
        prompt,
        sampling,
        options.max_new_tokens,
        options,
        top_logprobs=parsed.top_logprobs_num if parsed.return_logprob or parsed.top_logprobs_num else None,
    )


def parse_chat(body: Any, tokenizer: Tokenizer, limits: Limits) -> Ask:
    """Body of ``POST /v1/chat/completions``. Raises BadRequest."""
    parsed = _validate(_ChatBody, body)
    messages = [message | {"content": _text_of(message.get("content"))} for message in parsed.messages]
    try:
        prompt = tokenizer.encode_chat(messages, parsed.chat_template_kwargs)
    except ValueError as error:
        raise BadRequest(str(error)) from error
    return _openai_ask(parsed, limits, prompt, default_tokens=None, output_ids=parsed.return_output_ids_in_sglext)


def parse_completion(body: Any, tokenizer: Tokenizer, limits: Limits) -> Ask:
    """Body of ``POST /v1/completions``. Raises BadRequest."""
    parsed = _validate(_CompletionBody, body)
    prompt = tokenizer.encode(parsed.prompt) if isinstance(parsed.prompt, str) else parsed.prompt
    return _openai_ask(parsed, limits, prompt, default_tokens=16, output_ids=parsed.return_token_ids)


def _openai_ask(
    parsed: _OpenAIBody, limits: Limits, prompt: list[int], default_tokens: int | None, output_ids: bool
) -> Ask:
    if parsed.logprobs:
        raise BadRequest("logprobs is not served here; use /generate with return_logprob.")
    sampling = _sampling(
        1.0 if parsed.temperature is None else parsed.temperature,
        1.0 if parsed.top_p is None else parsed.top_p,
        parsed.top_k,
        parsed.min_p,
        parsed.seed,
    )
    tokens = parsed.max_completion_tokens or parsed.max_tokens or default_tokens
    ask = _ask(
        parsed, limits, prompt, sampling, tokens, parsed, model=parsed.model, options=parsed.stream_options or {}
    )
    return replace(ask, spec_details=parsed.return_spec_tokens_details, output_ids=output_ids)


def _ask(
    parsed: _GenerateBody | _OpenAIBody,
    limits: Limits,
    prompt: list[int],
    sampling: SamplingParams,
    max_new_tokens: int | None,
    ends: _SamplingBody | _OpenAIBody,
    top_logprobs: int | None = None,
    model: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Ask:
    context = limits.context_length
    if not prompt:
        raise BadRequest("The input is empty; give at least one token.")
    if bad := [token for token in prompt if not 0 <= token < limits.vocab_size]:
        raise BadRequest(f"Token id {bad[0]} is outside the vocabulary of {limits.vocab_size} tokens.")
    if len(prompt) >= context:
        raise BadRequest(
            f"The input ({len(prompt)} tokens) is longer than the model's context length ({context} tokens)."
        )
    room = context - len(prompt)
    if max_new_tokens is not None and max_new_tokens > room:
        raise BadRequest(
            f"Requested token count exceeds the model's maximum context length of {context} tokens: {len(prompt)} "
            f"tokens of input and {max_new_tokens} tokens of output. Ask for at most {room} tokens of output."
        )
    if max_new_tokens == 0:
        raise BadRequest("max_new_tokens must be at least 1.")
    stop = (ends.stop,) if isinstance(ends.stop, str) else tuple(ends.stop or ())
    # SGLang ignores both kinds of stop tokens under ignore_eos; stop texts still count.
    tokens = frozenset() if ends.ignore_eos else limits.eos_token_ids | set(ends.stop_token_ids or ())
    options = options or {}
    return Ask(
        prompt=prompt,
        sampling=sampling,
        max_new_tokens=room if max_new_tokens is None else max_new_tokens,
        stop=tuple(text for text in stop if text),
        stop_token_ids=tokens,
        top_logprobs=top_logprobs,
        stream=parsed.stream,
        rid=parsed.rid,
        model=model,
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
    )


def _sampling(temperature: float, top_p: float, top_k: int, min_p: float, seed: int | None) -> SamplingParams:
    try:
        return SamplingParams(temperature, top_p, top_k, min_p, seed)
    except ValueError as error:
        raise BadRequest(str(error)) from error


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        return "".join(str(part.get("text", "")) for part in content)
    raise BadRequest("messages: content must be a text or a list of parts of type 'text'.")


def _validate(kind: type[Body], body: Any, prefix: str = "") -> Body:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise BadRequest("; ".join(_explain(kind, item, prefix) for item in error.errors())) from error


def _explain(kind: type[BaseModel], item: Mapping[str, Any], prefix: str) -> str:
    name = prefix + ".".join(str(part) for part in item["loc"])
    if item["type"] != "extra_forbidden":
        return f"{name.rstrip('.') or 'body'}: {item['msg']}"
    near = difflib.get_close_matches(str(item["loc"][-1]), kind.model_fields, n=1)
    hint = f"did you mean {near[0]}?" if near else "allowed: " + ", ".join(kind.model_fields)
    return f"{name} is not known here; {hint}"


# Responses ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Snapshot:
    """An output at one moment, safe to read on another thread."""

    text: str
    """What may be sent: the end that may begin a stop text is held back."""
    ids: list[int]
    prompt_tokens: int
    meta_info: dict[str, Any]
    finish: Finish | None

    @staticmethod
    def of(output: Output) -> Snapshot:
        held = output.held_back()
        text = output.text[:-held] if held else output.text
        return Snapshot(text, list(output.ids), len(output.request.prompt), output.meta_info(), output.finish)

    def ended(self, finish: Finish) -> Snapshot:
        """This output, ended by something outside the engine."""
        meta = self.meta_info | {"finish_reason": finish.as_json(len(self.ids))}
        return Snapshot(self.text, self.ids, self.prompt_tokens, meta, finish)

    @property
    def spec_details(self) -> dict[str, Any] | None:
        """The counters as ``sglext`` has them, a list that was not kept being empty; None before the first step."""
        if "spec_verify_ct" not in self.meta_info:
            return None
        return {"spec_cap_lens_histogram": []} | {
            key: value for key, value in self.meta_info.items() if key.startswith("spec_")
        }

    @property
    def usage(self) -> dict[str, Any]:
        done = len(self.ids)
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + done,
            "completion_tokens": done,
            "prompt_tokens_details": None,
            "reasoning_tokens": 0,
        }


def generate_body(snapshot: Snapshot) -> dict[str, Any]:
    """Body of a ``/generate`` response, and of each of its chunks (cumulative)."""
    return {"text": snapshot.text, "output_ids": snapshot.ids, "meta_info": snapshot.meta_info}


class OpenAIWriter:
    """Chunks and bodies of ``/v1/chat/completions`` (``chat``) or ``/v1/completions`` for one request."""

    def __init__(self, rid: str, model: str, chat: bool, ask: Ask) -> None:
        self._head = {"id": rid, "created": int(time.time()), "model": model}
        self._chat, self._ask, self._opened, self._sent, self._ids = chat, ask, False, 0, 0

    def whole(self, last: Snapshot) -> dict[str, Any]:
        message = {"role": "assistant", "content": last.text, "reasoning_content": None, "tool_calls": None}
        part = {"message": message} if self._chat else {"text": last.text}
        return {
            **self._head,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [{"index": 0, **part, **self._token_ids(last), **self._end(last)}],
            "usage": last.usage,
            "metadata": {"weight_version": "default"},
            **self._extension(last),
        }

    def chunks(self, snapshot: Snapshot) -> list[dict[str, Any]]:
        """What this state of the output adds to what was sent: deltas, then the finish and the usage."""
        parts: list[dict[str, Any]] = []
        piece: dict[str, Any]
        usage = {"usage": snapshot.usage} if self._ask.continuous_usage else {}
        none = {"logprobs": None, "finish_reason": None, "matched_stop": None}
        if self._chat and not self._opened:
            self._opened = True
            first = {"reasoning_content": None, "role": "assistant", "content": ""}
            parts.append(self._chunk([{"index": 0, "delta": first, **none}]))
        delta = snapshot.text[self._sent :]
        self._sent += len(delta)
        # Tokens without a text of their own yet: a completion tells of them, a chat where it counts tokens per chunk.
        if delta or (len(snapshot.ids) > self._ids and (not self._chat or self._ask.continuous_usage)):
            piece = {"delta": {"reasoning_content": None, "content": delta}} if self._chat else {"text": delta}
            parts.append(self._chunk([{"index": 0, **piece, **self._token_ids(snapshot), **none}], **usage))
        if snapshot.finish is not None:
            piece = {"delta": {"reasoning_content": None}} if self._chat else {"text": ""}
            parts.append(self._chunk([{"index": 0, **piece, **self._end(snapshot)}], **usage))
            if extension := self._extension(snapshot):
                parts.append(self._chunk([], **extension))
            if self._ask.include_usage:
                parts.append(self._chunk([], usage=snapshot.usage))
        return parts

    def _token_ids(self, snapshot: Snapshot) -> dict[str, Any]:
        """Of a completion, those that were not sent yet."""
        new, self._ids = snapshot.ids[self._ids :], len(snapshot.ids)
        return {"token_ids": new} if self._ask.output_ids and not self._chat else {}

    def _extension(self, last: Snapshot) -> dict[str, Any]:
        """What SGLang adds to an answer as a whole, if it was asked for; token ids are a list per choice."""
        told: dict[str, Any] = {}
        if self._ask.spec_details and (details := last.spec_details) is not None:
            told["spec_tokens_details"] = details
        if self._ask.output_ids and self._chat:
            told["output_ids"] = [last.ids]
        return {"sglext": told} if told else {}

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, **more}

    def _end(self, last: Snapshot) -> dict[str, Any]:
        assert last.finish is not None
        return {"logprobs": None, "finish_reason": last.finish.kind, "matched_stop": last.finish.matched}


def error_body(message: str, openai: bool, code: int) -> dict[str, Any]:
    """SGLang answers errors in two shapes: nested for its own endpoints, flat for OpenAI's."""
    if not openai:
        return {"error": {"message": message}}
    kind = "BadRequestError" if code < 500 else "InternalServerError"
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}
