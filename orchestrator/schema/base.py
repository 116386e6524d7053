"""What every config model has in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Model(BaseModel):
    """Refuses unknown keys, does not change after it was read, and does not turn one type into another."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Strings = Annotated[tuple[str, ...], Field(strict=False)]
"""A YAML list of strings."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
"""A name that may stand in a file name and in MLflow."""

FlagValue = str | int | float | bool | None
"""Value of a free server flag; true is the bare flag, false and null leave it out."""

Flags = dict[str, FlagValue]
"""Free server flags: the flag without its dashes -> value."""

Env = dict[str, str]
"""Environment of the server: every value quoted in YAML, since ``on`` or ``1`` would not be a string."""
