"""Secrets never reach a summary, a report or MLflow: values whose names look secret are replaced."""

from __future__ import annotations

import re
from typing import Any

MASK = "***"
_SECRET = re.compile(
    r"(?:^|[_\-.])(?:(?:api|access|private)[_-]?key|secret|password|passwd|token|credentials?|auth|authorization)$",
    re.IGNORECASE,
)
"""Matches the last word of a name: ``HF_TOKEN`` and ``api_key``, not ``proposed_tokens`` or ``token_limit``."""


def mask(value: Any, name: str = "") -> Any:
    """A copy of ``value`` (dicts, lists, scalars) with the values of secret-looking names replaced; None stays None."""
    if isinstance(value, dict):
        return {key: mask(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        words = all(isinstance(item, str) for item in value)
        return mask_command(list(value)) if words else [mask(item) for item in value]
    return MASK if looks_secret(name) and isinstance(value, str) and value else value


def mask_command(arguments: list[str]) -> list[str]:
    """A command line with the values of ``--api-key X``, ``--api-key=X`` and ``HF_TOKEN=X`` replaced."""
    result = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if hide_next:
            result.append(MASK)
        elif equals and looks_secret(name):
            result.append(f"{name}={MASK}")
        else:
            result.append(argument)
        hide_next = not hide_next and not equals and argument.startswith("--") and looks_secret(argument)
    return result


def looks_secret(name: str) -> bool:
    return _SECRET.search(name.lstrip("-")) is not None
