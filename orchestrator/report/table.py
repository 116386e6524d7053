"""The result table: one definition of its rows for the terminal, for Markdown (MLflow's description) and for HTML.

Arms are columns and metrics are rows, so that two arms are compared by reading along a line and the table keeps its
width whatever is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from orchestrator.analysis import served
from orchestrator.analysis.metrics import percentile
from orchestrator.analysis.results import Arm, Point, Summary
from orchestrator.report import evidence, machine
from orchestrator.stats import PairedRatio

Cell = Callable[[Arm, Point], str]
ABSENT = "–"
NOT_RUN = "not run"
WITHHELD = "withheld"
MANY_ARMS = 5
MEMORY_PARTS = {
    "target's weights": "target_weights",
    "drafter's weights": "draft_weights",
    "keys and values": "kv_cache",
    "drafter's keys and values": "draft_kv_cache",
    "recurrent states": "state_cache",
    "replay ring": "replay_ring",
    "CUDA graphs": "graphs",
}
"""What a server's memory is for, by the names of `served.memory_parts`."""
EMBEDDED_TAG = "engine=embedded"
UNDECIDED = ("few_prompts", "unsteady_machine", "busy_machine", "drift")
"""Findings under which no arm is called faster than another: the interval does not hold what they say."""
STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


class Row(NamedTuple):
    section: str
    label: str
    cells: list[str]
    """One per arm, in the order of ``summary.arms``."""
    headline: bool = False
    brief: str = ""
    """Column header where arms are lines; rows without one are left out there."""


def rows(summary: Summary) -> list[Row]:
    """Every row of the table at the headline load point; rows that hold nothing for any arm are left out."""
    result: list[Row] = []

    def add(section: str, label: str, cell: Cell, headline: bool = False, brief: str = "") -> None:
        cells = [cell(arm, arm.point) if arm.point else NOT_RUN if headline else ABSENT for arm in summary.arms]
        if any(text not in (ABSENT, NOT_RUN) for text in cells):
            result.append(Row(section, label, cells, headline, brief))

    base = summary.baseline.name if summary.baseline else "plain"
    add("Speed", f"speedup over {base} [95%]", speedup(summary), True, "speedup")
    add("Speed", "output tok/s", evidence.output_tok_s, True, "tok/s")
    for category in categories(summary):
        add("Speed", f"  {category}", _category_speed(category))
    add("Speed", "tok/s of all, at full load", full_load_tok_s)
    add("Speed", "speedup after prefill", lambda arm, p: ratio(p.decode_speedup))
    add("Speed", "TTFT p50, ms", evidence.ttft_ms)
    add("Speed", "TPOT p50, ms", evidence.tpot_ms)
    add("Speed", "pays up to a concurrency of", lambda arm, _: arm.crossover.brief if arm.crossover else ABSENT)
    add("Acceptance", "acceptance length tau", evidence.tau, True, "tau")
    add("Acceptance", "  of tokens proposed", proposed, brief="proposed")
    add("Acceptance", "  in a verify window of", window)
    add(
        "Acceptance",
        "  per token in the window",
        lambda _, p: number(p.acceptance.window_use if p.acceptance else None, 2),
    )
    add("Acceptance", "  ms per verification step", lambda _, p: number(p.step_ms, 1), brief="ms/step")
    add("Acceptance", "  relative to a plain step", lambda _, p: number(step_cost(summary, p), 2))
    for category in categories(summary):
        add("Acceptance", f"  tau, {category}", _category_tau(category))
    add("Acceptance", "tau, mean of requests", _drafts("tau_mean_of_requests"))
    add("Acceptance", "tau, weighted by tokens", _drafts("tau_token_weighted"))
    add("Acceptance", "tau by the server's totals", server_tau)
    add("Acceptance", "committed per step", _drafts("committed_per_step"))
    add("Acceptance", "server's totals agree", totals_agree)
    add("Acceptance", "acceptance rate", lambda _, p: percent(p.acceptance.rate if p.acceptance else None))
    add("Acceptance", "block size", lambda arm, _: number(arm.block_size))
    add("Output", f"tokens identical to {base}", identical(summary), True, "identical")
    add("Output", "tasks solved", tasks_solved, brief="solved")
    add("Output", "  malformed JSON", malformed)
    add(
        "Output", "  seconds per solved task", lambda _, p: number(p.solved.seconds_per_solved if p.solved else None, 2)
    )
    add(
        "Output", "  joules per solved task", lambda _, p: number(p.solved.energy_per_solved_j if p.solved else None, 1)
    )
    add("Output", "output tokens min/median/max", lambda _, p: spread(p.metrics.output_lengths))
    add("Output", "cut at the token limit", lambda _, p: cut(p))
    add("Output", "requests that failed", lambda _, p: counts(p.metrics.failed))
    add("Output", "prompt tokens from cache", lambda _, p: number(p.metrics.cached_tokens or None))
    add("Output", "repeated 4-grams", lambda _, p: percent(p.metrics.repeated_4grams))
    add("Memory", "peak, GiB", lambda arm, _: memory(arm), brief="peak GiB")
    for label, part in MEMORY_PARTS.items():
        add("Memory", f"  {label}, GiB", memory_part(part))
    add("Memory", "room for tokens", lambda arm, _: number(arm.capacity.tokens if arm.capacity else None))
    add("Memory", "requests at once", lambda arm, _: number(arm.capacity.requests if arm.capacity else None))
    for row in machine.ROWS:
        add(row.section, row.label, row.cell, brief=row.brief)
    for label, cell in evidence.ROWS:
        add("Evidence", label, cell)
    return result


def render(summary: Summary) -> Group:
    """Caption, table, findings and the result in one sentence, for the terminal (rich)."""
    table = _by_metric(summary) if len(summary.arms) <= MANY_ARMS else _by_arm(summary)
    notes = [
        Text.assemble((finding.severity, STYLES[finding.severity]), f": {finding.text}") for finding in summary.findings
    ]
    return Group(Text(caption(summary), style="bold"), table, "", *notes, Text(headline(summary), style="bold"))


def _by_metric(summary: Summary) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("", no_wrap=True)
    for arm in summary.arms:
        table.add_column(Text(arm.title, style="dim" if arm.missing else "bold"), justify="right")
    section = ""
    for row in rows(summary):
        if row.section != section:
            section = row.section
            table.add_row(Text(section, style="dim italic"))
        style = "bold" if row.headline else ""
        table.add_row(Text(row.label, style=style), *(Text(cell, style=style) for cell in row.cells))
    return table


def _by_arm(summary: Summary) -> Table:
    """The main figures with an arm per line, for more arms than fit beside each other; the report has every row."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("", no_wrap=True)
    shown = [row for row in rows(summary) if row.brief]
    for row in shown:
        table.add_column(Text(row.brief, style="bold" if row.headline else ""), justify="right")
    for place, arm in enumerate(summary.arms):
        cells = [row.cells[place] for row in shown]
        # A line holds one interval, that of the speedup.
        cells[1:] = map(evidence.without_interval, cells[1:])
        table.add_row(Text(arm.name, style="dim" if arm.missing else "bold"), *map(Text, cells))
    return table


def markdown(summary: Summary, limit: int = 8000) -> str:
    """Caption, table and findings as Markdown of at most ``limit`` characters (MLflow cuts its description there)."""
    lines = [f"**{caption(summary)}**", ""]
    lines += ["| | " + " | ".join(_md(arm.title) for arm in summary.arms) + " |"]
    lines += ["| --- |" + " ---: |" * len(summary.arms)]
    for row in rows(summary):
        cells = [f"**{_md(cell)}**" if row.headline else _md(cell) for cell in row.cells]
        label = row.label.replace("  ", "&nbsp;&nbsp;") if row.label.startswith("  ") else row.label
        lines.append(f"| {_md(label)} | " + " | ".join(cells) + " |")
    lines.append("")
    lines += [f"- **{finding.severity}**: {_md(finding.text)}" for finding in summary.findings]
    text = "\n".join(lines)
    if len(text) <= limit:
        return text
    note = "\n\n(cut here; report.html has the whole)"
    kept = text[: limit - len(note)]
    return kept[: kept.rindex("\n")] + note


def caption(summary: Summary) -> str:
    tag = f" [{EMBEDDED_TAG}]" if summary.embedded else ""
    point = next((arm.point for arm in summary.arms if arm.point), None)
    load = f", {point.load}" if point else ""
    return f"{summary.title}: {summary.target} on {summary.machine}{load}{tag}"


def headline(summary: Summary) -> str:
    """The result in one sentence."""
    if summary.withheld:
        return f"No verdict: the comparison is refused ({', '.join(summary.withheld)})."
    base = summary.baseline
    if base is None or base.point is None:
        return "No plain arm was measured, so there is no speedup to state."
    found = ranking(summary)
    if not found:
        return f"Only {base.name} has finished trials."
    parts = ", ".join(f"{arm.title} {ratio(speedup, 'x')}" for arm, speedup in found[:3])
    more = f", {len(found) - 3} more below that" if len(found) > 3 else ""
    best = found[0][1]
    starts = "and server starts" if best.over_starts else "only, not over server starts"
    stated = (
        f"Output speed relative to {base.name}: {parts}{more} (95% interval over {best.n_prompts} prompts {starts})."
    )
    return f"{stated} {duel(summary)}".rstrip()


def duel(summary: Summary) -> str:
    """The fastest arm against the second in a sentence; nothing where there are no two."""
    lead = summary.lead
    if lead is None:
        return ""
    names = {arm.name: arm.title for arm in summary.arms}
    ours, theirs, told = names[lead.arm], names[lead.over], ratio(lead.ratio, "x")
    if doubts := [finding.code for finding in summary.findings if finding.code in UNDECIDED]:
        return f"No verdict between {ours} and {theirs}: {told}, but {', '.join(doubts)}."
    return f"{ours} over {theirs}: {told}." if lead.shown else f"{ours} is not shown to beat {theirs}: {told}."


def ranking(summary: Summary) -> list[tuple[Arm, PairedRatio]]:
    """Arms with their headline speedup, the fastest first."""
    found = [(arm, arm.point.speedup) for arm in summary.arms if arm.point and arm.point.speedup]
    return sorted(found, key=lambda pair: -pair[1].ratio)


def categories(summary: Summary) -> list[str]:
    """Prompt categories in order of first appearance; empty where there is only one, which would repeat the total."""
    found = list(dict.fromkeys(row.category for row in summary.prompts))
    return found if len(found) > 1 else []


def number(value: float | None, digits: int = 0) -> str:
    return ABSENT if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return ABSENT if value is None else f"{100 * value:.0f}%"


def ratio(value: PairedRatio | None, unit: str = "") -> str:
    """``2.10 [1.95, 2.27]``; ``unit`` follows the ratio."""
    if value is None:
        return ABSENT
    if value.low is None or value.high is None:
        return f"{value.ratio:.2f}{unit}"
    low, high = (
        ("<0.01" if value.low < 0.01 else f"{value.low:.2f}"),
        (">100" if value.high > 100 else f"{value.high:.2f}"),
    )
    return f"{value.ratio:.2f}{unit} [{low}, {high}]"


def step_cost(summary: Summary, point: Point) -> float | None:
    """Time of a verification step over the time of a plain step; None for the plain arm itself."""
    plain = summary.baseline.point if summary.baseline else None
    if plain is None or plain == point or not plain.step_ms or not point.step_ms:
        return None
    return point.step_ms / plain.step_ms


def proposed(arm: Arm, point: Point) -> str:
    """Tokens proposed per step: the configured number, and the measured mean where it is below it."""
    measured = point.acceptance.proposed_per_step if point.acceptance else None
    if arm.proposed_tokens is None:
        return number(measured, 1)
    if measured is not None and measured < arm.proposed_tokens - 0.05:
        return f"{arm.proposed_tokens} (mean {measured:.1f})"
    return str(arm.proposed_tokens)


def window(arm: Arm, point: Point) -> str:
    """Tokens the target scores per step: the configured number, or the measured mean where windows differ (cut by
    dynamic verification; smaller where a drafter proposes less)."""
    histogram = point.acceptance.window_histogram if point.acceptance else None
    if histogram and sum(histogram):
        mean = sum(size * count for size, count in enumerate(histogram)) / sum(histogram)
        return f"{mean:.1f} ({'dynamic' if arm.dynamic_window else 'mean'})"
    return ("≤ " if arm.dynamic_window and arm.verify_window else "") + number(arm.verify_window)


def lossless(arm: Arm) -> str:
    """``32/32``, near-ties and forks named; the plain arm shows its own repeats (the noise floor)."""
    check = arm.lossless
    if check is None:
        return "not checked"
    if not check.compared:
        return ABSENT
    text = f"{check.identical}/{check.compared}"
    if check.near_ties:
        text += f", {len(check.near_ties)} near-tie"
    return text + f", {len(check.forks)} DIFFERENT" if check.forks else text


def speedup(summary: Summary) -> Cell:
    def cell(arm: Arm, point: Point) -> str:
        if arm.baseline:
            return "1 (baseline)"
        return WITHHELD if summary.withheld else ratio(point.speedup)

    return cell


def identical(summary: Summary) -> Cell:
    """``lossless``; where outputs are drawn, it says that equal tokens are not expected."""
    drawn = float(summary.setting.get("temperature") or 0) > 0
    return lambda arm, _: "drawn" if drawn else lossless(arm)


def server_tau(_: Arm, point: Point) -> str:
    """tau of /server_info, with the number of data-parallel ranks where there are several."""
    found = point.server_totals
    if found is None or found.tau is None:
        return ABSENT
    return number(found.tau, 2) + (f" ({found.ranks} ranks)" if found.ranks > 1 else "")


def full_load_tok_s(_: Arm, point: Point) -> str:
    """Nothing where one request at a time is the whole load."""
    return ABSENT if point.concurrency == 1 else number(point.full_load_tok_s, 1)


def totals_agree(_: Arm, point: Point) -> str:
    """Whether the server counted the steps and tokens that the requests report."""
    found = point.server_totals
    if found is None or (found.tau is None and found.committed_per_step is None):
        return ABSENT
    return "NO" if found.disagreements else "yes"


def spread(lengths: list[int]) -> str:
    """Shortest, median and longest."""
    ordered = sorted(lengths)
    return f"{ordered[0]} / {percentile(ordered, 50):.0f} / {ordered[-1]}" if ordered else ABSENT


def memory(arm: Arm) -> str:
    return f"{arm.memory.gib:.2f} {arm.memory.kind.upper()}" if arm.memory else ABSENT


def memory_part(part: str) -> Cell:
    return lambda arm, _: number(served.memory_parts(arm.identity).get(part), 2)


def cut(point: Point) -> str:
    """Outputs that ended at the token limit of all; other ends than that and the model's own are named."""
    reasons = point.metrics.finish_reasons
    odd = counts({name: count for name, count in reasons.items() if name not in ("stop", "length")})
    return f"{reasons.get('length', 0)}/{point.metrics.requests}" + ("" if odd == ABSENT else f", {odd}")


def tasks_solved(_: Arm, point: Point) -> str:
    return f"{point.solved.solved}/{point.solved.checked}" if point.solved else ABSENT


def per_solved(figure: str, digits: int) -> Cell:
    return lambda _, point: number(getattr(point.solved, figure, None), digits)


def malformed(_: Arm, point: Point) -> str:
    """Of the answers that are to be JSON."""
    found = point.solved
    return f"{found.count('malformed')}/{found.json_checked}" if found and found.json_checked else ABSENT


def counts(value: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(value.items())) or ABSENT


def _drafts(figure: str) -> Cell:
    return lambda _, point: number(getattr(point.acceptance, figure) if point.acceptance else None, 2)


def _category_speed(category: str) -> Cell:
    return lambda _, point: number(point.tok_s_by_category.get(category), 1)


def _category_tau(category: str) -> Cell:
    def cell(_: Arm, point: Point) -> str:
        found = point.acceptance_by_category.get(category)
        return number(found.tau if found else None, 2)

    return cell


def _md(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
