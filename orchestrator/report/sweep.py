"""The comparisons of a sweep in one table: at the end of the command, as ``sweep.md`` in its folder, and in MLflow."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.analysis.results import Arm, Summary
from orchestrator.report import table

INSIDE = "Every ratio is formed inside one comparison, over its own plain arm; none is formed across comparisons."
_HEADER = ("arm", "speedup [95%]", "tau", "proposed", "ms per step", "output tok/s", "same tokens", "findings")


def points(summaries: Sequence[Summary]) -> list[str]:
    """What sets each comparison apart: the overrides that not all of them have; the experiment's name without any."""
    words = [[str(word) for word in summary.config.get("command_line", [])] for summary in summaries]
    common = set.intersection(*map(set, words))
    own = [" ".join(word for word in comparison if word not in common) for comparison in words]
    return [text or summary.experiment for text, summary in zip(own, summaries, strict=True)]


def text(summaries: Sequence[Summary]) -> str:
    """Lines for a terminal: the point of each comparison, and below it a line per arm."""
    blocks = [[_cells(summary, arm) for arm in summary.arms] for summary in summaries]
    rows = [_HEADER, *(cells for block in blocks for cells in block)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]

    def line(cells: Sequence[str]) -> str:
        return "  " + "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

    lines = [_title(summaries), line(_HEADER)]
    for point, block in zip(points(summaries), blocks, strict=True):
        lines += [point, *map(line, block)]
    return "\n".join([*lines, INSIDE])


def markdown(summaries: Sequence[Summary]) -> str:
    """The same as one Markdown table, with the point in its first column."""
    lines = [
        f"**{_title(summaries)}**",
        "",
        f"| comparison | {' | '.join(_HEADER)} |",
        "| --- | --- |" + " ---: |" * (len(_HEADER) - 2) + " --- |",
    ]
    for point, summary in zip(points(summaries), summaries, strict=True):
        for arm in summary.arms:
            cells = [cell.replace("|", "\\|") for cell in (point, *_cells(summary, arm))]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", INSIDE])


def _title(summaries: Sequence[Summary]) -> str:
    tag = f" [{table.EMBEDDED_TAG}]" if any(summary.embedded for summary in summaries) else ""
    count = f"{len(summaries)} {'comparison' if len(summaries) == 1 else 'comparisons'}"
    return f"{summaries[0].experiment}: {count}{tag}"


def _cells(summary: Summary, arm: Arm) -> tuple[str, ...]:
    found = ", ".join(_findings(summary, arm))
    point = arm.point
    if point is None:
        return (arm.title, table.NOT_RUN, *[table.ABSENT] * (len(_HEADER) - 3), found)
    return (
        arm.title,
        table.speedup(summary)(arm, point),
        table.number(point.acceptance.tau if point.acceptance else None, 2),
        table.proposed(arm, point) if point.acceptance else table.ABSENT,
        table.number(point.step_ms, 1),
        table.number(point.output_tok_s, 1),
        table.identical(summary)(arm, point),
        found,
    )


def _findings(summary: Summary, arm: Arm) -> list[str]:
    """Names of the arm's errors and warnings; those of the whole comparison stand with its first arm."""
    owners = (arm.name, None) if arm is summary.arms[0] else (arm.name,)
    told = (finding for finding in summary.findings if finding.severity != "note" and finding.arm in owners)
    return list(dict.fromkeys(finding.code for finding in told))
