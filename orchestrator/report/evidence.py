"""Cells of the result table that say how far its figures can be trusted, and the intervals of an arm as a list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from orchestrator.analysis.evidence import Evidence
from orchestrator.analysis.results import Arm, Point
from orchestrator.stats import Estimate

ABSENT = "–"
UNKNOWN = "not known"


def interval(value: Estimate | None, digits: int, factor: float = 1.0) -> str:
    """``23.4 ±8.1%``: a figure and the longer arm of its 95% interval; the ends are in the report (`intervals`)."""
    return ABSENT if value is None else _spread(value.value, value.low, value.high, digits, factor)


def without_interval(cell: str) -> str:
    return cell.partition(" ±")[0]


def tau(_: Arm, point: Point) -> str:
    found = point.acceptance
    return ABSENT if found is None else _spread(found.tau, found.tau_low, found.tau_high, 2)


def output_tok_s(_: Arm, point: Point) -> str:
    return _of(point, lambda evidence: interval(evidence.output_tok_s, 1))


def ttft_ms(_: Arm, point: Point) -> str:
    return _of(point, lambda evidence: interval(evidence.ttft_s, 0, 1000))


def tpot_ms(_: Arm, point: Point) -> str:
    return _of(point, lambda evidence: interval(evidence.tpot_s, 1, 1000))


def detectable(_: Arm, point: Point) -> str:
    """The smallest true speedup that a run like this one would have told from 1 in four of five cases."""
    found = point.speedup.detectable if point.speedup else None
    return ABSENT if found is None else f"{found:.2f}"


def drift(_: Arm, point: Point) -> str:
    return _of(point, lambda evidence: interval(evidence.drift, 2))


def restarts(_: Arm, point: Point) -> str:
    """Standard deviation between server starts, one figure for all arms."""
    return _of(point, lambda evidence: _sd(evidence.restarts.sd) if evidence.restarts else UNKNOWN)


ROWS: tuple[tuple[str, Callable[[Arm, Point], str]], ...] = (
    ("prompts x repeats", lambda _, point: f"{point.n_prompts} x {point.repeats}"),
    ("server starts", lambda arm, _: str(arm.sessions)),
    ("spread between starts", restarts),
    ("speed, 2nd half / 1st half", drift),
    ("detectable speedup", detectable),
)


class Interval(NamedTuple):
    """One line of the report's list."""

    figure: str
    value: str
    low: str
    high: str
    n: int
    over: str
    """What the n counts, and what else the interval covers."""


def intervals(arm: Arm) -> list[Interval]:
    """Every headline figure of an arm with its 95% interval; of its memory, the least and the largest of its starts."""
    found = list(_intervals(arm.point)) if arm.point else []
    if (memory := arm.memory) and memory.least_bytes is not None:
        peak, least = (f"{size / 2**30:.3f}" for size in (memory.peak_bytes, memory.least_bytes))
        found.append(Interval("peak memory, GiB", peak, least, peak, memory.sessions, "server starts (range)"))
    return found


def _intervals(point: Point) -> Iterator[Interval]:
    speedup, accepted, evidence = point.speedup, point.acceptance, point.evidence
    if speedup:
        ends = (speedup.low, speedup.high)
        starts = ", server starts" if speedup.over_starts else ""
        yield _line("speedup", Estimate(value=speedup.ratio, low=ends[0], high=ends[1], n=speedup.n_prompts), 3, starts)
    if evidence:
        starts = ", server starts" if evidence.restarts else ""
        figures = (
            ("output tok/s", evidence.output_tok_s, 2, 1, starts),
            ("TTFT p50, ms", evidence.ttft_s, 1, 1000, ""),
            ("TPOT p50, ms", evidence.tpot_s, 2, 1000, ""),
            ("speed, 2nd half / 1st half", evidence.drift, 3, 1, ""),
        )
        for figure, found, digits, factor, more in figures:
            if found:
                yield _line(figure, found, digits, more, factor)
    if accepted:
        found = Estimate(value=accepted.tau, low=accepted.tau_low, high=accepted.tau_high, n=point.n_prompts)
        yield _line("acceptance length tau", found, 3, "")


def _line(figure: str, found: Estimate, digits: int, more: str, factor: float = 1) -> Interval:
    value, low, high = (
        ABSENT if one is None else f"{factor * one:.{digits}f}" for one in (found.value, found.low, found.high)
    )
    return Interval(figure, value, low, high, found.n, f"prompts{more}")


def _sd(sd: float) -> str:
    """A spread that the noise of the requests explains is not one of 0."""
    return f"{sd:.1%}" if sd else "not resolved"


def _of(point: Point, cell: Callable[[Evidence], str]) -> str:
    return cell(point.evidence) if point.evidence else ABSENT


def _spread(value: float, low: float | None, high: float | None, digits: int, factor: float = 1.0) -> str:
    shown = f"{factor * value:.{digits}f}"
    if low is None or high is None or not value:
        return shown
    share = max(high - value, value - low) / value
    return f"{shown} ±{share:.{1 if share < 0.0995 else 0}%}" if share <= 1 else f"{shown} ±>100%"
