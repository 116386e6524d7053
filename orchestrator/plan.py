"""Arms -> server sessions and trials in the order in which they are measured. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.schema import ArmConfig, Experiment, LoadPoint


@dataclass(frozen=True)
class Trial:
    """One arm under one load point and one repeat, on one server."""

    key: str
    """Content hash of all that can change its result; a measured key is not measured again."""
    arm: str
    session_index: int
    repeat: int
    """Which pass over the suite, from 0; pairs trials across arms."""
    load: LoadPoint
    position: int
    """Place in the order of measurement, from 0."""


@dataclass(frozen=True)
class ServerSession:
    """One start of one arm's server; serves its trials in order, then stops."""

    index: int
    """Order of starts, from 0."""
    arm: ArmConfig
    server: dict[str, Any]
    """The server config (docs/reference/server_config.md)."""
    key: str
    """Content hash of ``server`` with weights and engine."""
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class Plan:
    """Everything one comparison will do."""

    key: str
    """Content hash of the comparison: equal for a rerun, different when anything in any arm changed."""
    sessions: tuple[ServerSession, ...]
    missing: dict[str, str]
    """Arm -> why it cannot run; such an arm has no session."""

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials in measurement order."""
        return tuple(trial for session in self.sessions for trial in session.trials)


def session_order(arms: list[str], repeats: int, order: str) -> list[tuple[str, list[int]]]:
    """(arm, repeats it serves) per server start.

    ``abba``: the arms forwards in even repeats and backwards in odd ones, so that a linear drift falls on every arm
    alike; neighbours of the same arm share one start (A B C, C B A -> A B C B A). ``once``: one start per arm.
    """
    if order == "once":
        return [(arm, list(range(repeats))) for arm in arms]
    starts: list[tuple[str, list[int]]] = []
    for repeat in range(repeats):
        for arm in arms if repeat % 2 == 0 else reversed(arms):
            if starts and starts[-1][0] == arm:
                starts[-1][1].append(repeat)
            else:
                starts.append((arm, [repeat]))
    return starts


def make_plan(experiment: Experiment, facts: dict[str, Any], missing: dict[str, str] | None = None) -> Plan:
    """Sessions and trials of the arms that can run.

    ``facts`` is what identity needs besides the config (``identity.gather``); ``missing`` names arms to leave out
    (``preflight.missing_arms``).
    """
    raise NotImplementedError
