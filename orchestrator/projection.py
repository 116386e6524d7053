"""What MLflow is told of a comparison: names and values of metrics, params and tags. Pure; tracking.py sends them.

Metric names are grouped with ``/``, which the charts page turns into sections. docs/reference/metrics.md lists them.
"""

from __future__ import annotations

import base64
import json
import shlex
import zlib
from collections.abc import Iterator
from typing import Any

from orchestrator.analysis import served
from orchestrator.analysis.results import Arm, Point, Summary
from orchestrator.config.masking import mask_command
from orchestrator.report import table
from orchestrator.telemetry.names import figures

Metrics = dict[str, float | None]

NAME_LIMIT = 120
VIEW = "arms"
"""Key of the saved view in MLflow's links."""
_VIEW_METRICS = (
    "throughput/speedup", "throughput/output_tok_s", "acceptance/length", "acceptance/proposed_per_step",
    "latency/step_ms", "latency/ttft_p50_ms", "output/identical_share",
)  # fmt: skip
_VIEW_PARAMS = ("block_size", "proposed_tokens", "drafter")
_VIEW_TAGS = ("engine",)


def name(summary: Summary) -> str:
    """Name of the parent run: what the user asked for beside the experiment itself, and the start of the key."""
    return f"{label(summary)} · {summary.comparison[:8]}"[:NAME_LIMIT]


def arm_name(summary: Summary, arm: Arm) -> str:
    """Name of an arm's run; in a sweep it says which comparison it belongs to."""
    own = label(summary)
    return (arm.name if own == summary.experiment else f"{arm.name} · {own}")[:NAME_LIMIT]


def label(summary: Summary) -> str:
    """The user's own overrides, or the experiment's name."""
    words = mask_command([str(word) for word in summary.config.get("command_line", [])])
    own = [
        word for word in words if not word.startswith(("+experiment=", "experiment=", "preset=", "action=", "output="))
    ]
    return " ".join(own) or summary.experiment


def parent_metrics(summary: Summary) -> Metrics:
    """The headline figures of every arm side by side, so that the runs table compares comparisons unopened."""
    metrics: Metrics = {}
    for arm in summary.arms:
        if arm.point is None:
            continue
        metrics[f"output_tok_s/{arm.name}"] = arm.point.output_tok_s
        if arm.point.speedup:
            metrics[f"speedup/{arm.name}"] = arm.point.speedup.ratio
        if arm.point.acceptance:
            metrics[f"acceptance_length/{arm.name}"] = arm.point.acceptance.tau
            metrics[f"proposed_per_step/{arm.name}"] = arm.point.acceptance.proposed_per_step
            metrics[f"step_ms/{arm.name}"] = arm.point.step_ms
    return metrics


def parent_params(summary: Summary) -> dict[str, Any]:
    return {**summary.setting, "arms": " ".join(arm.name for arm in summary.arms)}


def parent_tags(summary: Summary) -> dict[str, str]:
    counted = dict.fromkeys(("error", "warning", "note"), 0)
    for finding in summary.findings:
        counted[finding.severity] += 1
    return {
        **shared_tags(summary),
        "mlflow.note.content": table.markdown(summary),
        "result": table.headline(summary),
        "findings": ", ".join(f"{count} {severity}" for severity, count in counted.items() if count) or "none",
        "command": shlex.join(mask_command(list(map(str, summary.environment.get("command", []))))),
    }


def shared_tags(summary: Summary) -> dict[str, str]:
    """Tags that every run of a comparison has."""
    tags = {
        "engine": summary.engine,
        "target": summary.target,
        "machine": summary.machine,
        "status": summary.status,
        "experiment": summary.experiment,
    }
    if commit := summary.environment.get("git_commit"):
        tags["mlflow.source.git.commit"] = tags["git_commit"] = str(commit)
    if summary.sweep:
        tags["sweep"] = summary.sweep
    if summary.withheld:
        tags["refused"] = ", ".join(summary.withheld)
    return tags


def arm_params(arm: Arm) -> dict[str, Any]:
    found = {
        "drafter": arm.drafter,
        "block_size": arm.block_size,
        "proposed_tokens": arm.proposed_tokens,
        "verify_window": arm.verify_window,
        "overrides": " ".join(arm.overrides),
    }
    return {key: value for key, value in found.items() if value not in (None, "")}


def arm_tags(summary: Summary, arm: Arm) -> dict[str, str]:
    tags = shared_tags(summary)
    if arm.missing:
        tags["missing"] = arm.missing
    if arm.lossy:
        tags["lossy"] = "true"
    own = [f"- **{finding.severity}**: {finding.text}" for finding in summary.findings if finding.arm == arm.name]
    return {**tags, "mlflow.note.content": "\n".join(own)} if own else tags


def arm_metrics(arm: Arm) -> Metrics:
    """The unstepped headline figures of an arm: the runs table shows the last step only, so curves are kept apart."""
    if arm.point is None:
        return {}
    metrics = {**_speed(arm.point), **_acceptance(arm.point), **_quality(arm.point)}
    if arm.memory:
        metrics[f"memory/peak_{arm.memory.kind}_gib"] = arm.memory.gib
    if arm.point.usage:
        metrics |= figures(arm.point.usage)
    if arm.ceiling and arm.ceiling.tok_s:
        metrics["baseline/ceiling_tok_s"] = arm.ceiling.tok_s
        metrics["baseline/bandwidth_share"] = arm.bandwidth_share
    metrics |= {f"memory/{part}_gib": size for part, size in served.memory_parts(arm.identity).items()}
    if arm.capacity:
        metrics["memory/room_tokens"] = arm.capacity.tokens
        metrics["memory/requests_at_once"] = arm.capacity.requests
    if arm.crossover:
        metrics["throughput/crossover_concurrency"] = arm.crossover.concurrency
    if arm.lossless and arm.lossless.compared:
        metrics["output/identical_share"] = arm.lossless.identical / arm.lossless.compared
        metrics["output/forks"] = len(arm.lossless.forks)
    return metrics


def arm_curves(arm: Arm) -> Iterator[tuple[int, Metrics]]:
    """(concurrency, metrics) where more than one load was measured; the step is the number of requests in flight."""
    points = [point for point in arm.points if point.concurrency is not None]
    if len(points) < 2:
        return
    for point in points:
        assert point.concurrency is not None
        metrics: Metrics = {
            "by_concurrency/output_tok_s": point.output_tok_s,
            "by_concurrency/system_tok_s": point.system_tok_s,
            "by_concurrency/full_load_tok_s": point.full_load_tok_s,
            "by_concurrency/speedup": point.speedup.ratio if point.speedup else None,
            "by_concurrency/acceptance_length": point.acceptance.tau if point.acceptance else None,
            "by_concurrency/proposed_per_step": point.acceptance.proposed_per_step if point.acceptance else None,
            "by_concurrency/step_ms": point.step_ms,
            "by_concurrency/ttft_p50_ms": _ms(point.metrics.ttft_s.p50),
            "by_concurrency/tpot_p50_ms": _ms(point.metrics.tpot_s.p50),
            "by_concurrency/joules_per_output_token": point.usage.energy_per_token_j if point.usage else None,
        }
        yield point.concurrency, metrics


def position_curve(arm: Arm) -> Iterator[tuple[int, Metrics]]:
    """(draft position, metrics): one line per arm in a chart; the step is the position."""
    if arm.point and arm.point.acceptance:
        for place in arm.point.acceptance.positions:
            yield place.position, {"acceptance/by_position": place.joint}


def arms_view() -> str:
    """A saved view of the runs table: every arm a row, with the columns that compare them.

    MLflow keeps such a view as an experiment tag: JSON with a name and the page's state, deflated, in base64. Without
    it the table shows collapsed parents and no metric. Rows are nested again where the sort is by time, hence by speed.
    """
    groups = {"metrics": _VIEW_METRICS, "params": _VIEW_PARAMS, "tags": _VIEW_TAGS}
    columns = [f"{group}.`{name}`" for group, names in groups.items() for name in names]
    state = {
        "searchFilter": "tags.role = 'arm'",
        "orderByKey": f"metrics.`{_VIEW_METRICS[1]}`",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": dict.fromkeys(columns, 150),
    }
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    return json.dumps({"name": "arms side by side", "createdAt": 0, "updatedAt": 0, "state": f"deflate;{packed}"})


def _speed(point: Point) -> Metrics:
    measured = point.metrics
    metrics: Metrics = {
        "throughput/output_tok_s": point.output_tok_s,
        "throughput/decode_tok_s": point.decode_tok_s,
        "throughput/system_tok_s": point.system_tok_s,
        "throughput/full_load_tok_s": point.full_load_tok_s,
        "latency/ttft_p50_ms": _ms(measured.ttft_s.p50),
        "latency/ttft_p90_ms": _ms(measured.ttft_s.p90),
        "latency/tpot_p50_ms": _ms(measured.tpot_s.p50),
        "latency/e2e_p50_ms": _ms(measured.e2e_s.p50),
        "latency/step_ms": point.step_ms,
        "output/tokens": measured.output_tokens,
        "output/repeated_4grams": measured.repeated_4grams,
        "requests/ok": measured.requests,
        "requests/failed": sum(measured.failed.values()),
    }
    metrics |= {f"throughput/output_tok_s_{category}": rate for category, rate in point.tok_s_by_category.items()}
    if point.speedup:
        metrics["throughput/speedup"] = point.speedup.ratio
        metrics["throughput/speedup_low"] = point.speedup.low
        metrics["throughput/speedup_high"] = point.speedup.high
        metrics["throughput/detectable_speedup"] = point.speedup.detectable
    if point.decode_speedup:
        metrics["throughput/decode_speedup"] = point.decode_speedup.ratio
    if evidence := point.evidence:
        if evidence.output_tok_s:
            metrics["throughput/output_tok_s_low"] = evidence.output_tok_s.low
            metrics["throughput/output_tok_s_high"] = evidence.output_tok_s.high
        metrics["throughput/second_half_over_first"] = evidence.drift.value if evidence.drift else None
        metrics["throughput/spread_between_starts"] = evidence.restarts.sd if evidence.restarts else None
    return metrics


def _acceptance(point: Point) -> Metrics:
    found = point.acceptance
    if found is None:
        return {}
    metrics: Metrics = {
        "acceptance/length": found.tau,
        "acceptance/length_low": found.tau_low,
        "acceptance/length_high": found.tau_high,
        "acceptance/length_mean_of_requests": found.tau_mean_of_requests,
        "acceptance/length_token_weighted": found.tau_token_weighted,
        "acceptance/length_server_totals": point.server_totals.tau if point.server_totals else None,
        "acceptance/committed_per_step": found.committed_per_step,
        "acceptance/rate": found.rate,
        "acceptance/proposed_per_step": found.proposed_per_step,
        "acceptance/window_mean": found.window_mean,
        "acceptance/window_use": found.window_use,
    }
    metrics |= {f"acceptance/length_{category}": part.tau for category, part in point.acceptance_by_category.items()}
    metrics |= {f"acceptance/position_{place.position:02d}": place.joint for place in found.positions}
    return metrics


def _quality(point: Point) -> Metrics:
    found = point.solved
    if found is None:
        return {}
    return {
        "quality/solved": found.solved,
        "quality/checked": found.checked,
        "quality/solved_share": found.share,
        "quality/malformed": found.count("malformed") if found.json_checked else None,
        "quality/seconds_per_solved_task": found.seconds_per_solved,
        "energy/joules_per_solved_task": found.energy_per_solved_j,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
