"""The shape of a comparison's result: what the table, the report, the plots and MLflow show, and nothing else.

A Summary is computed from the records by `summary.summarize`, written as ``summary.json`` and can be computed again.
Missing figures are None, never 0: a plain arm has no acceptance, a single prompt has no interval.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from orchestrator.analysis.acceptance import Acceptance, StreamCheck
from orchestrator.analysis.baseline import Ceiling
from orchestrator.analysis.crossover import Crossover
from orchestrator.analysis.evidence import Evidence
from orchestrator.analysis.lossless import Lossless
from orchestrator.analysis.metrics import Metrics
from orchestrator.analysis.served import Capacity
from orchestrator.analysis.solved import Solved, Verdict
from orchestrator.findings.finding import Finding
from orchestrator.frozen import Frozen
from orchestrator.measuring.server_totals import ServerTotals
from orchestrator.stats import PairedRatio
from orchestrator.telemetry.pool import Usage

SUMMARY_SCHEMA = 1


class Point(Frozen):
    """One arm under one load point."""

    load: str
    """How it is shown, for example ``one at a time``."""
    concurrency: int | None
    """Requests in flight; None for an open loop."""
    n_prompts: int
    repeats: int
    metrics: Metrics
    """Latencies, outcomes and lengths of the measured requests (its throughput only means something in one trial)."""
    output_tok_s: float | None
    """sum(output tokens) / sum(end-to-end time) over requests: what one user sees, prefill included."""
    decode_tok_s: float | None
    """Tokens after the first chunk / time after the first chunk, pooled."""
    system_tok_s: float | None
    """Output tokens of all requests per second of wall time of their trials, ramp and drain included."""
    full_load_tok_s: float | None = None
    """The same while the load was full (`load.window`): what the machine yields."""
    tok_s_by_category: dict[str, float]
    tok_s_range: tuple[float, float] | None
    """Slowest and fastest request."""
    step_ms: float | None
    """Time after the first chunk per verification step (plain arm: per token), pooled."""
    acceptance: Acceptance | None
    acceptance_by_category: dict[str, Acceptance]
    speedup: PairedRatio | None
    """End-to-end throughput over the plain arm's, paired by prompt; None for the plain arm itself."""
    decode_speedup: PairedRatio | None
    speedup_by_category: dict[str, PairedRatio]
    server_totals: ServerTotals | None = None
    """The acceptance by the server's own totals, as a cross-check; None where the server was not asked."""
    streams: StreamCheck = StreamCheck()
    """How well the streams agree with the counters."""
    evidence: Evidence | None = None
    """Intervals of the figures above, and how steady the run was."""
    solved: Solved | None = None
    """Answers that were right, of those that are checked; None where the suite checks none."""
    usage: Usage | None = None
    """What its trials took of the machine; None where none was measured with telemetry."""


class Memory(Frozen):
    """Peak memory of the server, over all sessions of the arm."""

    kind: Literal["rss", "vram"]
    peak_bytes: int
    least_bytes: int | None = None
    """Peak of the session that took least."""
    sessions: int = 1
    """Server starts (load points, where only their samples are known) behind the two: the n of the figure."""

    @property
    def gib(self) -> float:
        return self.peak_bytes / 2**30


class Arm(Frozen):
    """One side of the comparison."""

    name: str
    baseline: bool
    """True for the plain arm that speedups and token identity refer to."""
    missing: str | None = None
    """Why the arm was not measured; its points are then empty."""
    drafter: str
    block_size: int | None
    proposed_tokens: int | None
    verify_window: int | None
    dynamic_window: bool
    lossy: bool
    """Drafts are taken that the target would not have chosen: by the config, or as the server reports it."""
    overrides: list[str]
    points: list[Point]
    """By rising concurrency; the first is the headline."""
    lossless: Lossless | None
    """Token identity with the plain arm (the plain arm's own entry is its noise floor); None where not checked."""
    memory: Memory | None
    sessions: int
    """Server starts that served it."""
    command: list[str]
    """What started its server."""
    identity: dict[str, Any]
    """What the server said of itself."""
    capacity: Capacity | None = None
    """Room of its server; None where it reports none."""
    crossover: Crossover | None = None
    """Where speculation stops paying; None for the plain arm and without a sweep over concurrency."""
    ceiling: Ceiling | None = None
    """What bounds the decode speed of a plain arm; None for one that speculates."""

    @property
    def bandwidth_share(self) -> float | None:
        """Decode speed of one sequence over what the memory bandwidth allows at most, at the headline load point."""
        most = self.ceiling.tok_s if self.ceiling else None
        return self.point.decode_tok_s / most if most and self.point and self.point.decode_tok_s else None

    @property
    def title(self) -> str:
        """Its name as it is shown: nobody should read the speed of a lossy arm unawares."""
        return f"{self.name} (lossy)" if self.lossy else self.name

    @property
    def point(self) -> Point | None:
        """The headline: the lowest load point."""
        return self.points[0] if self.points else None


class PromptCell(Frozen):
    """One prompt on one arm at the headline load point."""

    tok_s: float | None
    """Geometric mean over repeats of output tokens / end-to-end time."""
    repeat_spread: float | None
    """Fastest over slowest repeat; None with a single one."""
    speedup: float | None
    tau: float | None
    step_ms: float | None = None
    """Time after the first chunk per verification step, or per token without speculation, ms."""
    output_tokens: int | None
    """Of the first repeat."""
    finish_reason: str | None
    repeated_4grams: float | None
    identical: bool | None
    """Same tokens as the plain arm; None where there is nothing to compare."""
    verdict: Verdict | None = None
    """Whether the first repeat was right; None where it is not checked."""
    text: str
    """Output of the first repeat."""


class PromptRow(Frozen):
    prompt_id: str
    category: str
    cells: dict[str, PromptCell]


class Lead(Frozen):
    """The fastest arm against the second fastest, paired by prompt and repeat as each is with the plain arm.

    Whether the intervals of their speedups overlap does not answer that: what a prompt does to both is in both.
    """

    arm: str
    over: str
    ratio: PairedRatio

    @property
    def shown(self) -> bool:
        """Whether the interval leaves 1 out."""
        return self.ratio.low is not None and self.ratio.low > 1


class PublishedArm(Frozen):
    """What a source published about one arm; anything may be missing."""

    tok_s: dict[str, float] = Field(default_factory=dict)
    """``overall`` and the suite's categories -> output tokens/s."""
    tok_s_range: tuple[float, float] | None = None
    memory_gb: float | None = None
    tau: dict[str, float] = Field(default_factory=dict)
    """Suite -> acceptance length, by the source's own convention."""
    speedup: dict[str, float] = Field(default_factory=dict)
    """Suite -> speedup over the source's plain arm."""


class Published(Frozen):
    """Figures of another machine, for orientation; never part of a ratio or a statistic of this comparison."""

    title: str
    machine: str
    setting: str
    notes: list[str] = Field(default_factory=list)
    arms: dict[str, PublishedArm]


class Summary(Frozen):
    """The result of one comparison."""

    summary_schema: int = SUMMARY_SCHEMA
    comparison: str
    """Key of the comparison: the hash of all that can change its result."""
    experiment: str
    title: str
    description: str
    sweep: str | None = None
    """Tag shared by the comparisons of one multirun."""
    status: Literal["finished", "failed", "interrupted"]
    engine: str
    """``embedded`` or ``sglang``; every shown figure of an embedded run carries the tag."""
    target: str
    machine: str
    setting: dict[str, Any]
    """Few flat facts: dtype, attention, verification, suite, temperature, load, order, repeats, runner, node, seed."""
    started: float
    finished: float
    """Unix time, s, of the first and the last measured request."""
    order: list[str]
    """Arm of each server session in measurement order."""
    arms: list[Arm]
    prompts: list[PromptRow]
    findings: list[Finding]
    """The most severe first."""
    config: dict[str, Any]
    """The resolved config, secrets masked."""
    environment: dict[str, Any]
    """Versions, CPU, threads, git commit."""
    published: list[Published] = Field(default_factory=list)
    lead: Lead | None = None
    """At the lowest load point; None with fewer than two speculative arms."""

    @property
    def baseline(self) -> Arm | None:
        return next((arm for arm in self.arms if arm.baseline), None)

    @property
    def withheld(self) -> list[str]:
        """Findings for which no ratio is stated; empty where the comparison stands."""
        return list(dict.fromkeys(finding.code for finding in self.findings if finding.withholds))

    @property
    def embedded(self) -> bool:
        return self.engine == "embedded"


def write_summary(summary: Summary, path: Path) -> None:
    path.write_text(summary.model_dump_json(indent=1) + "\n")


def read_summary(path: Path) -> Summary:
    return Summary.model_validate_json(path.read_text())
