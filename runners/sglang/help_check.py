"""A command line against an image's own ``sglang serve --help``, which alone knows what that image takes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.config.names import nearest
from runners.sglang.known import Takes

_OPTION = re.compile(r"^ {2}(-.*)$")
_LONG = re.compile(r"^--([a-z0-9][a-z0-9-]*)(?:[ =](.*))?$")
_NUMBER = re.compile(r"^-\d")


@dataclass(frozen=True)
class HelpFlag:
    """One spelling of a flag as ``--help`` tells it, without leading dashes."""

    name: str
    canonical: str
    takes: Takes
    choices: tuple[str, ...] | None
    """The only values that it takes; None: any."""


def parse_help(text: str) -> dict[str, HelpFlag]:
    """Spelling -> flag, from the text that argparse prints. Raises ValueError where it lists no flag."""
    found: dict[str, HelpFlag] = {}
    for line in text.splitlines():
        if (option := _OPTION.match(line)) is None:
            continue
        invocation = re.split(r" {2,}", option[1])[0]
        spellings = [match for part in _split(invocation) if (match := _LONG.match(part))]
        if not spellings:
            continue
        # Since Python 3.13 argparse writes the value once, after the last spelling.
        value = next((spelling[2] for spelling in reversed(spellings) if spelling[2]), None)
        for spelling in spellings:
            found[spelling[1]] = HelpFlag(spelling[1], spellings[0][1], _takes(value), _choices(value))
    if not found:
        raise ValueError("this is no help text of SGLang: it lists no flag")
    return found


def problems(words: Sequence[str], known: Mapping[str, HelpFlag]) -> list[str]:
    """What an argument parser with these flags refuses in a command line, one sentence each; [] when it takes all.

    ``words`` are the words after the command (``sglang serve``). An abbreviation is refused though argparse takes it:
    it turns ambiguous as soon as another version has a second flag of that beginning.
    """
    told, position = [], 0
    while position < len(words):
        word = words[position]
        values = []
        position += 1
        while position < len(words) and not _is_flag(words[position]):
            values.append(words[position])
            position += 1
        name, equals, inline = word.removeprefix("--").partition("=")
        told += _problem(word, name, [inline, *values] if equals else values, known)
    return told


def _problem(word: str, name: str, values: list[str], known: Mapping[str, HelpFlag]) -> list[str]:
    if not word.startswith("--"):
        return [f"{word} is no flag"]
    if (flag := known.get(name)) is None:
        near = nearest(name, known)
        return [f"--{name} is no flag of this SGLang" + (f"; nearest: --{near}" if near else "")]
    if flag.takes == "switch" and values:
        return [f"--{name} takes no value, got {' '.join(values)}"]
    if flag.takes == "value" and len(values) != 1:
        return [f"--{name} takes one value, got {' '.join(values) or 'none'}"]
    if flag.takes == "list" and not values:
        return [f"--{name} takes one value or more, got none"]
    wrong = [value for value in values if flag.choices is not None and value not in flag.choices]
    return [
        f"--{name} {value} is not allowed here; allowed: {', '.join(flag.choices or ())}"
        + (f"; nearest: {near}" if (near := nearest(value, flag.choices or ())) else "")
        for value in wrong
    ]


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-" and not _NUMBER.match(word)


def _split(invocation: str) -> list[str]:
    """``--tp-size TP_SIZE, --tensor-parallel-size TP_SIZE`` -> its parts. Choices have commas without a space."""
    return invocation.split(", ")


def _takes(value: str | None) -> Takes:
    if value is None:
        return "switch"
    return "list" if "..." in value or value.startswith("[") else "value"


def _choices(value: str | None) -> tuple[str, ...] | None:
    found = re.match(r"^\[?\{(.*?)\}", value) if value else None
    return tuple(found[1].split(",")) if found else None
