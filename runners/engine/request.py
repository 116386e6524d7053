"""One request inside the engine: what was asked, what came out, when it ends, and its speculation counters."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runners.engine.sampling import SamplingParams
from runners.engine.tokenizer import TextStream


@dataclass(frozen=True)
class Finish:
    """Why a request ended. ``kind`` is SGLang's ``finish_reason.type``: stop, length or abort."""

    kind: str
    matched: int | str | None = None
    """The token id or text it stopped at."""
    message: str | None = None
    error_code: int | None = None
    """HTTP status where the server is to blame; None for an abort somebody asked for."""

    def as_json(self, length: int) -> dict[str, Any]:
        if self.kind == "length":
            return {"type": "length", "length": length}
        if self.kind == "stop":
            return {"type": "stop", "matched": self.matched}
        return {"type": "abort", "message": self.message, "status_code": self.error_code, "err_type": None}


@dataclass
class SpecCounters:
    """Speculation counters as SGLang keeps them.

    A verification step is one for which the drafter was asked, also where it proposed nothing or everything was cut.
    """

    window: int
    """Most tokens a step verifies, anchor included."""
    verify_ct: int = 0
    correct: int = 0
    """Drafts the target agreed with, also those past the end of the output."""
    proposed: int = 0
    """Drafts that were verified."""
    histogram: list[int] = field(default_factory=list)
    """Index i: steps with exactly i correct drafts."""
    cap_histogram: list[int] = field(default_factory=list)
    """Index i: steps whose window was i tokens, anchor included."""

    def __post_init__(self) -> None:
        self.histogram = [0] * self.window
        self.cap_histogram = [0] * (self.window + 1)

    def add(self, proposed: int, correct: int) -> None:
        self.verify_ct += 1
        self.correct += correct
        self.proposed += proposed
        self.histogram[correct] += 1
        self.cap_histogram[proposed + 1] += 1

    def as_json(self, completion_tokens: int, windows_vary: bool) -> dict[str, Any]:
        """The ``spec_*`` keys of ``meta_info``; empty before the first verification step.

        The windows are among them where they may vary, or did (the end of the context cuts any drafter's).
        """
        if not self.verify_ct:
            return {}
        values = {
            "spec_accept_rate": self.correct / self.proposed if self.proposed else 0.0,
            "spec_accept_length": completion_tokens / self.verify_ct,
            "spec_num_correct_drafts": self.correct,
            "spec_num_proposed_drafts": self.proposed,
            "spec_verify_ct": self.verify_ct,
            "spec_correct_drafts_histogram": list(self.histogram),
        }
        if windows_vary or any(self.cap_histogram[:-1]):
            values["spec_cap_length"] = sum(i * n for i, n in enumerate(self.cap_histogram)) / self.verify_ct
            values["spec_cap_lens_histogram"] = list(self.cap_histogram)
        return values


@dataclass
class Request:
    """What a client asked for. ``on_update`` is called on the engine's thread after every step that brought tokens,
    and once at the end."""

    rid: str
    prompt: list[int]
    sampling: SamplingParams
    max_new_tokens: int
    on_update: Callable[[Output], None]
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    """Token ids that end the output; the model's own EOS ids among them unless the request ignores them."""
    top_logprobs: int | None = None
    """Likeliest tokens to report per position; 0 for the chosen token alone, None for nothing."""


@dataclass
class Output:
    """The output so far. ``Progress`` hands the same object over at each update: read it, never keep or change it."""

    request: Request
    text_stream: TextStream
    spec: SpecCounters | None
    windows_vary: bool
    """Whether verification steps may have windows of different sizes."""
    ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: Finish | None = None
    logprobs: list[list[Any]] = field(default_factory=list)
    """[logprob, token id, None] per output token, at temperature 1."""
    top_logprobs: list[list[list[Any]]] = field(default_factory=list)
    received: float = field(default_factory=time.time)
    started: float | None = None
    first_token: float | None = None
    finished: float | None = None

    def extend(self, tokens: list[int]) -> int:
        """Append tokens up to and including the one that ends the output; returns how many were taken."""
        request = self.request
        for taken, token in enumerate(tokens, 1):
            self.ids.append(token)
            if token in request.stop_token_ids:
                self.finish = Finish("stop", matched=token)
            else:
                before = len(self.text)
                self.text += self.text_stream.push(token)
                self._cut_at_stop(before)
                if self.finish is None and len(self.ids) >= request.max_new_tokens:
                    self.finish = Finish("length")
            if self.finish is not None:
                return taken
        return len(tokens)

    def _cut_at_stop(self, before: int) -> None:
        """A stop text may span tokens: it is looked for in the new text and as much before it as it is long."""
        if len(self.text) == before:
            return
        found: list[tuple[int, str]] = []
        for stop in self.request.stop:
            at = self.text.find(stop, max(0, before - len(stop) + 1))
            if at >= 0:
                found.append((at, stop))
        if found:
            at, stop = min(found)
            self.text = self.text[:at]
            self.finish = Finish("stop", matched=stop)

    def held_back(self) -> int:
        """Characters at the end of the text that may turn out to begin a stop text, and so must not be sent yet."""
        if self.finish is not None:
            return 0
        longest = 0
        for stop in self.request.stop:
            for n in range(min(len(stop) - 1, len(self.text)), longest, -1):
                if self.text.endswith(stop[:n]):
                    longest = n
                    break
        return longest

    def meta_info(self) -> dict[str, Any]:
        """SGLang's ``meta_info``: the counters are cumulative, and the speculation part comes with the last chunk."""
        n = len(self.ids)
        info: dict[str, Any] = {
            "id": self.request.rid,
            "finish_reason": self.finish.as_json(n) if self.finish else None,
            "prompt_tokens": len(self.request.prompt),
            "weight_version": "default",
            "num_retractions": 0,
            "queue_time": (self.started - self.received) if self.started else 0.0,
            "completion_tokens": n,
            "cached_tokens": 0,
        }
        if self.request.top_logprobs is not None:
            info["input_token_logprobs"] = []
            info["output_token_logprobs"] = list(self.logprobs)
            info["output_token_logprobs_length"] = len(self.logprobs)
            if self.request.top_logprobs:
                info["output_top_logprobs"] = list(self.top_logprobs)
        if self.finished is not None:
            info["e2e_latency"] = self.finished - self.received
            info["request_received_ts"] = self.received
            info["request_finished_ts"] = self.finished
            if self.first_token and n > 1 and self.finished > self.first_token:
                info["decode_throughput"] = (n - 1) / (self.finished - self.first_token)
            if self.spec:
                info |= self.spec.as_json(n, self.windows_vary)
        return info
