"""One self-contained ``report.html``: styles and plots are inside it, nothing is fetched when it is opened."""

from __future__ import annotations

import base64
import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator.analysis.lossless import Comparison
from orchestrator.analysis.results import Arm, Point, Published, Summary
from orchestrator.report import deploy, evidence, machine, plots, table

_HERE = Path(__file__).resolve().parent


def write(summary: Summary, directory: Path) -> list[Path]:
    """Write report.html, result.md, plots/*.png, and serve.txt where arms were compared; report.html is the first of
    the paths that are returned."""
    drawn = plots.draw(summary)
    (directory / "plots").mkdir(parents=True, exist_ok=True)
    page, text = directory / "report.html", directory / "result.md"
    page.write_text(render(summary, drawn))
    text.write_text(table.markdown(summary) + "\n")
    written = [page, text]
    if serve := deploy.told(summary):
        written.append(directory / "serve.txt")
        written[-1].write_text("\n".join(serve) + "\n")
    images = [directory / "plots" / f"{plot.stem}.png" for plot in drawn]
    for plot, image in zip(drawn, images, strict=True):
        image.write_bytes(plot.png)
    return [*written, *images]


def render(summary: Summary, drawn: list[plots.Plot]) -> str:
    """The page as text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        number=table.number, ratio=table.ratio, percent=table.percent, pretty=_pretty, command=shlex.join, when=_when
    )
    return environment.get_template("report.html.j2").render(
        summary=summary,
        headline=table.headline(summary),
        serve=deploy.told(summary),
        reserved=any(arm.memory and arm.memory.kind == "vram" for arm in summary.arms),
        base=summary.baseline.name if summary.baseline else "plain",
        plain=summary.baseline.point if summary.baseline else None,
        rows=table.rows(summary),
        intervals=[(arm.name, evidence.intervals(arm)) for arm in summary.arms if arm.point],
        cards=[arm for arm, _ in table.ranking(summary)],
        steps=_steps(summary),
        plots=[(plot, base64.b64encode(plot.svg).decode()) for plot in drawn],
        positions=_positions(summary),
        windows=_windows(summary),
        published=[(source, _published(source)) for source in summary.published],
        tag=table.EMBEDDED_TAG if summary.embedded else None,
        loads=_loads(summary),
        forks=_forks(summary),
        speedup=table.speedup(summary),
        identical=table.identical(summary),
        tau=evidence.tau,
        proposed=table.proposed,
        window=table.window,
        ttft=evidence.ttft_ms,
        trials=machine.trials(summary),
    )


def _steps(summary: Summary) -> list[dict[str, Any]]:
    """How tau becomes speed: committed tokens per step over the step's cost in plain steps, beside the measurement."""
    rows = []
    for arm in summary.arms:
        point = arm.point
        cost = table.step_cost(summary, point) if point else None
        if point and point.acceptance and cost:
            committed = point.acceptance.committed_per_step
            rows.append({"arm": arm.title, "tau": point.acceptance.tau, "proposed": table.proposed(arm, point),
                         "use": point.acceptance.window_use, "committed": committed, "cost": cost,
                         "product": committed / cost, "measured": point.decode_speedup})  # fmt: skip
    return rows


def _loads(summary: Summary) -> list[tuple[Arm, Point]]:
    """Every arm under every load; nothing where there is only one, which the result table shows."""
    found = [(arm, point) for arm in summary.arms for point in arm.points]
    order = list(dict.fromkeys(point.load for _, point in found))
    return sorted(found, key=lambda pair: order.index(pair[1].load)) if len(order) > 1 else []


def _forks(summary: Summary) -> list[Comparison]:
    """Outputs that differ from the plain arm's, those of the plain arm itself first."""
    checks = [arm.lossless for arm in sorted(summary.arms, key=lambda arm: not arm.baseline) if arm.lossless]
    return [fork for check in checks for fork in (*check.forks, *check.near_ties)]


def _positions(summary: Summary) -> list[tuple[int, list[tuple[str, str]]]]:
    """Per draft position: (joint, conditional) of each arm that has acceptance."""
    found = [arm.point.acceptance.positions for arm in _speculative(summary) if arm.point and arm.point.acceptance]
    return [
        (
            index + 1,
            [
                (table.percent(places[index].joint), table.percent(places[index].conditional))
                if index < len(places)
                else ("", "")
                for places in found
            ],
        )
        for index in range(max(map(len, found), default=0))
    ]


def _windows(summary: Summary) -> list[tuple[str, list[tuple[int, str]]]]:
    """Per arm whose windows vary: (window, share of the steps that had it)."""
    found = []
    for arm in _speculative(summary):
        histogram = arm.point.acceptance.window_histogram if arm.point and arm.point.acceptance else None
        if histogram and sum(histogram):
            shares = [(size, table.percent(count / sum(histogram))) for size, count in enumerate(histogram) if count]
            found.append((arm.title, shares))
    return found


def _published(source: Published) -> list[tuple[str, list[str]]]:
    """(metric, figure per arm) of one source."""
    arms = list(source.arms.values())
    found = []
    for label, digits, figures in (
        ("tok/s", 0, [arm.tok_s for arm in arms]),
        ("acceptance length", 2, [arm.tau for arm in arms]),
        ("speedup", 2, [arm.speedup for arm in arms]),
    ):
        for key in dict.fromkeys(key for figure in figures for key in figure):
            found.append((f"{label}, {key}", [table.number(figure.get(key), digits) for figure in figures]))
    if any(arm.tok_s_range for arm in arms):
        ranges = [f"{arm.tok_s_range[0]:.0f} to {arm.tok_s_range[1]:.0f}" if arm.tok_s_range else "–" for arm in arms]
        found.append(("tok/s, slowest to fastest request", ranges))
    if any(arm.memory_gb for arm in arms):
        found.append(("memory, GB", [table.number(arm.memory_gb) for arm in arms]))
    return found


def _speculative(summary: Summary) -> list[Arm]:
    return [arm for arm in summary.arms if arm.point and arm.point.acceptance]


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC") if seconds else table.ABSENT
