"""What every config model has in common."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from orchestrator.frozen import Frozen


class Model(Frozen):
    """Refuses unknown keys, does not change after it was read, and does not turn one type into another.

    Infinity and NaN are no numbers here: JSON, in which everything is written down, has neither.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


Seed = Annotated[int, Field(ge=0, lt=2**31)]
"""What every consumer takes: torch, SGLang, and the dialects of the servers."""

Strings = Annotated[tuple[str, ...], Field(strict=False)]
"""A YAML list of strings."""

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
SIZE = r"^[0-9]+[bkmgBKMG]?$"
STORES = r"^(sqlite:///.|(https?|postgresql|mysql|mssql)([+]\w+)?://[^/]|databricks)"
"""Of MLflow. A folder is none: what MLflow kept in files it takes no more, and says so when all is measured."""

Name = Annotated[str, Field(pattern=NAME, max_length=100)]
"""A name that may stand in a file name and in MLflow."""

Repeats = Annotated[int, Field(ge=1, le=1000)]
"""Passes over a suite. A typing error must not plan for hours, nor fill the memory."""

FlagValue = str | int | float | bool | None
"""Value of a free server flag; true is the bare flag, false and null leave it out."""


def _single(value: Any) -> Any:
    """Told here once: of a union, pydantic tells what each of its members says."""
    if not isinstance(value, str | int | float | None):
        raise ValueError(f"{value!r}: must be text, a number, true, false or null")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value!r}: must be a finite number")
    return value


Flags = dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")], Annotated[FlagValue, BeforeValidator(_single)]]
"""Free server flags: the flag's full name without its leading dashes -> value."""


def _number_as_text(value: Any) -> Any:
    return str(value) if type(value) in (int, float) else value


Env = dict[str, Annotated[str, BeforeValidator(_number_as_text)]]
"""Environment of the server. Numbers become text; ``true`` does not, since nobody knows which spelling is meant."""
