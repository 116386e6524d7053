"""Arms -> server sessions and trials in the order in which they are measured. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.config.server_config import drafter_extras
from orchestrator.planning.identity import arm_content, comparison_key, content_hash, trial_key
from orchestrator.schema import ArmConfig, Experiment, LoadPoint

ROUND = 2
"""Repeats of one ABBA round: forwards and backwards."""


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

    @property
    def repeats(self) -> int:
        """Passes over the suite that are planned."""
        return 1 + max((trial.repeat for trial in self.trials), default=-1)


def session_order(arms: list[str], repeats: int, order: str, first: int = 0) -> list[tuple[str, list[int]]]:
    """(arm, repeats it serves) per server start, for so many repeats from the ``first``.

    ``abba``: the arms forwards in even repeats and backwards in odd ones, so that a linear drift falls on every arm
    alike; neighbours of the same arm share one start (A B C, C B A -> A B C B A). ``once``: one start per arm.
    """
    if order == "once":
        return [(arm, list(range(first, first + repeats))) for arm in arms]
    starts: list[tuple[str, list[int]]] = []
    for repeat in range(first, first + repeats):
        for arm in arms if repeat % 2 == 0 else reversed(arms):
            if starts and starts[-1][0] == arm:
                starts[-1][1].append(repeat)
            else:
                starts.append((arm, [repeat]))
    return starts


def make_plan(experiment: Experiment, facts: Mapping[str, Any], missing: Mapping[str, str] | None = None) -> Plan:
    """Sessions and trials of the arms that can run.

    ``facts`` is what identity needs besides the config (``identity.gather``); ``missing`` names arms to leave out
    (``preflight.missing_arms``).
    """
    missing = dict(missing or {})
    arms = {name: arm for name, arm in experiment.configs.items() if name not in missing}
    key = comparison_key(arms, experiment.order, facts)
    repeats = max((arm.suite.repeats for arm in arms.values()), default=0)
    contents = {name: arm_content(arm, facts) for name, arm in arms.items()}
    keys = {name: content_hash([content["server"], content["engine"]]) for name, content in contents.items()}
    starts = session_order(list(arms), repeats, experiment.order)
    return _appended(Plan(key, (), missing), arms, keys, starts, turns=experiment.order == "abba")


def extended(plan: Plan) -> Plan:
    """The plan with one more ABBA round: `ROUND` further repeats of every arm, on server starts of their own.

    What is planned already stays, keys included, so that a rerun that asks for the same rounds finds them measured.
    """
    served = {session.arm.name: session for session in reversed(plan.sessions)}
    names = list(dict.fromkeys(session.arm.name for session in plan.sessions))
    first = plan.repeats
    arms: dict[str, ArmConfig] = {}
    for name in names:
        arm = served[name].arm
        arms[name] = arm.model_copy(update={"suite": arm.suite.model_copy(update={"repeats": first + ROUND})})
    keys = {name: served[name].key for name in names}
    return _appended(plan, arms, keys, session_order(names, ROUND, "abba", first), turns=True)


def _appended(
    plan: Plan, arms: Mapping[str, ArmConfig], keys: Mapping[str, str], starts: list[tuple[str, list[int]]], turns: bool
) -> Plan:
    """``turns``: odd repeats go through the load points backwards."""
    sessions = list(plan.sessions)
    position = len(plan.trials)
    for name, served in starts:
        arm, index = arms[name], len(sessions)
        trials: list[Trial] = []
        for repeat in served:
            if repeat >= arm.suite.repeats:
                continue
            for load in _load_points(arm, backwards=turns and repeat % 2 == 1):
                trial = trial_key(plan.key, name, index, repeat, load, position)
                trials.append(Trial(trial, name, index, repeat, load, position))
                position += 1
        sessions.append(ServerSession(index, arm, arm.server, keys[name], tuple(trials)))
    return replace(plan, sessions=tuple(sessions))


def _load_points(arm: ArmConfig, backwards: bool) -> list[LoadPoint]:
    """The sweep over load, turned round in the second half as the arms are."""
    load = arm.load
    values: list[tuple[int | None, float | None]] = [(concurrency, None) for concurrency in load.concurrency or ()]
    values += [(None, rate) for rate in load.rate or ()]
    points = [
        LoadPoint(
            arrival=load.arrival,
            concurrency=concurrency,
            rate=rate,
            endpoint=load.endpoint,
            warmup_requests=warmup_requests(arm, concurrency),
            request_timeout_s=load.request_timeout_s,
            stall_timeout_s=load.stall_timeout_s,
            client=load.client,
        )
        for concurrency, rate in values
    ]
    return points[::-1] if backwards else points


def warmup_requests(arm: ArmConfig, concurrency: int | None) -> int:
    """Requests before a trial: what the load asks for, but each kind of prompt once, and a full batch, since a shape
    met for the first time would be measured cold; 0 turns it off."""
    asked = arm.load.warmup_requests
    return max(asked, concurrency or 0, len({prompt.category for prompt in arm.suite.prompts})) if asked else 0


def within(key: str, names: Iterable[str]) -> bool:
    """Whether a dotted key is one of ``names`` or a part of one."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def differences(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Dotted keys in which the arms' used values differ -> arm -> value (absent where an arm has no such value).

    What a drafter's file brings along (server flags, environment, image) counts as the drafter's.
    """
    flat = {name: dict(_flatten(_compared(arm))) for name, arm in experiment.configs.items()}
    found: dict[str, dict[str, Any]] = {}
    for key in sorted({key for values in flat.values() for key in values}):
        values = {name: arm[key] for name, arm in flat.items() if key in arm}
        # An arm without a drafter verifies nothing: that it has no verification mode follows from the drafter.
        able = [name for name, arm in experiment.configs.items() if arm.drafter.speculates or not _verifies(key)]
        if len(values) < len(able) or any(value != next(iter(values.values())) for value in values.values()):
            found[key] = values
    return found


def unexpected_differences(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """``differences`` outside ``varies``: each is a question of fairness."""
    return {key: values for key, values in differences(experiment).items() if not within(key, experiment.varies)}


def _verifies(key: str) -> bool:
    return key.startswith(("verification.", "attention.draft_backend"))


def _compared(arm: ArmConfig) -> dict[str, Any]:
    sent = {"name": arm.suite.name, **arm.suite.sent}
    sent["prompts"] = content_hash(sent["prompts"])
    server = {key: value for key, value in arm.server.items() if key != "engine"}
    if "server_args" in server:
        args, env = drafter_extras(arm)
        server["server_args"] = {**arm.target.server_args, **arm.server_args}
        server["env"] = {**arm.target.env, **arm.env}
        server["drafter"] = {**server["drafter"], "server_args": args, "env": env}
        server["runner"] = {**server["runner"], "image": getattr(arm.runner, "image", None)}
    return {**server, "suite": sent, "load": arm.load.model_dump(mode="json")}


def _flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value
