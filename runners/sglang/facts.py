"""What start-up rules look at, and what they say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from runners.sglang.config import FlagValue, ServerConfig
from runners.sglang.environment import environment
from runners.sglang.family import Family, family
from runners.sglang.flags import settings
from runners.sglang.version import Version, treated_as


class Violation(NamedTuple):
    """A setting that cannot run, or that would not do what it says."""

    key: str
    """Config key."""
    reason: str
    nearest: str
    """The nearest setting that runs."""

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}; nearest that runs: {self.nearest}"


def other_release(config: ServerConfig, reason: str, version: Version) -> Violation:
    """This SGLang cannot do it; ``version`` can."""
    if config.runner["kind"] == "process":
        return Violation("runner=process", reason, f"sglang=={version} installed")
    key = "runner.image" if config.drafter.plugin is None else "drafter.plugin.image"
    return Violation(key, reason, f"an image of SGLang {version}")


@dataclass(frozen=True)
class Facts:
    config: ServerConfig
    version: Version
    """One of the known ones."""
    flags: Mapping[str, FlagValue]
    """By their newest names; what is null or false is not in it."""
    env: Mapping[str, str]
    family: Family | None
    temperature: float
    """Of the requests that will be sent; 0 is greedy."""

    @property
    def algorithm(self) -> str | None:
        return self.config.drafter.algorithm

    @property
    def in_tree(self) -> bool:
        """Whether stock SGLang runs the drafter; a plugin's rules are its vendor's."""
        return self.algorithm is not None and self.config.drafter.plugin is None

    @property
    def is_dflash2(self) -> bool:
        """SGLang calls both generations DFLASH; which one it is, the checkpoint says, and its name here."""
        drafter = self.config.drafter
        return self.algorithm == "DFLASH" and "dflash2" in f"{drafter.name} {drafter.path or ''}".lower()

    @property
    def window(self) -> int:
        return self.config.drafter.verify_window

    def number(self, flag: str, default: int) -> int:
        value = self.flags.get(flag)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def text(self, flag: str, default: str) -> str:
        value = self.flags.get(flag)
        return default if value is None else str(value)


def gather(
    config: ServerConfig, version: Version, temperature: float, target_config: Mapping[str, Any] | None = None
) -> Facts:
    """Facts of a server config. ``target_config``: the target's ``config.json`` where it is at hand. Raises ConfigError
    as ``flags.settings`` does."""
    flags = {name: value for name, value in settings(config).items() if value is not None and value is not False}
    kind = family(config.target.path, target_config)
    return Facts(config, treated_as(version)[0], flags, environment(config), kind, temperature)
