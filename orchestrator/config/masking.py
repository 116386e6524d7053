"""Secrets never reach a record, a summary, a report or MLflow: values whose names look secret are replaced, wherever in
a text the two stand, and so is what a URL holds before its host."""

from __future__ import annotations

import re
from typing import Any

MASK = "***"
_WORDS = (
    r"(?:(?:api|access|private|secret|auth|encryption|signing|ssh|account|master|admin)[_-]?key|secret|password|passwd|"
    r"passphrase|token|credentials?|auth|authorization|cookie|bearer)"
)
_SECRET = re.compile(rf"(?:^|[_\-.]){_WORDS}$", re.IGNORECASE)
"""Matches the last word of a name: ``HF_TOKEN`` and ``api_key``, not ``proposed_tokens`` or ``token_limit``."""
_NEVER_A_FIGURE = re.compile(r"(?:key|secret|password|passwd|passphrase)$", re.IGNORECASE)
"""A number may be secret under these, while ``joules_per_token`` is one to show."""
_IN_TEXT = re.compile(
    rf"(?<!\w)((?:[\w+~./-]*[_\-.])?{_WORDS})(\\*['\"]?\s*[=:]\s*)(\\*\"[^\"]*\"|\\*'[^']*'|[^,\[\]{{}}\"'\n]+)",
    re.IGNORECASE,
)
"""A secret name, ``=`` or ``:``, and its value: in overrides, in lists of them, in YAML, in a URL's query."""
_USER = re.compile(
    r"([A-Za-z][\w+.-]*://)(?:[^/\s@'\"]*:[^/\s@'\"]*|(?<=https://)[^/\s@'\"]+|(?<=http://)[^/\s@'\"]+)@"
)
"""User and password before the host of a URL, or the token that stands there alone."""


def mask(value: Any, name: str = "") -> Any:
    """A copy of ``value`` (dicts, lists, scalars) with the values of secret-looking names replaced; None stays None."""
    if isinstance(value, dict):
        return {key: mask(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        words = all(isinstance(item, str) for item in value)
        return mask_command(list(value)) if words else [mask(item) for item in value]
    if looks_secret(name) and value not in (None, "") and (isinstance(value, str) or _NEVER_A_FIGURE.search(name)):
        return value if isinstance(value, bool) else MASK
    return _USER.sub(rf"\1{MASK}@", value) if isinstance(value, str) else value


def mask_command(arguments: list[str]) -> list[str]:
    """A command line, or overrides, with the values of ``--api-key X``, ``--api-key=X`` and ``HF_TOKEN=X`` replaced,
    and of those inside a word (``env={HF_TOKEN: X}``)."""
    result = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if hide_next:
            result.append(MASK)
        elif equals and looks_secret(name):
            result.append(f"{name}={MASK}")
        else:
            result.append(mask_text(argument))
        hide_next = not hide_next and not equals and argument.startswith("--") and looks_secret(argument)
    return result


def mask_text(text: str) -> str:
    """A text in which names and values may stand; rather too much of it is replaced than too little."""
    return _USER.sub(rf"\1{MASK}@", _IN_TEXT.sub(rf"\1\2{MASK}", text))


def looks_secret(name: str) -> bool:
    return _SECRET.search(name.lstrip("-")) is not None
