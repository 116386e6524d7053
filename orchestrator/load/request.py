"""One request, before it is put into the dialect of an endpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Endpoint = Literal["generate", "completions", "chat"]


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters; all of them are sent, since a server's own defaults come from the model's files."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """One request to send, and what its record says about it besides what the server answers."""

    text: str
    """Chat template already applied."""
    sampling: Sampling
    trial_key: str
    arm: str
    session_index: int
    phase: Literal["warmup", "measure", "probe"]
    prompt_id: str
    category: str
    repeat: int
    endpoint: Endpoint = "generate"
    model: str = ""
    """Name of the target as the server knows it; the OpenAI endpoints ask for it."""
    messages: tuple[dict[str, str], ...] = ()
    """Sent in place of ``text`` where the server applies the chat template (endpoint ``chat``)."""
    template_kwargs: dict[str, bool] = field(default_factory=dict)
    """Given to the server's chat template, for example ``enable_thinking``."""


@dataclass(frozen=True)
class Limits:
    """When a request is given up."""

    timeout_s: float
    """After sending."""
    stall_timeout_s: float
    """Without a byte, once the answer has begun."""
