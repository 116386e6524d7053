"""What a server counted over a trial, against the sum over the trial's own requests.

Two sources of totals, both SGLang's. ``/metrics`` has counters that only rise; their difference over a trial is exact.
``/server_info`` has a mean acceptance length per data-parallel rank since the last flush, which is just before the
trial; it is brought up to date only every ``decode_log_interval`` passes, so it may miss the end of a trial and hold a
rest of the warm-up. Every rank is read: the first alone says nothing of the others.

Neither is a headline: whoever else used the server is in them. Where they disagree with the requests' counters, either
someone did, or requests were lost or counted twice.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import Field

from orchestrator.frozen import Frozen
from orchestrator.load.get import get
from orchestrator.measuring.records import RequestRecord

COUNT_TOLERANCE = 0.005
"""Share by which two counts of the same steps or tokens may differ."""
_COUNTERS = {
    "verify_steps": "spec_verify_calls_total",
    "output_tokens": "generation_tokens_total",
    "prompt_tokens": "prompt_tokens_total",
    "cached_tokens": "cached_tokens_total",
    "requests": "num_requests_total",
}
_SAMPLE = re.compile(r"^sglang[:_](\w+)(?:\{.*\})?\s+(\S+)", re.MULTILINE)
_NUMBER = re.compile(r"\d+(\.\d*)?(e[+-]?\d+)?", re.IGNORECASE)
_TIMEOUT_S = 5.0
_SETTLE_S = 2.0
"""Longest wait for the counters of the last request: a server counts it a moment after its last chunk."""


class Reading(Frozen):
    """Totals of a server at one moment; None where it does not report one."""

    verify_steps: float | None = None
    output_tokens: float | None = None
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    requests: float | None = None
    rank_tau: list[float | None] = Field(default_factory=list)
    """Acceptance length since the last flush by data-parallel rank, bonus included; None: the rank reports none."""
    log_interval: int = 0
    """Decode passes between two updates of ``rank_tau``; 0: it is always up to date."""


class TrialTotals(Frozen):
    """Readings just before the first and just after the last measured request of a trial."""

    before: Reading
    after: Reading


class ServerTotals(Frozen):
    """The cross-check of one arm at one load point."""

    trials: int
    """Trials with readings on both sides."""
    tau: float | None
    """Acceptance length of ``/server_info``, mean over ranks and trials, weighted by the trials' verification steps."""
    ranks: int
    """Data-parallel ranks that reported one."""
    committed_per_step: float | None
    """(output tokens - requests) / verification steps, from the differences of ``/metrics``."""
    committed_counted: float | None
    """The same from the counters of the well-ended requests."""
    disagreements: list[str]


async def read(url: str) -> Reading:
    """One reading; nothing that goes wrong is raised, what cannot be read is None."""
    return await asyncio.to_thread(_read, url)


async def read_after(url: str, before: Reading, ended: int) -> Reading:
    """A reading after ``ended`` requests ended well, once the server has counted them (or two seconds later)."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _SETTLE_S
    while True:
        reading = await read(url)
        counted = _difference(before, reading, "requests")
        if counted is None or counted >= ended or loop.time() > deadline:
            return reading
        await asyncio.sleep(0.1)


def check(trials: Iterable[tuple[Sequence[RequestRecord], TrialTotals]]) -> ServerTotals | None:
    """Totals of the trials of one arm at one load point, each with all its measured requests; None without a reading.

    A request that did not end well may have used the server up to any point, so with such requests the server may have
    counted more than the others, never less.
    """
    pairs = [(list(records), totals) for records, totals in trials]
    if not pairs:
        return None
    disagreements: list[str] = []
    weighted: list[tuple[float, int]] = []
    ranks = 0
    steps = tokens = counted_steps = counted_tokens = 0.0
    for records, totals in pairs:
        well = [record for record in records if record.outcome == "ok"]
        own_steps = sum(record.spec.spec_verify_ct for record in well if record.spec)
        own_tokens = sum(record.completion_tokens or 0 for record in well)
        lost = len(records) - len(well)
        # Requests without any counters are no count of zero steps: whether they should have some is judged elsewhere.
        told_steps = own_steps if any(record.spec for record in well) else None
        disagreements += _count_problems(totals, told_steps, own_tokens, lost)
        taus = [tau for tau in totals.after.rank_tau if tau is not None]
        if taus and own_steps:
            ranks = max(ranks, len(taus))
            weighted.append((math.fsum(taus) / len(taus), own_steps))
            if not lost:
                disagreements += _tau_problems(taus, totals.after.log_interval, well, own_steps)
        seen = [
            _difference(totals.before, totals.after, name) for name in ("verify_steps", "output_tokens", "requests")
        ]
        if own_steps and None not in seen:
            steps += seen[0] or 0.0
            tokens += (seen[1] or 0.0) - (seen[2] or 0.0)
            counted_steps += own_steps
            counted_tokens += own_tokens - len(well)
    weight = sum(own for _, own in weighted)
    return ServerTotals(
        trials=len(pairs),
        tau=math.fsum(tau * own for tau, own in weighted) / weight if weight else None,
        ranks=ranks,
        committed_per_step=tokens / steps if steps else None,
        committed_counted=counted_tokens / counted_steps if counted_steps else None,
        disagreements=disagreements,
    )


def _count_problems(totals: TrialTotals, steps: int | None, tokens: int, lost: int) -> list[str]:
    problems = []
    for name, label, own in (
        ("verify_steps", "verification steps", steps),
        ("output_tokens", "output tokens", tokens),
    ):
        server = _difference(totals.before, totals.after, name)
        if server is None or own is None:
            continue
        if server < own * (1 - COUNT_TOLERANCE) or (not lost and server > own * (1 + COUNT_TOLERANCE)):
            problems.append(f"the server counted {server:.0f} {label} over a trial whose requests report {own}")
    return problems


def _tau_problems(taus: list[float], interval: int, records: list[RequestRecord], steps: int) -> list[str]:
    """The pooled tau of the requests lies between those of the ranks, give or take what the last update missed: the
    passes of one interval at either end, each with a step of every request in flight."""
    counters = [record.spec for record in records if record.spec]
    tau = 1 + sum(spec.spec_num_correct_drafts for spec in counters) / steps
    window = 1 + sum(spec.spec_num_proposed_drafts for spec in counters) / steps
    at_once = math.ceil(math.fsum(record.e2e_s or 0.0 for record in records) / (_span(records) or 1.0))
    slack = 1e-6 * tau + window * 2 * interval * at_once / steps
    if min(taus) - slack <= tau <= max(taus) + slack:
        return []
    told = f"{taus[0]:.3f}" if len(taus) == 1 else f"{min(taus):.3f} to {max(taus):.3f} over {len(taus)} ranks"
    return [f"/server_info says tau {told}, the requests of the trial {tau:.3f}"]


def _span(records: list[RequestRecord]) -> float:
    ends = [record.sent_at + (record.e2e_s or 0.0) for record in records]
    return max(ends) - min(record.sent_at for record in records)


def _difference(before: Reading, after: Reading, name: str) -> float | None:
    first, last = getattr(before, name), getattr(after, name)
    return None if first is None or last is None else float(last - first)


def _read(url: str) -> Reading:
    text, info = _get(url + "/metrics"), _get(url + "/server_info")
    try:
        told = json.loads(info) if info else {}
        interval, taus = int(told.get("decode_log_interval") or 0), _rank_taus(told.get("internal_states"))
    except (ValueError, TypeError, AttributeError, RecursionError):
        interval, taus = 0, []
    return Reading(**counters(text), rank_tau=taus, log_interval=interval)


def counters(text: str) -> dict[str, float]:
    """The counters of ``Reading`` in Prometheus text, summed over their labels; those that it lacks are left out."""
    names = {name: key for key, name in _COUNTERS.items()}
    found: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        if name in names and _NUMBER.fullmatch(value):
            found[names[name]] = found.get(names[name], 0.0) + float(value)
    return found


def _rank_taus(states: Any) -> list[float | None]:
    if not isinstance(states, list):
        return []
    taus = [state.get("avg_spec_accept_length") if isinstance(state, dict) else None for state in states]
    return [float(tau) if tau else None for tau in taus]


def _get(url: str) -> str:
    try:
        return get(url, _TIMEOUT_S).decode(errors="replace")
    except OSError:
        return ""
