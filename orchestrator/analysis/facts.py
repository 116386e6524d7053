"""What a summary needs beside the records: what the config says, what the plan asked for, what was seen of the servers.

A rerun adopts trials of earlier runs, so what was seen of a server comes with the trial it served, not with this run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.analysis import published
from orchestrator.analysis.baseline import Ceiling
from orchestrator.analysis.results import Published
from orchestrator.config.server_config import drafter_extras
from orchestrator.load.self_check import ClientUsage
from orchestrator.measuring.server_totals import TrialTotals
from orchestrator.measuring.store import TrialEntry
from orchestrator.planning.plan import Plan, unexpected_differences
from orchestrator.schema import ArmConfig, Check, Experiment, LoadPoint
from orchestrator.telemetry.window import TrialUsage

Status = Literal["finished", "failed", "interrupted"]


@dataclass(frozen=True)
class ArmFacts:
    """What the config says of an arm."""

    name: str
    drafter: str
    """Drafter name; ``none`` for a plain arm."""
    block_size: int | None = None
    proposed_tokens: int | None = None
    verify_window: int | None = None
    dynamic_window: bool = False
    lossy: bool = False
    """Its verification takes drafts that the target would not have chosen."""
    overrides: list[str] = field(default_factory=list)
    missing: str | None = None
    """Why it cannot run, where it was allowed to be missing."""
    server: dict[str, Any] = field(default_factory=dict)
    """The server config: what its server was asked to be."""
    drafter_flags: frozenset[str] = frozenset()
    """Server flags that the drafter's file brings."""


@dataclass(frozen=True)
class SessionFacts:
    """What was seen of one server session."""

    arm: str
    command: list[str]
    identity: dict[str, Any]
    peak_memory_bytes: int | None
    ceiling: Ceiling | None = None
    """Of a plain server."""


@dataclass(frozen=True)
class TrialFacts:
    """Which load a trial key stands for."""

    load: str
    concurrency: int | None
    """Requests in flight; None for an open loop."""
    rate: float | None = None
    """Requests/s of an open loop."""


@dataclass(frozen=True)
class Facts:
    """All that a summary needs beside the records. Secrets in ``config`` and commands are masked by ``summarize``."""

    comparison: str
    experiment: str
    title: str
    description: str
    status: Status
    engine: str
    target: str
    machine: str
    temperature: float
    order: Literal["abba", "once"]
    memory_kind: Literal["rss", "vram"]
    baseline: str | None
    """Name of the plain arm; None where the experiment has none."""
    arms: Sequence[ArmFacts]
    trials: Mapping[str, TrialFacts]
    """By trial key: exactly the trials of this comparison. Records of other trials are refused."""
    sessions: Sequence[SessionFacts]
    """In measurement order."""
    setting: dict[str, Any]
    config: dict[str, Any]
    environment: dict[str, Any]
    published: Sequence[Published] = ()
    unfair: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """Config key outside ``varies`` -> arm -> value, where the arms differ."""
    varies: Sequence[str] = ()
    allow: Sequence[str] = ()
    """Errors that the config allows by name."""
    totals: Mapping[str, TrialTotals] = field(default_factory=dict)
    """Trial key -> what its server counted meanwhile."""
    sweep: str | None = None
    """Tag shared by the comparisons of one multirun."""
    sources: Sequence[str] = ("",)
    """Runs that measured the trials; the empty one is this run."""
    clients: Sequence[tuple[str, ClientUsage]] = ()
    """(arm, what measuring one of its trials took of this side), of the trials that know it."""
    checks: Mapping[str, Check] = field(default_factory=dict)
    """Prompt -> when its answer counts as right, of the prompts that say so."""
    usage: Mapping[str, TrialUsage] = field(default_factory=dict)
    """Trial key -> what it took of the machine, of the trials that were measured with telemetry."""


def gather(
    experiment: Experiment,
    plan: Plan,
    entries: Sequence[TrialEntry],
    status: Status,
    machine: str,
    environment: dict[str, Any],
) -> Facts:
    """Facts of one comparison. ``entries`` are its finished trials (``store.load``); ``machine`` is what served, in
    words (CPU or GPU)."""
    base = experiment.configs[experiment.baseline]
    engine = base.server["engine"]
    sessions = _sessions(entries)
    on_cpu = engine == "embedded" or any(session.identity.get("device") == "cpu" for session in sessions)
    return Facts(
        comparison=plan.key,
        experiment=experiment.name,
        title=experiment.name,
        description=experiment.description,
        status=status,
        engine=engine,
        target=base.target.name,
        machine=machine,
        temperature=base.suite.temperature,
        order=experiment.order,
        memory_kind="rss" if on_cpu else "vram",
        baseline=experiment.baseline,
        arms=[_arm(config, plan.missing.get(name)) for name, config in experiment.configs.items()],
        trials={
            trial.key: TrialFacts(_load(trial.load), trial.load.concurrency, trial.load.rate) for trial in plan.trials
        },
        sessions=sessions,
        setting=_setting(base, experiment),
        config=experiment.model_dump(mode="json"),
        environment=environment,
        published=published.load(experiment.name),
        unfair=unexpected_differences(experiment),
        varies=experiment.varies,
        allow=experiment.allow,
        totals={entry.key: entry.server.totals for entry in entries if entry.server.totals is not None},
        sweep=experiment.sweep,
        sources=sorted({entry.source or "" for entry in entries}),
        clients=[(entry.server.arm, entry.server.client) for entry in entries if entry.server.client is not None],
        checks={prompt.id: prompt.check for prompt in base.suite.prompts if prompt.check},
        usage={entry.key: entry.usage for entry in entries if entry.usage},
    )


def _arm(config: ArmConfig, missing: str | None) -> ArmFacts:
    drafter = config.drafter
    speculates = drafter.speculates
    return ArmFacts(
        name=config.name,
        drafter=drafter.name if speculates else "none",
        block_size=drafter.block_size if speculates else None,
        proposed_tokens=drafter.proposed_tokens if speculates else None,
        verify_window=drafter.verify_window,
        dynamic_window=speculates and config.verification.mode in ("dynamic", "cap_accept", "compact"),
        lossy=speculates and not config.verification.lossless,
        overrides=list(config.overrides),
        missing=missing,
        server=config.server,
        drafter_flags=frozenset(drafter_extras(config)[0]),
    )


def _load(load: LoadPoint) -> str:
    client = ", client on the node" if load.client == "node" else ""
    if load.rate is not None:
        return f"{load.rate:g} requests/s, {load.arrival} arrivals{client}"
    return f"{'one request' if load.concurrency == 1 else f'{load.concurrency} requests'} at a time{client}"


def _sessions(entries: Sequence[TrialEntry]) -> list[SessionFacts]:
    """Server starts in the order of their start; a start that served several trials has its last peak."""
    starts: dict[tuple[float, str], SessionFacts] = {}
    for entry in entries:
        server = entry.server
        before = starts.get((server.started, server.arm))
        peaks = [peak for peak in (server.peak_memory_bytes, before and before.peak_memory_bytes) if peak]
        starts[server.started, server.arm] = SessionFacts(
            arm=server.arm,
            command=server.command,
            identity=server.identity,
            peak_memory_bytes=max(peaks, default=None),
            ceiling=server.ceiling,
        )
    return [starts[key] for key in sorted(starts)]


def _setting(base: ArmConfig, experiment: Experiment) -> dict[str, Any]:
    """What all arms share, few and flat: MLflow's params and the report's fact line."""
    return {
        "target": base.target.name,
        "dtype": base.target.dtype,
        "attention": base.attention.backend,
        "verification": base.verification.mode,
        "suite": base.suite.name,
        "temperature": base.suite.temperature,
        "top_p": base.suite.top_p,
        "top_k": base.suite.top_k,
        "thinking": {None: "as the template says", True: "on", False: "off"}[base.suite.enable_thinking],
        "ignore_eos": base.suite.ignore_eos,
        "warm_up": base.load.warmup_requests > 0,
        "repeats": base.suite.repeats,
        "max_new_tokens": base.suite.token_limit(base.target.name),
        "load": base.load.name,
        "runner": base.runner.kind,
        "node": base.node.kind,
        "order": experiment.order,
        "stop": experiment.stop.told,
        "seed": base.seed,
    }
