"""When the answer to a prompt counts as right. Nothing of it is sent, and none of it is part of a trial's identity."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from orchestrator.schema.base import Model, Strings


class Contains(Model):
    """All of these occur in the answer as whole words, in any order; case does not matter."""

    kind: Literal["contains"]
    all: Annotated[Strings, Field(min_length=1)]

    @field_validator("all")
    @classmethod
    def _has_text(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        if not all(word.strip() for word in words):
            raise ValueError("an empty text is in every answer")
        return words


class Regex(Model):
    """The pattern is found anywhere in the answer (Python's ``re.search``)."""

    kind: Literal["regex"]
    pattern: Annotated[str, Field(min_length=1)]

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"is not a regular expression: {error}") from error
        return pattern


class Json(Model):
    """The whole answer, or the one fenced block that it consists of, is JSON."""

    kind: Literal["json"]
    keys: Strings = ()
    """What the object has at least; of a list, each of its objects. An answer without them is malformed."""
    holds: Any = None
    """What the value must hold: objects by key (others may be there), lists item by item, text whatever its case. A
    well-formed answer that holds something else is wrong. None: any value will do."""

    @field_validator("holds")
    @classmethod
    def _is_json(cls, holds: Any) -> Any:
        if not _plain(holds):
            raise ValueError("must be what JSON can say (text, numbers, true, false, null, lists, objects)")
        return holds


class Number(Model):
    """The last number in the answer is this one."""

    kind: Literal["number"]
    value: float


Check = Annotated[Contains | Regex | Json | Number, Field(discriminator="kind")]


def _plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _plain(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
