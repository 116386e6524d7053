"""Prompts, sampling and load: what is sent to a server. The file format is described in docs/reference/suite.md."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from orchestrator.schema.base import Model, Name, Strings


class Message(Model):
    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Field(min_length=1)]


class Prompt(Model):
    id: Name
    category: Name
    messages: Annotated[tuple[Message, ...], Field(strict=False, min_length=1)]

    @field_validator("messages")
    @classmethod
    def _ends_with_the_user(cls, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        if messages[-1].role != "user":
            raise ValueError("the last message must be a user message")
        return messages


class Suite(Model):
    name: Name
    description: str
    repeats: Annotated[int, Field(ge=1)]
    """Passes over the prompts."""
    max_new_tokens: dict[str, Annotated[int, Field(ge=1)]]
    """Target name -> token limit; ``default`` serves the rest."""
    temperature: Annotated[float, Field(ge=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Annotated[int, Field(ge=-1)]
    """-1: off."""
    seed: int
    enable_thinking: bool | None
    """None leaves the chat template's own default."""
    ignore_eos: bool
    stop: Strings
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

    def token_limit(self, target: str) -> int:
        """Most tokens a request to this target may generate."""
        return self.max_new_tokens.get(target, self.max_new_tokens["default"])


class Load(Model):
    """Closed loop: ``concurrency`` requests are kept in flight until the suite is through."""

    name: Name
    concurrency: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False, min_length=1)]
    """Load points; each is one pass over the suite per repeat."""
    warmup_requests: Annotated[int, Field(ge=0)]
    """Requests sent before each trial and not counted. Above 0: at least a full batch, and one of each category."""
    request_timeout_s: Annotated[float, Field(gt=0)]

    @field_validator("concurrency")
    @classmethod
    def _points_are_unique(cls, points: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(points)) != len(points):
            raise ValueError("a load point occurs twice")
        return points


class LoadPoint(Model):
    """One value of the sweep over load."""

    concurrency: int
    warmup_requests: int
    request_timeout_s: float
