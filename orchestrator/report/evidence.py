"""Cells of the result table that say how far its figures can be trusted."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.evidence import Evidence
from orchestrator.results import Arm, Point
from orchestrator.stats import Estimate

ABSENT = "–"
UNKNOWN = "not known"


def interval(value: Estimate | None, digits: int, factor: float = 1.0) -> str:
    """``23.4 [21.0, 26.1]``: a figure with its interval, without one where there is none."""
    return ABSENT if value is None else bracketed(value.value, value.low, value.high, digits, factor)


def bracketed(value: float, low: float | None, high: float | None, digits: int, factor: float = 1.0) -> str:
    if low is None or high is None:
        return f"{factor * value:.{digits}f}"
    short = 0 if factor * value >= 100 else digits  # the ends of an interval are no better known than that
    return f"{factor * value:.{digits}f} [{factor * low:.{short}f}, {factor * high:.{short}f}]"


def without_interval(cell: str) -> str:
    return cell.partition(" [")[0]


def tau(_: Arm, point: Point) -> str:
    found = point.acceptance
    return ABSENT if found is None else bracketed(found.tau, found.tau_low, found.tau_high, 2)


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


def restarts(arm: Arm, point: Point) -> str:
    """Standard deviation between server starts, the same for all arms; how many of the arm's own there were."""
    found = point.evidence.restarts if point.evidence else None
    return (UNKNOWN if found is None else f"{found.sd:.1%}") + f" ({arm.sessions})"


ROWS: tuple[tuple[str, Callable[[Arm, Point], str]], ...] = (
    ("prompts x repeats", lambda _, point: f"{point.n_prompts} x {point.repeats}"),
    ("spread between starts (starts)", restarts),
    ("speed, second half / first", drift),
    ("detectable speedup (80% power)", detectable),
)


def _of(point: Point, cell: Callable[[Evidence], str]) -> str:
    return cell(point.evidence) if point.evidence else ABSENT
