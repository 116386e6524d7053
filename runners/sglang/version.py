"""Versions of SGLang: which are known, and which one a text speaks of."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBER = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.post\d+)?")


@dataclass(frozen=True, order=True)
class Version:
    """Three numbers; post-releases and build suffixes change no flag and are dropped."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


def parse(text: str) -> Version | None:
    """``0.5.23``, ``v0.5.23-cu130``, ``0.5.15.post1`` -> its version; None where the text begins with none."""
    found = _NUMBER.match(text.removeprefix("v"))
    return Version(*map(int, found.groups())) if found else None


def of(text: str) -> Version:
    """As ``parse``, for text that is known to be a version. Raises ValueError."""
    version = parse(text)
    if version is None:
        raise ValueError(f"{text!r} is no version of SGLang; one looks like 0.5.23")
    return version


KNOWN = tuple(of(f"0.5.{patch}") for patch in range(16, 24))
"""Versions whose parser and start-up rules were read."""
OLDEST, NEWEST = KNOWN[0], KNOWN[-1]


def of_image(image: str | None) -> Version | None:
    """The version that the tag of an image names (``lmsysorg/sglang:v0.5.23-runtime``); None for ``latest``, a digest
    or a tag of one's own."""
    if image is None:
        return None
    name, _, tag = image.partition("@")[0].rpartition(":")
    return parse(tag) if name and "/" not in tag else None


def treated_as(version: Version) -> tuple[Version, str | None]:
    """The known version whose facts are used, and a note where that is another than the one asked about."""
    if version in KNOWN:
        return version, None
    if version > NEWEST:
        return NEWEST, f"SGLang {version} is newer than what is known here; it is treated as {NEWEST}"
    return OLDEST, f"SGLang {version} is older than {OLDEST}, the oldest that is known here"
