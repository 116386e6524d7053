"""Prompts, sampling and load: what is sent to a server. The file format is described in docs/reference/suite.md."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from orchestrator.schema.base import Model, Name, Repeats, Seed
from orchestrator.schema.check import Check

FEW_PROMPTS = 6
"""Below this many prompts an interval rests on so few differences that it is often narrow by luck: nothing is decided
from it."""


class Message(Model):
    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Field(min_length=1)]


class Prompt(Model):
    id: Name
    category: Name
    messages: Annotated[tuple[Message, ...], Field(strict=False, min_length=1)]
    check: Check | None = None
    """When its answer counts as right; None where nothing is checked."""

    @field_validator("messages")
    @classmethod
    def _ends_with_the_user(cls, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        if messages[-1].role != "user":
            raise ValueError("the last message must be a user message")
        return messages


class Suite(Model):
    name: Name
    description: str
    repeats: Repeats
    """Passes over the prompts."""
    max_new_tokens: dict[str, Annotated[int, Field(ge=1)]]
    """Target name -> token limit; ``default`` serves the rest."""
    temperature: Annotated[float, Field(ge=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Annotated[int, Field(ge=-1)]
    """-1: off."""
    seed: Seed
    enable_thinking: bool | None
    """None leaves the chat template's own default."""
    ignore_eos: bool
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)]
    """Texts that end an answer."""
    prompts: Annotated[tuple[Prompt, ...], Field(strict=False, min_length=1)]

    @field_validator("max_new_tokens")
    @classmethod
    def _has_a_default(cls, limits: dict[str, int]) -> dict[str, int]:
        if "default" not in limits:
            raise ValueError("needs the key 'default' for targets that are not listed")
        return limits

    @field_validator("top_k")
    @classmethod
    def _is_off_or_positive(cls, top_k: int) -> int:
        if top_k == 0:
            raise ValueError("is -1 (off) or at least 1")
        return top_k

    @field_validator("prompts")
    @classmethod
    def _ids_are_unique(cls, prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
        ids = [prompt.id for prompt in prompts]
        twice = sorted({prompt_id for prompt_id in ids if ids.count(prompt_id) > 1})
        if twice:
            raise ValueError(f"prompt ids occur twice: {', '.join(twice)}")
        return prompts

    @property
    def sent(self) -> dict[str, Any]:
        """What can change an answer: all but names, and the checks, which only judge what was answered."""
        content = self.model_dump(mode="json", exclude={"name", "description", "prompts"})
        return {**content, "prompts": [prompt.model_dump(mode="json", exclude={"check"}) for prompt in self.prompts]}

    def token_limit(self, target: str) -> int:
        """Most tokens a request to this target may generate."""
        return self.max_new_tokens.get(target, self.max_new_tokens["default"])


Endpoint = Literal["generate", "completions", "chat"]
Arrival = Literal["closed", "constant", "poisson"]
Client = Literal["here", "node"]


class Load(Model):
    """How the prompts of a suite are sent. Each load point is one pass over the suite per repeat.

    Closed loop: ``concurrency`` requests are kept in flight. Open loop: ``rate`` requests/s are sent, at equal gaps
    (``constant``) or at random (``poisson``), however many are in flight.
    """

    name: Name
    arrival: Arrival
    concurrency: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False, min_length=1)] | None
    """Load points of the closed loop."""
    rate: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(strict=False, min_length=1)] | None
    """Load points of the open loop, requests/s."""
    endpoint: Endpoint
    """``generate``: SGLang's own; ``completions`` and ``chat``: OpenAI's; for ``chat`` the server renders."""
    warmup_requests: Annotated[int, Field(ge=0, le=10_000)]
    """Requests sent before each trial and not counted. Above 0: at least a full batch, and one of each category."""
    request_timeout_s: Annotated[float, Field(gt=0)]
    stall_timeout_s: Annotated[float, Field(gt=0)]
    """A request is given up when no byte came for so long after its answer had begun."""
    client: Client
    """Where requests are sent from: ``here``, or on the ``node`` that serves, so that no network is measured."""
    image: str
    """Of the client on the node; it holds Python and packages, the client's code comes from here."""

    @field_validator("concurrency", "rate")
    @classmethod
    def _points_are_unique(cls, points: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if points is not None and len(set(points)) != len(points):
            raise ValueError("a load point occurs twice")
        return points

    @model_validator(mode="after")
    def _one_kind_of_points(self) -> Self:
        needed, other = ("concurrency", "rate") if self.arrival == "closed" else ("rate", "concurrency")
        loops = "load=single and load=concurrency are closed loops, load=rate is an open one"
        if getattr(self, other) is not None:
            raise ValueError(f"arrival={self.arrival} does not use {other}, so {other} must be null; {loops}")
        if getattr(self, needed) is None:
            raise ValueError(f"arrival={self.arrival} needs {needed}; {loops}")
        return self


class LoadPoint(Model):
    """One value of the sweep over load: ``concurrency`` of a closed loop, or else ``rate`` of an open one."""

    arrival: Arrival
    concurrency: int | None
    rate: float | None
    endpoint: Endpoint
    warmup_requests: int
    request_timeout_s: float
    stall_timeout_s: float
    client: Client

    @property
    def shown(self) -> str:
        """For people: ``8 in flight`` or ``2.5/s poisson``."""
        shown = f"{self.concurrency} in flight" if self.rate is None else f"{self.rate:g}/s {self.arrival}"
        return f"{shown}, client on the node" if self.client == "node" else shown
