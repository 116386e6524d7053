"""Overrides as text: what they name, and whether an arm takes them. Pure: Hydra's grammar is not needed for that."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.config.names import ConfigError
from orchestrator.config.server_config import engine_name, uses
from orchestrator.schema import ARM_GROUPS, ARM_KEYS, ArmConfig, Experiment


@dataclass(frozen=True)
class Override:
    """``[+|++|~]key[@package][=value]``."""

    text: str
    prefix: str
    key: str
    """Dotted; ``hydra/launcher`` keeps its slash."""
    value: str | None

    @classmethod
    def of(cls, text: str) -> Override:
        left, equals, value = text.partition("=")
        name = left.lstrip("+~")
        return cls(text, left[: len(left) - len(name)], name.partition("@")[0], value if equals else None)

    @property
    def top(self) -> str:
        return self.key.partition(".")[0]

    @property
    def is_choice(self) -> bool:
        """Chooses a group option (``drafter=dspine``) rather than setting a value in it."""
        return self.key in ARM_GROUPS

    @property
    def of_hydra(self) -> bool:
        return self.key.startswith(("hydra.", "hydra/"))


def last_value(overrides: Iterable[str], key: str) -> str | None:
    """Value of the last override of a key, as typed; None where there is none."""
    found = [o.value for o in map(Override.of, overrides) if o.key == key]
    return found[-1] if found else None


def quoted(value: str) -> str:
    """``value`` as it stands in an override, whatever quotes, commas and brackets are in it."""
    # Hydra halves backslashes before a quote, those before the closing one included, and no others.
    value = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), value)
    return f"'{value}'"


def check_arm(name: str, overrides: Sequence[str]) -> None:
    """Raises ConfigError for an arm's override that concerns the whole comparison."""
    for override in map(Override.of, overrides):
        if override.top not in ARM_KEYS:
            raise ConfigError(
                f"arm {name}: {override.text}",
                "concerns the whole comparison, or nothing that is known",
                allowed=ARM_KEYS,
                hint="give it on the command line or in the experiment file instead",
            )


def check_taken(experiment: Experiment) -> None:
    """Raises ConfigError for a user's override that no arm takes."""
    for override in map(Override.of, experiment.command_line):
        if override.top not in ARM_KEYS or override.of_hydra:
            continue
        if not any(_takes(arm, override) for arm in experiment.configs.values()):
            raise _not_taken(override, experiment)


def _takes(arm: ArmConfig, override: Override) -> bool:
    return _replacing(arm, override) is None and (override.is_choice or uses(arm, override.key))


def _replacing(arm: ArmConfig, override: Override) -> str | None:
    """The arm's own override of the same key, or of the whole of which it is a part; None where it has none."""
    own = [Override.of(text) for text in arm.overrides]
    same = [o for o in own if o.key == override.key or (override.key.startswith(f"{o.key}.") and not o.is_choice)]
    return same[-1].text if same else None


def _not_taken(override: Override, experiment: Experiment) -> ConfigError:
    reasons = []
    for name, arm in experiment.configs.items():
        replacing = _replacing(arm, override)
        reasons.append(
            f"{name} does not use it (drafter={arm.drafter.name}, {engine_name(arm)})"
            if replacing is None
            else f"{name} has its own {replacing}"
        )
    return ConfigError(
        override.text,
        f"no arm takes it, so it would change nothing: {', '.join(reasons)}",
        hint=f"an arm more: '+arms.NAME=[\"{override.text}\"]'; an arm less: '~arms.NAME'"
        if override.is_choice
        else None,
    )
