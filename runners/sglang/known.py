"""The names that each version of SGLang knows: command-line flags and environment variables.

`known_flags.txt` and `known_env.txt` hold them with the first and the last version that has them (``-``: the newest
known still has it). They are what a name is checked against before an image is at hand; the image's own ``--help``
(`help_check`) has the last word. docs/reference/sglang.md says how a new version is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, cast

from runners.sglang.version import KNOWN, Version, of

Takes = Literal["switch", "value", "list"]
"""``switch``: the bare flag; ``value``: one word; ``list``: one word or more."""
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Flag:
    """One spelling of a flag, without leading dashes. ``canonical`` is the spelling that ``--help`` puts first."""

    name: str
    canonical: str
    takes: Takes


@dataclass(frozen=True)
class _Span:
    first: Version
    last: Version | None

    def __contains__(self, version: Version) -> bool:
        return self.first <= version and (self.last is None or version <= self.last)


@cache
def flags(version: Version) -> Mapping[str, Flag]:
    """Every spelling that the version's parser takes in full. ``version`` is one of ``KNOWN``."""
    return {flag.name: flag for flag, span in _all_flags() if version in span}


@cache
def variables(version: Version) -> frozenset[str]:
    """Environment variables ``SGLANG_*`` and ``SGL_*`` that the version reads; any other is silently ignored by it."""
    return frozenset(name for name, span in _all_variables() if version in span)


def flag_versions(name: str) -> tuple[Version, ...]:
    """Known versions that take this spelling, oldest first; () for one that none takes."""
    return tuple(version for version in KNOWN if name in flags(version))


@cache
def _all_flags() -> tuple[tuple[Flag, _Span], ...]:
    rows = (line.split() for line in _lines("known_flags.txt"))
    return tuple((Flag(row[0], row[1], cast("Takes", row[2])), _span(row[3], row[4])) for row in rows)


@cache
def _all_variables() -> tuple[tuple[str, _Span], ...]:
    rows = (line.split() for line in _lines("known_env.txt"))
    return tuple((row[0], _span(row[1], row[2])) for row in rows)


def _span(first: str, last: str) -> _Span:
    return _Span(of(first), None if last == "-" else of(last))


def _lines(file: str) -> list[str]:
    text = (_FOLDER / file).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]
