"""Edge to MLflow: a projection of a run directory. The records are the truth; this can be done again at any time.

One MLflow experiment per experiment name, a parent run per comparison, a child run per arm, one summary run per sweep.
A run is found again by its tags, so logging the same comparison twice updates it and adds nothing. Everything goes
through a client with explicit run ids: MLFLOW_RUN_ID, an active run of the caller and autologging have no say here.
"""

from __future__ import annotations

import logging
import math
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import projection
from orchestrator.results import Arm, Summary, read_summary
from orchestrator.schema import Experiment

if TYPE_CHECKING:
    from mlflow import MlflowClient

_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_PARAM_LIMIT, _TAG_LIMIT = 6000, 8000
"""MLflow cuts longer values without a word."""
_FILES = ("report.html", "result.md", "summary.json", "config.yaml", "environment.json", "plan.json", "trials.jsonl")


class TrackingFailure(RuntimeError):
    """MLflow did not take the result. The message says where the result is and how to log it later."""


def log(summary: Summary, experiment: Experiment, directory: Path) -> str | None:
    """Log a comparison where its config says; returns how to browse it, None without tracking.

    Raises TrackingFailure; nothing that was measured depends on it.
    """
    if experiment.tracking.kind == "none":
        return None
    return project(summary, experiment.tracking.uri, directory)


def replay(directory: Path, uri: str) -> str:
    """Log a run directory that MLflow did not get, or did not get in full; returns how to browse it."""
    try:
        summary = read_summary(directory / "summary.json")
    except FileNotFoundError:
        raise TrackingFailure(
            f"{directory} holds no summary.json: not a run directory, or its run did not end"
        ) from None
    return project(summary, uri, directory)


def project(summary: Summary, uri: str, directory: Path) -> str:
    """Parent run, children and artifacts of one comparison; returns how to browse it."""
    with _failures(uri, f"python -m orchestrator action=log run_dir={shlex.quote(str(directory))}"):
        client = _client(uri)
        experiment_id = _experiment(client, uri, summary)
        tags = {"comparison": summary.comparison}
        parent = _run(client, experiment_id, "comparison", tags, projection.name(summary), summary.started)
        _fill(client, parent, summary.finished, projection.parent_metrics(summary), projection.parent_params(summary),
              projection.parent_tags(summary))  # fmt: skip
        for arm in summary.arms:
            tags = {"comparison": summary.comparison, "arm": arm.name}
            child = _run(client, experiment_id, "arm", tags, arm.name, summary.started, parent)
            _fill(client, child, summary.finished, projection.arm_metrics(arm), projection.arm_params(arm),
                  projection.arm_tags(summary, arm))  # fmt: skip
            for concurrency, metrics in projection.arm_curves(arm):
                _metrics(client, child, summary.finished, metrics, concurrency)
            for position, metrics in projection.position_curve(arm):
                _metrics(client, child, summary.finished, metrics, position)
            _arm_artifacts(client, child, arm)
            client.set_terminated(child, "KILLED" if arm.missing else _STATUS[summary.status], _ms(summary.finished))
        _artifacts(client, parent, directory)
        client.set_terminated(parent, _STATUS[summary.status], _ms(summary.finished))
        return _where(uri, experiment_id, parent)


def log_sweep(summaries: Sequence[Summary], uri: str, sweep: str) -> str:
    """One summary run over the comparisons of a multirun: a table of all, and the headline figures stepped by their
    place in it. Ratios stay inside their comparisons. Returns how to browse it."""
    first = summaries[0]
    with _failures(uri, "log its comparisons one by one with action=log"):
        client = _client(uri)
        experiment_id = _experiment(client, uri, first)
        finished = max(summary.finished for summary in summaries)
        started = min(summary.started for summary in summaries)
        run = _run(client, experiment_id, "sweep", {"sweep": sweep}, f"sweep {sweep}", started)
        text = projection.sweep_table(summaries)
        tags = {**projection.shared_tags(first), "mlflow.note.content": text}
        _fill(client, run, finished, {}, {"comparisons": len(summaries)}, tags)
        for place, summary in enumerate(summaries):
            _metrics(client, run, finished, projection.parent_metrics(summary), place)
        client.log_text(run, text, "sweep.md")
        worst = next((summary.status for summary in summaries if summary.status != "finished"), "finished")
        client.set_terminated(run, _STATUS[worst], _ms(finished))
        return _where(uri, experiment_id, run)


def _client(uri: str) -> MlflowClient:
    # Read when mlflow is imported: an unreachable server is reported in seconds instead of minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    for name in ("alembic", "mlflow.store.db.utils"):  # a page of migrations at the first use of a database
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        from mlflow import MlflowClient
    except ImportError as error:
        raise TrackingFailure(
            "tracking=mlflow needs MLflow, which is not installed: pip install mlflow==3.17.2, or say tracking=none"
        ) from error
    return MlflowClient(tracking_uri=uri)


def _experiment(client: MlflowClient, uri: str, summary: Summary) -> str:
    """Id of the MLflow experiment of this name, made on first use.

    The first use of an SQLite file creates its tables; several processes doing that at once fail, hence the lock.
    """
    with _first_use(uri):
        found = client.get_experiment_by_name(summary.experiment)
        if found is None:
            # the kind opens the runs table; without it the page starts with a view for traces
            tags = {"mlflow.experimentKind": "custom_model_development", "mlflow.note.content": summary.description}
            return str(client.create_experiment(summary.experiment, tags=tags))
    if found.lifecycle_stage == "deleted":
        raise TrackingFailure(
            f"the MLflow experiment {summary.experiment!r} is deleted: restore it "
            f"(mlflow experiments restore -x {found.experiment_id}) or remove it for good (mlflow gc)"
        )
    return str(found.experiment_id)


@contextmanager
def _first_use(uri: str) -> Iterator[None]:
    if not uri.startswith("sqlite:///"):
        yield
        return
    from filelock import FileLock

    path = Path(uri.removeprefix("sqlite:///").partition("?")[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock", timeout=120):
        yield


def _run(
    client: MlflowClient,
    experiment_id: str,
    role: str,
    identity: Mapping[str, str],
    name: str,
    started: float,
    parent: str | None = None,
) -> str:
    """Id of the run with these identifying tags: the one that is there, or a new one."""
    tags = {"role": role, **identity}
    wanted = " and ".join(f"tags.{key} = '{value}'" for key, value in tags.items())
    found = client.search_runs([experiment_id], wanted, max_results=1)
    if parent is not None:
        tags["mlflow.parentRunId"] = parent
    if found:
        run = found[0].info.run_id
        client.update_run(run, status="RUNNING", name=name)
        if parent is not None:  # the parent was deleted and made anew
            client.set_tag(run, "mlflow.parentRunId", parent)
        return str(run)
    return str(client.create_run(experiment_id, start_time=_ms(started), tags=tags, run_name=name).info.run_id)


def _fill(
    client: MlflowClient,
    run: str,
    at: float,
    metrics: Mapping[str, float | None],
    params: Mapping[str, Any],
    tags: Mapping[str, str],
) -> None:
    from mlflow.entities import Param, RunTag

    known = client.get_run(run).data.params  # a param cannot be changed
    client.log_batch(
        run,
        params=[Param(key, str(value)[:_PARAM_LIMIT]) for key, value in params.items() if key not in known],
        tags=[RunTag(key, value[:_TAG_LIMIT]) for key, value in tags.items()],
    )
    _metrics(client, run, at, metrics)


def _metrics(client: MlflowClient, run: str, at: float, metrics: Mapping[str, float | None], step: int = 0) -> None:
    """Finite figures only. The time is that of the measurement: the same point logged twice is the same point."""
    from mlflow.entities import Metric

    points = [
        Metric(key, value, _ms(at), step)
        for key, value in metrics.items()
        if value is not None and math.isfinite(value)
    ]
    if points:
        client.log_batch(run, metrics=points)


def _artifacts(client: MlflowClient, run: str, directory: Path) -> None:
    """Report, plots, config, records and server logs of the run directory, under the names they have there."""
    for name in _FILES:
        if (directory / name).is_file():
            client.log_artifact(run, str(directory / name))
    for folder in ("plots", "sessions", "probe"):
        if (directory / folder).is_dir():
            client.log_artifacts(run, str(directory / folder), folder)


def _arm_artifacts(client: MlflowClient, run: str, arm: Arm) -> None:
    if arm.command:
        client.log_text(run, shlex.join(arm.command) + "\n", "launch_command.txt")
    if arm.identity:
        client.log_dict(run, arm.identity, "server_info.json")


@contextmanager
def _failures(uri: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except TrackingFailure:
        raise
    except Exception as error:
        raise TrackingFailure(f"{uri}: {error}. Nothing is lost; once MLflow answers: {remedy}") from error


def _where(uri: str, experiment_id: str, run: str) -> str:
    page = f"#/experiments/{experiment_id}/runs/{run}"
    if uri.startswith("http"):
        return f"{uri.rstrip('/')}/{page}"
    backend = "" if uri == "sqlite:///mlflow.db" else f" --backend-store-uri {shlex.quote(uri)}"
    return f"mlflow ui{backend}  then http://127.0.0.1:5000/{page}"


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
