"""The nearest valid name, and the one shape in which a wrong configuration is told."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from orchestrator.config.masking import mask_text


class ConfigError(ValueError):
    """The configuration is wrong; nothing was started.

    ``key`` is the dotted config key or the override as typed, ``problem`` says what is wrong with it, ``allowed`` lists
    what would have been right, ``nearest`` is the likeliest of those, ``hint`` says what to type instead.
    """

    def __init__(
        self,
        key: str,
        problem: str,
        *,
        allowed: Iterable[object] = (),
        nearest: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.key = key
        self.problem = problem
        self.allowed = tuple(str(value) for value in allowed)
        self.nearest = nearest
        self.hint = hint
        super().__init__(self.text())

    @classmethod
    def unknown(cls, key: str, allowed: Iterable[str]) -> ConfigError:
        """A dotted key that the configuration does not have; ``allowed`` are the names that may stand in its place."""
        parents, _, name = key.rpartition(".")
        allowed = tuple(allowed)
        near = nearest(name, allowed)
        joined = f"{parents}.{near}" if parents and near else near
        return cls(key, "is not a key of the configuration", allowed=allowed, nearest=joined)

    def within(self, where: str) -> ConfigError:
        """The same error, told of a part: ``arm dspine: drafter=dspin: ...``."""
        key = f"{where}: {self.key}" if self.key else where
        return ConfigError(key, self.problem, allowed=self.allowed, nearest=self.nearest, hint=self.hint)

    def text(self) -> str:
        """One to four lines, the first naming the key; a job's log has them, so without the values of secrets."""
        key, problem = mask_text(self.key), mask_text(self.problem)
        lines = [f"{key}: {problem}" if key else problem]
        if self.allowed:
            lines.append(f"  allowed: {', '.join(self.allowed)}")
        if self.nearest is not None:
            lines.append(f"  nearest: {self.nearest}")
        if self.hint is not None:
            lines.append(f"  hint: {mask_text(self.hint)}")
        return "\n".join(lines)


class ConfigErrors(ConfigError):
    """Several of them, told together."""

    def __init__(self, errors: Iterable[ConfigError]) -> None:
        self.errors = tuple(errors)
        super().__init__("", "\n".join(error.text() for error in self.errors))


def nearest(name: str, allowed: Iterable[object]) -> str | None:
    """The allowed name that ``name`` was most likely meant to be, or None when nothing is near.

    Case and the difference between ``-`` and ``_`` do not count; a name that is the beginning of exactly one allowed
    name is taken for it.
    """
    by_folded = {_fold(str(value)): str(value) for value in allowed}
    folded = _fold(name)
    if not folded:
        return None
    if folded in by_folded:
        return by_folded[folded]
    beginnings = [value for key, value in by_folded.items() if key.startswith(folded)]
    if len(beginnings) == 1:
        return beginnings[0]
    matches = difflib.get_close_matches(folded, by_folded, n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def _fold(name: str) -> str:
    return name.lower().replace("-", "_")
