"""What every config model has in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Model(BaseModel):
    """Refuses unknown keys, does not change after it was read, and does not turn one type into another."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Strings = Annotated[tuple[str, ...], Field(strict=False)]
"""A YAML list of strings."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
"""A name that may stand in a file name and in MLflow."""

FlagValue = str | int | float | bool | None
"""Value of a free server flag; true is the bare flag, false and null leave it out."""

Flags = dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")], FlagValue]
"""Free server flags: the flag's full name without its leading dashes -> value."""


def _number_as_text(value: Any) -> Any:
    return str(value) if type(value) in (int, float) else value


Env = dict[str, Annotated[str, BeforeValidator(_number_as_text)]]
"""Environment of the server. Numbers become text; ``true`` does not, since nobody knows which spelling is meant."""
