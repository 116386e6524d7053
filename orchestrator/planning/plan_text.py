"""The plan as text: arms, servers with their launch commands, trials in order, cost, keys."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.analysis.fairness import configured, refuses, told
from orchestrator.config.server_config import start_options
from orchestrator.planning.plan import ROUND, Plan, ServerSession, extended, unexpected_differences
from orchestrator.schema import ArmConfig, Experiment, Load


def render(experiment: Experiment, plan: Plan, missing: Mapping[str, str], measured: Collection[str] = ()) -> str:
    """Several lines; arms that cannot run (``missing``) are named with what they lack. ``measured``: keys of trials
    that a run would take over. Starts and repeats are counted from 1, as a run does."""
    base = experiment.configs[experiment.baseline]
    lines = [f"experiment {experiment.name}: {experiment.description}", ""]
    lines += _facts(base, experiment)
    lines += [
        "",
        "arms",
        *_table(["arm", "drafter", "block", "proposed", "verify window", "overrides"], _arms(experiment)),
    ]
    for arm, reason in missing.items():
        lines.append(f"  arm {arm} cannot run: {reason}")
    for difference in configured(unexpected_differences(experiment)):
        lines.append(
            f"  {difference.code}: differs and is not in varies: {told(difference.keys)}"
            + (" (a run is refused)" if refuses(difference.code, experiment.allow) else "")
        )
    lines += ["", "servers"]
    first: dict[str, ServerSession] = {}
    for session in plan.sessions:
        first.setdefault(session.key, session)
    for session in first.values():
        starts = [str(other.index + 1) for other in plan.sessions if other.key == session.key]
        lines.append(f"  {session.arm.name}  key {session.key}  start {' and '.join(starts)}")
        lines += [f"    {line}" for line in launch_lines(session.arm)]
    lines += ["", "trials, in the order of measurement"]
    header = ["start", "arm", "repeat", "load", "warm-up", "requests", "key"]
    rows = [
        [
            str(session.index + 1),
            trial.arm,
            str(trial.repeat + 1),
            trial.load.shown,
            str(trial.load.warmup_requests),
            str(len(session.arm.suite.prompts)),
            trial.key,
        ]
        for session in plan.sessions
        for trial in session.trials
    ]
    lines += _table(header, rows)
    lines += ["", cost(plan), *_already(plan, measured, fixed=experiment.stop.rule == "fixed")]
    if experiment.stop.rule == "ci_width":
        most = _longest(plan, experiment.stop.max_repeats)
        lines.append(f"stop: {experiment.stop.told}; with all of them {cost(most)}")
    lines.append(f"comparison key {plan.key}")
    places = dict.fromkeys(arm.node.shown for arm in experiment.configs.values() if arm.node.kind != "local")
    if places:
        whom = " and ".join(places)
        lines.append(f"  preliminary, as all keys here: a run first asks {whom} for its hardware, a plan asks nobody")
    return "\n".join([*lines, ""])


def _already(plan: Plan, measured: Collection[str], fixed: bool) -> list[str]:
    """What is measured of the plan, and what the rest costs; nothing where nothing is measured. Unless the repeats are
    ``fixed``, a run may want more of them than the plan has."""
    sessions = [
        replace(session, trials=tuple(trial for trial in session.trials if trial.key not in measured))
        for session in plan.sessions
    ]
    left = replace(plan, sessions=tuple(session for session in sessions if session.trials))
    done = len(plan.trials) - len(left.trials)
    if not done:
        return []
    whole = ": nothing is left to measure." if fixed else "; a run may want more repeats."
    rest = f". Left: {cost(left)}" if left.trials else whole
    return [f"{done} of {len(plan.trials)} trials are measured already and not measured again{rest}"]


def _longest(plan: Plan, max_repeats: int) -> Plan:
    while plan.trials and plan.repeats + ROUND <= max_repeats:
        plan = extended(plan)
    return plan


def _facts(base: ArmConfig, experiment: Experiment) -> list[str]:
    suite, load = base.suite, base.load
    return [
        f"  target        {base.target.name} ({base.target.dtype}), {base.target.path}",
        f"  runner        {base.runner.kind}, node {base.node.kind}, attention {base.attention.backend}, "
        f"verification {base.verification.mode}",
        f"  suite         {suite.name}: {len(suite.prompts)} prompts x {suite.repeats}, at most "
        f"{suite.token_limit(base.target.name)} tokens, temperature {suite.temperature:g}",
        f"  load          {load.name}: {_points(load)}, endpoint {load.endpoint}{_client(load)}",
        f"  order         {experiment.order}, baseline {experiment.baseline}, varies {', '.join(experiment.varies)}",
    ]


def _client(load: Load) -> str:
    return f", client on the node, in a container of {load.image}" if load.client == "node" else ""


def _points(load: Load) -> str:
    if load.concurrency is not None:
        return f"{', '.join(map(str, load.concurrency))} in flight"
    return f"{', '.join(f'{rate:g}' for rate in load.rate or ())} requests/s, {load.arrival} arrivals"


def _arms(experiment: Experiment) -> list[list[str]]:
    return [
        [
            name,
            arm.drafter.name,
            str(arm.drafter.block_size) if arm.drafter.speculates and arm.drafter.block_size else "-",
            str(arm.drafter.proposed_tokens),
            str(arm.drafter.verify_window),
            " ".join(arm.overrides),
        ]
        for name, arm in experiment.configs.items()
    ]


def launch_lines(arm: ArmConfig) -> list[str]:
    """The command that starts the arm's server, ready for a shell, and what has to be known of it; a sentence where its
    runner has none."""
    from runners.sglang import planned

    if arm.runner.kind == "attach":
        return [f"(already running: {arm.runner.url})"]
    if arm.engine == "embedded":
        try:
            from runners.embedded import command
        except ImportError:
            return ["(the embedded engine is not installed)"]
        host, port = planned.listens(arm.server["runner"], start_options(arm)["port"])
        if arm.runner.kind == "docker":
            return [f"image {arm.runner.image}", shlex.join(command(arm.server, host, port, "python"))]
        return [shlex.join(command(arm.server, host, port))]
    return planned.told(arm.server, arm.runner.port)


def cost(plan: Plan) -> str:
    """Starts, trials, requests and an upper estimate of time, at the plain speed of one request at a time; of GPUs that
    serve, their hours."""
    seconds = gpu_seconds = 0.0
    requests = warmups = 0
    for session in plan.sessions:
        arm, before = session.arm, seconds
        seconds += arm.runner.start_s
        limit = arm.suite.token_limit(arm.target.name)
        for trial in session.trials:
            requests += len(arm.suite.prompts)
            warmups += trial.load.warmup_requests
            sent = len(arm.suite.prompts) + trial.load.warmup_requests
            seconds += sent * limit / arm.target.plain_tok_s
        gpu_seconds += (seconds - before) * arm.gpus
    hours = f" ({gpu_seconds / 3600:.1f} GPU-hours)" if gpu_seconds else ""
    return (
        f"{len(plan.sessions)} server starts, {len(plan.trials)} trials, {requests} requests and {warmups} to warm up; "
        f"at most about {_duration(seconds)}{hours}, if every answer reaches its token limit at plain speed"
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    table = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    ]
