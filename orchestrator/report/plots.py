"""The report's plots. Matplotlib is imported on first use and draws without a display.

Published figures of another machine stand in a panel of their own, hatched, with an axis of their own: they are never
drawn beside a measured bar.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.analysis.results import Arm, Point, Published, Summary
from orchestrator.report.table import EMBEDDED_TAG, categories

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BASELINE_COLOUR = "#8b929c"
COLOURS = ("#2f6fde", "#e0782f", "#2a9d6f", "#8257c6", "#c8437a", "#0e9aa7", "#a67c00", "#5b6b8c")
INK, MUTED, GRID = "#1f2630", "#5d6673", "#e4e7eb"
SHADES = (1.0, 0.62, 0.34, 0.2)
"""Opacity of an arm's colour for overall and its categories."""
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.edgecolor": "#c3c8cf",
    "axes.labelcolor": MUTED,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "text.color": INK,
    "hatch.linewidth": 0.8,
    "svg.fonttype": "path",  # looks the same without the font
    "svg.hashsalt": "report",
}


class Plot(NamedTuple):
    stem: str
    """File name without its ending."""
    title: str
    caption: str
    """How to read it; also the alternative text."""
    svg: bytes
    png: bytes


def draw(summary: Summary) -> list[Plot]:
    """Every plot that the summary has data for, in the order of the report."""
    from matplotlib import rc_context

    base = summary.baseline.name if summary.baseline else "plain"
    wanted: list[tuple[str, str, str, Callable[[Summary], Figure | None]]] = [
        ("speedup", f"Speedup over {base}",
         "Each faint dot is one prompt, the large dot their geometric mean, the bar its 95% interval. The diamond is "
         "tau: the speedup if a verification step cost no more than a plain step.", speedup),
        ("throughput", "Output tokens per second",
         "End to end, prefill included; the line runs from the slowest to the fastest request." + _sources(summary),
         throughput),
        ("acceptance_by_position", "Acceptance by draft position",
         "Share of verification steps whose drafts were all correct up to this position. The points of a curve sum to "
         "tau - 1.", acceptance),
        ("latency", "Latency", "Median, with a line up to the 90th percentile.", latency),
        ("by_concurrency", "By concurrency",
         "Where the speedup falls below 1, speculation no longer pays.", by_concurrency),
    ]  # fmt: skip
    plots = []
    with rc_context(STYLE):
        for stem, title, caption, function in wanted:
            figure = function(summary)
            if figure is not None:
                # the page has its own headings; a PNG stands alone and brings its title
                tag = f"[{EMBEDDED_TAG}]" if summary.embedded else ""
                figure.suptitle(tag, x=0.005, ha="left", fontsize=8, color=MUTED)
                svg = _bytes(figure, "svg")
                figure.suptitle(f"{title}   {tag}", x=0.005, ha="left", fontsize=11, fontweight="bold", color=INK)
                plots.append(Plot(stem, title, caption, svg, _bytes(figure, "png")))
    return plots


def _sources(summary: Summary) -> str:
    """Whose figures the hatched panels show; nothing without any."""
    titles = [source.title for source in _with_speeds(summary)]
    if not titles:
        return ""
    names = "; ".join(titles)
    return f" Hatched panels are published figures of another machine ({names}), for orientation only: mind the axes."


def _with_speeds(summary: Summary) -> list[Published]:
    return [source for source in summary.published if any(arm.tok_s for arm in source.arms.values())]


def three_digits(value: float) -> str:
    """Three significant digits, and every digit before the point."""
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}" if value > 0 else "0"


def _bytes(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    # no date and a fixed salt: equal data, equal file
    figure.savefig(buffer, format=kind, dpi=144, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def speedup(summary: Summary) -> Figure | None:
    """Per arm: one dot per prompt, the mean with its interval, and tau as the ceiling speedup could reach."""
    shown = [(arm, point) for arm, point in _measured(summary) if point.speedup is not None]
    if not shown:
        return None
    figure, (axes,) = _figure(8.2, 1.6 + 0.72 * len(shown))
    for row, (arm, point) in enumerate(shown):
        assert point.speedup is not None
        colour, mean = _colours(summary)[arm.name], point.speedup
        dots = [cell.speedup for prompt in summary.prompts if (cell := prompt.cells.get(arm.name)) and cell.speedup]
        # spread so that dots do not hide each other, the same way every time
        places = [row + 0.26 + 0.11 * ((index * 7) % 5 - 2) / 2 for index in range(len(dots))]
        axes.scatter(
            dots, places, s=16, color=colour, alpha=0.35, linewidths=0, label="one prompt" if row == 0 else None
        )
        if mean.low is not None and mean.high is not None:
            axes.plot([mean.low, mean.high], [row, row], color=colour, linewidth=6, alpha=0.45, solid_capstyle="butt")
        axes.scatter([mean.ratio], [row], s=64, color=colour, edgecolors="white", linewidths=1.2, zorder=4)
        axes.annotate(f"{mean.ratio:.2f}x", (mean.ratio, row), (0, 9), textcoords="offset points", ha="center",
                      color=colour, fontweight="bold")  # fmt: skip
        if point.acceptance:
            axes.scatter([point.acceptance.tau], [row], marker="D", s=42, facecolors="white", edgecolors=INK, zorder=3,
                         label="tau (tokens per step)" if row == 0 else None)  # fmt: skip
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_yticks(range(len(shown)), [arm.title for arm, _ in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(left=0)
    base = summary.baseline.name if summary.baseline else "plain"
    axes.set_xlabel(f"output speed relative to {base} (bar: 95% interval)")
    axes.grid(axis="x", color=GRID)
    figure.legend(loc="outside upper right", ncols=2)
    return figure


def throughput(summary: Summary) -> Figure | None:
    """Bars of output tok/s, overall and by category, and a hatched panel per published source."""
    shown = _measured(summary)
    if not shown:
        return None
    sources = _with_speeds(summary)
    own = max(4.6, 1.0 * len(shown))
    figure, panels = _figure(own + 4.4 * len(sources), 4.3, widths=[own] + [4.4] * len(sources))
    groups = ["overall", *categories(summary)]
    measured = {arm.name: {"overall": point.output_tok_s, **point.tok_s_by_category} for arm, point in shown}
    ranges = {arm.name: point.tok_s_range for arm, point in shown if point.tok_s_range}
    _bars(panels[0], measured, ranges, groups, _colours(summary))
    panels[0].set_title(f"measured here\n{textwrap.fill(summary.machine, 62)}", loc="left", fontsize=8.5)
    panels[0].set_ylabel("output tok/s (line: slowest to fastest request)")
    for axes, source in zip(panels[1:], sources, strict=True):
        tok_s = {name: arm.tok_s for name, arm in source.arms.items() if arm.tok_s}
        spans = {name: arm.tok_s_range for name, arm in source.arms.items() if arm.tok_s_range}
        _bars(axes, tok_s, spans, groups, _colours(summary), hatch="////", label="{:g}".format)  # as published
        label = "\n".join(
            textwrap.fill(line, 62)
            for line in (f"ANOTHER MACHINE, published: {source.title}", source.machine, source.setting)
        )
        axes.set_title(label, loc="left", color=MUTED, fontsize=8.5)
        axes.set_facecolor("#f6f7f9")
    return figure


def acceptance(summary: Summary) -> Figure | None:
    """Joint acceptance by draft position; the points of each curve sum to tau - 1."""
    shown = [(arm, point, point.acceptance) for arm, point in _measured(summary) if point.acceptance]
    if not shown:
        return None
    figure, (axes,) = _figure(8.2, 4.2)
    longest = max(len(found.positions) for _, _, found in shown)
    for arm, point, found in shown:
        places = [position.position for position in found.positions]
        shares = [float("nan") if position.joint is None else 100 * position.joint for position in found.positions]
        colour = _colours(summary)[arm.name]
        step = f", {point.step_ms:.0f} ms per step" if point.step_ms else ""
        label = f"{arm.title}: tau {found.tau:.2f}, {found.proposed_per_step:.1f} proposed{step}"
        axes.plot(places, shares, marker="o", markersize=5, color=colour, linewidth=2, label=label)
    axes.set_xticks(range(1, longest + 1))
    axes.set_xlim(0.6, longest + 0.4)
    axes.set_ylim(0, 100)
    axes.set_xlabel("draft position")
    axes.set_ylabel("% of steps correct up to here")
    axes.grid(color=GRID)
    axes.legend(loc="upper right")
    return figure


def latency(summary: Summary) -> Figure | None:
    """Medians with p90 as a thin line: TTFT and TPOT, one panel each."""
    shown = _measured(summary)
    if not shown:
        return None
    figure, panels = _figure(8.8, 1.3 + 0.42 * len(shown), widths=(1, 1))
    titles = {"ttft_s": "time to first token, ms", "tpot_s": "time per output token after it, ms"}
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        for row, (arm, point) in enumerate(shown):
            values = getattr(point.metrics, name)
            if values.p50 is None:
                continue
            axes.barh(row, 1000 * values.p50, height=0.6, color=_colours(summary)[arm.name])
            # below the number, which is the bar's and not that of the line's end
            axes.plot([1000 * values.p50, 1000 * values.p90], [row + 0.24, row + 0.24], color=INK, linewidth=1.2)
            axes.annotate(three_digits(1000 * values.p50), (1000 * values.p50, row), (4, 1),
                          textcoords="offset points", va="center", color=INK)  # fmt: skip
        axes.set_yticks(range(len(shown)), [arm.title for arm, _ in shown])
        axes.invert_yaxis()
        axes.set_title(title, loc="left")
        axes.margins(x=0.14)
        axes.grid(axis="x", color=GRID)
    return figure


def by_concurrency(summary: Summary) -> Figure | None:
    """System throughput and speedup over requests in flight; only where more than one load was measured."""
    loads = sorted({point.concurrency for arm in summary.arms for point in arm.points if point.concurrency})
    if len(loads) < 2:
        return None
    figure, (left, right) = _figure(8.8, 3.8, widths=(1, 1))
    for arm in summary.arms:
        colour = _colours(summary)[arm.name]
        system = [(p.concurrency, p.full_load_tok_s) for p in arm.points if p.concurrency and p.full_load_tok_s]
        paired = [(p.concurrency, p.speedup.ratio) for p in arm.points if p.concurrency and p.speedup]
        for axes, curve in ((left, system), (right, paired)):
            axes.plot(
                [x for x, _ in curve], [y for _, y in curve], marker="o", color=colour, linewidth=2, label=arm.title
            )
    right.axhline(1, color=INK, linewidth=1)
    left.set_title("output tok/s of all requests, at full load", loc="left")
    right.set_title("speedup per request, paired", loc="left")
    for axes in (left, right):
        axes.set_xlabel("requests in flight")
        axes.set_xticks(loads)
        axes.set_ylim(bottom=0)
        axes.grid(color=GRID)
    left.legend()
    return figure


def _bars(
    axes: Axes,
    values: Mapping[str, Mapping[str, float | None]],
    ranges: dict[str, tuple[float, float]],
    groups: list[str],
    colours: dict[str, str],
    hatch: str | None = None,
    label: Callable[[float], str] = three_digits,
) -> None:
    """One cluster per arm, one bar per group; a group without a figure leaves its place empty."""
    width = 0.8 / len(groups)
    many = len(values) > 4
    for cluster, (name, figures) in enumerate(values.items()):
        colour = colours.get(name, MUTED)
        for index, group in enumerate(groups):
            height = figures.get(group)
            place = cluster - 0.4 + width * (index + 0.5)
            if height is None:
                continue
            look: dict[str, Any] = {"color": colour, "alpha": SHADES[min(index, len(SHADES) - 1)]}
            if hatch:
                look = {"facecolor": "white", "edgecolor": colour, "hatch": hatch, "linewidth": 1}
            axes.bar(place, height, width=width * 0.92, **look)
            axes.annotate(label(height), (place, height), (0, 3), textcoords="offset points", ha="center", fontsize=8)
            if not many:  # there would be no room below the bars; their order is said instead
                axes.annotate(group, (place, 0), (0, -4), textcoords="offset points", ha="center", va="top", fontsize=7,
                              color=MUTED)  # fmt: skip
        if name in ranges:
            place = cluster - 0.4 - width * 0.08
            axes.plot([place, place], ranges[name], color=INK, linewidth=1.3)
    axes.set_xticks(range(len(values)), list(values), rotation=25 if many else 0)
    axes.tick_params(axis="x", length=0, pad=2 if many else 16)
    if many and len(groups) > 1:
        axes.set_xlabel(f"bars of an arm: {', '.join(groups)}")
    axes.set_ylim(bottom=0)
    axes.margins(y=0.12)
    axes.grid(axis="y", color=GRID)


def _figure(width: float, height: float, widths: Sequence[float] = (1,)) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0])


def _measured(summary: Summary) -> list[tuple[Arm, Point]]:
    return [(arm, arm.point) for arm in summary.arms if arm.point is not None]


def _colours(summary: Summary) -> dict[str, str]:
    others = [arm.name for arm in summary.arms if not arm.baseline]
    found = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(others)}
    return {arm.name: found.get(arm.name, BASELINE_COLOUR) for arm in summary.arms}
