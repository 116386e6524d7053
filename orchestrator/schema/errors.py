"""pydantic's errors, told by dotted config key with what is allowed and the nearest valid name."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from orchestrator.config.masking import MASK, looks_secret
from orchestrator.config.names import ConfigError, nearest
from orchestrator.schema.base import NAME, SIZE, STORES

Loc = tuple[str | int, ...]
_PATTERNS = {
    NAME: "a name: letters, digits, _ . - and a letter or digit first",
    STORES: "sqlite:///FILE, or the address of a server: http(s)://, postgresql://, mysql://",
    SIZE: "a size: digits and b, k, m or g",
}
"""What they ask for, for who does not read regular expressions."""


def explain(error: ValidationError, model: type[BaseModel], data: Mapping[str, Any]) -> list[ConfigError]:
    """One ConfigError per fault, in the order of the keys. ``data`` is what was validated."""
    return [_explain_one(dict(f), model, data) for f in error.errors(include_url=False) if not _follows(dict(f))]


def _follows(fault: dict[str, Any]) -> bool:
    """A list of which every item is wrong is, to pydantic, also too short."""
    return bool(fault["type"] == "too_short" and fault["input"])


def _explain_one(fault: dict[str, Any], model: type[BaseModel], data: Mapping[str, Any]) -> ConfigError:
    path = _config_path(fault["loc"], data)
    key = ".".join(str(part) for part in path)
    kind, value, context = fault["type"], fault["input"], fault.get("ctx", {})
    if kind == "extra_forbidden":
        return ConfigError.unknown(key, known_keys(model, path[:-1], data))
    if kind == "missing":
        return ConfigError(key, "is missing")
    if kind == "literal_error":
        return _wrong_value(key, value, _quoted(context["expected"]))
    if kind == "union_tag_invalid":
        return _wrong_value(f"{key}.kind", context["tag"], _quoted(context["expected_tags"]))
    if kind == "union_tag_not_found":
        return ConfigError(f"{key}.kind", "is missing")
    if kind == "value_error":
        return ConfigError(key, str(context["error"]))
    if kind == "string_pattern_mismatch" and (wanted := _PATTERNS.get(context["pattern"])):
        return ConfigError(key, f"{_shown(value)}: must be {wanted}")
    if kind in ("too_short", "string_too_short"):  # nothing in the configuration needs more than one
        return ConfigError(key, "is empty")
    told = fault["msg"].removeprefix("Input ").replace("should be", "must be", 1).replace("should ", "must ", 1)
    told = told.replace("a valid tuple", "a list, such as [a,b]").replace(
        "a valid dictionary", "keys with values, {a: b}"
    )
    shown = MASK if looks_secret(key) else _shown(value)
    return ConfigError(key, f"{shown}: {told}")


def _wrong_value(key: str, value: Any, allowed: Iterable[str]) -> ConfigError:
    allowed = tuple(allowed)
    near = nearest(str(value), allowed)
    return ConfigError(
        key, f"{_shown(value)} is not allowed", allowed=allowed, nearest=f"{key}={near}" if near else None
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _quoted(text: str) -> list[str]:
    return re.findall(r"'([^']*)'", text)


def _config_path(loc: Loc, data: Any) -> Loc:
    """``loc`` without what pydantic adds to it: the tags of unions are not keys of the config."""
    path: list[str | int] = []
    for index, part in enumerate(loc):
        inside = (isinstance(data, Mapping) and part in data) or (
            isinstance(data, list | tuple) and isinstance(part, int) and part < len(data)
        )
        if inside:
            path.append(part)
            data = data[part]
        elif index == len(loc) - 1:
            path.append(part)
    return tuple(path)


def known_keys(model: type[BaseModel], path: Loc, data: Any) -> list[str]:
    """Keys that may stand at ``path`` of a config validated by ``model``; empty where any may."""
    annotation: Any = model
    for part in path:
        annotation = _inside(_plain(annotation, data), part)
        data = data[part]
    annotation = _plain(annotation, data)
    return list(annotation.model_fields) if _is_model(annotation) else []


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _inside(annotation: Any, part: str | int) -> Any:
    """Annotation of what stands under one key or index."""
    if _is_model(annotation):
        field = annotation.model_fields.get(part)
        return field.annotation if field else None
    arguments = get_args(annotation)
    return (arguments[1] if get_origin(annotation) is dict else arguments[0]) if arguments else None


def _plain(annotation: Any, value: Any) -> Any:
    """Without Annotated and None; of a union, the model whose ``kind`` the value has."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _plain(get_args(annotation)[0], value)
    if origin in (Union, types.UnionType):
        members = [_plain(member, value) for member in get_args(annotation) if member is not type(None)]
        kind = value.get("kind") if isinstance(value, Mapping) else None
        of_kind = [
            member
            for member in members
            if _is_model(member)
            and "kind" in member.model_fields
            and kind in get_args(member.model_fields["kind"].annotation)
        ]
        return (of_kind or members)[0]
    return annotation
