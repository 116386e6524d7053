"""Edge to MLflow: a projection of a run directory. The records are the truth; this can be done again at any time.

One MLflow experiment per experiment name, a parent run per comparison, a child run per arm, one summary run per sweep.
A run is found again by its tags, so logging the same comparison twice updates it and adds nothing. Everything goes
through a client with explicit run ids: MLFLOW_RUN_ID, an active run of the caller and autologging have no say here.
"""

from __future__ import annotations

import logging
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import projection
from orchestrator.analysis.results import Arm, Summary, read_summary
from orchestrator.config.masking import mask_text
from orchestrator.report import sweep
from orchestrator.schema import Experiment

if TYPE_CHECKING:
    from mlflow import MlflowClient

_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_PARAM_LIMIT, _TAG_LIMIT = 6000, 8000
"""MLflow cuts longer values without a word."""
_FILES = (
    "report.html",
    "result.md",
    "serve.txt",
    "summary.json",
    "config.yaml",
    "environment.json",
    "plan.json",
    "trials.jsonl",
)


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
    """Log a run directory, or a sweep's with all its comparisons, that MLflow did not get; returns how to browse it."""
    if (directory / "summary.json").is_file():
        return project(_summary(directory), uri, directory)
    runs = _comparisons(directory)
    for run in runs:
        project(_summary(run), uri, run)
    return log_sweep(directory, uri)


def project(summary: Summary, uri: str, directory: Path) -> str:
    """Parent run, children and artifacts of one comparison; returns how to browse it."""
    with _failures(uri, directory):
        client = _client(uri)
        experiment_id = _experiment(client, uri, summary)
        tags = {"comparison": summary.comparison}
        parent = _run(client, experiment_id, "comparison", tags, projection.name(summary), summary.started)
        _fill(client, parent, summary.finished, projection.parent_metrics(summary), projection.parent_params(summary),
              projection.parent_tags(summary))  # fmt: skip
        for arm in summary.arms:
            tags = {"comparison": summary.comparison, "arm": arm.name}
            child = _run(client, experiment_id, "arm", tags, projection.arm_name(summary, arm), summary.started, parent)
            _fill(client, child, summary.finished, projection.arm_metrics(arm), projection.arm_params(arm),
                  projection.arm_tags(summary, arm))  # fmt: skip
            for concurrency, metrics in projection.arm_curves(arm):
                _metrics(client, child, summary.finished, metrics, concurrency)
            for position, metrics in projection.position_curve(arm):
                _metrics(client, child, summary.finished, metrics, position)
            _arm_artifacts(client, child, arm)
            client.set_terminated(child, "FAILED" if arm.missing else _STATUS[summary.status], _ms(summary.finished))
        _artifacts(client, parent, directory)
        client.set_terminated(parent, _STATUS[summary.status], _ms(summary.finished))
        return _where(uri, experiment_id)


def log_sweep(directory: Path, uri: str) -> str:
    """One summary run over the comparisons of a multirun, named as its folder: a table of all, and their headline
    figures stepped by their place in it. Ratios stay inside their comparisons. Returns how to browse it."""
    summaries = [_summary(run) for run in _comparisons(directory)]
    first = summaries[0]
    with _failures(uri, directory):
        client = _client(uri)
        experiment_id = _experiment(client, uri, first)
        finished = max(summary.finished for summary in summaries)
        started = min(summary.started for summary in summaries)
        run = _run(client, experiment_id, "sweep", {"sweep": directory.name}, directory.name, started)
        text = sweep.markdown(summaries)
        tags = {**projection.shared_tags(first), "mlflow.note.content": text}
        _fill(client, run, finished, {}, {"comparisons": len(summaries)}, tags)
        for place, summary in enumerate(summaries):
            _metrics(client, run, finished, projection.parent_metrics(summary), place)
        client.log_text(run, text, "sweep.md")
        worst = next((summary.status for summary in summaries if summary.status != "finished"), "finished")
        client.set_terminated(run, _STATUS[worst], _ms(finished))
        return _where(uri, experiment_id)


def _summary(run: Path) -> Summary:
    """Raises TrackingFailure for a summary that is damaged or of another version."""
    try:
        return read_summary(run / "summary.json")
    except ValueError as error:
        told = str(error).splitlines()[0]
        raise TrackingFailure(f"{run / 'summary.json'} is damaged or of another version ({told})") from error


def _comparisons(directory: Path) -> list[Path]:
    """Run directories of a sweep, in the order of its jobs."""
    found = [file.parent for file in directory.glob("*/summary.json")]
    if not found:
        raise TrackingFailure(f"{directory} holds no summary.json: not a run directory, or its run did not end")
    return sorted(found, key=lambda run: (int(run.name) if run.name.isdigit() else len(found), run.name))


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
    with _first_use(uri):
        return MlflowClient(tracking_uri=uri)


def _experiment(client: MlflowClient, uri: str, summary: Summary) -> str:
    """Id of the MLflow experiment of this name, made on first use."""
    with _first_use(uri):
        found = client.get_experiment_by_name(summary.experiment)
        if found is None:
            experiment_id = client.create_experiment(summary.experiment, _artifact_root(uri, summary.experiment))
        else:
            experiment_id = found.experiment_id
    if found is not None and found.lifecycle_stage == "deleted":
        raise TrackingFailure(
            f"the MLflow experiment {summary.experiment!r} is deleted: restore it "
            f"(mlflow experiments restore -x {experiment_id}) or remove it for good (mlflow gc)"
        )
    view = _page(experiment_id)
    tags = {
        "mlflow.experimentKind": "custom_model_development",
        "mlflow.note.content": f"{summary.description} [Arms side by side]({view})",
        f"mlflow.sharedViewState.{projection.VIEW}": projection.arms_view(),
    }
    for key, value in tags.items():
        client.set_experiment_tag(experiment_id, key, value)
    return str(experiment_id)


def _database(uri: str) -> Path | None:
    """The file of an SQLite store; None for a server or another database."""
    return Path(uri.removeprefix("sqlite:///").partition("?")[0]) if uri.startswith("sqlite:///") else None


def _artifact_root(uri: str, experiment: str) -> str | None:
    """Artifacts lie in ``mlruns`` beside an SQLite file, wherever a command is started; a server has its own place."""
    path = _database(uri)
    return None if path is None else (path.parent / "mlruns" / experiment).resolve().as_uri()


@contextmanager
def _first_use(uri: str) -> Iterator[None]:
    """One process at a time: a client creates the tables of a new SQLite file, and several at once fail at that."""
    path = _database(uri)
    if path is None:
        yield
        return
    from filelock import FileLock

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
    """Finite figures only, with five digits, since the runs table shows all there are. The time is that of the
    measurement: the same point logged twice is the same point."""
    from mlflow.entities import Metric

    points = [
        Metric(key, float(f"{value:.5g}"), _ms(at), step)
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
def _failures(uri: str, directory: Path) -> Iterator[None]:
    try:
        yield
    except TrackingFailure:
        raise
    except Exception as error:
        shown = mask_text(uri)
        again = (
            f"python -m orchestrator action=log {_override('run_dir', directory)} {_override('tracking.uri', shown)}"
        )
        raise TrackingFailure(
            f"MLflow at {shown} did not take the result: {mask_text(_short(error))}\n"
            f"Nothing is lost, everything is in {directory}. Log it once MLflow answers: {again}"
        ) from error


def _override(key: str, value: object) -> str:
    """``key=value`` as a shell and Hydra's grammar take it; Hydra wants quotes around what is not a plain word."""
    plain = re.fullmatch(r"[\w./:@%+-]+", str(value), re.ASCII)
    if plain:
        return f"{key}={value}"
    escaped = str(value).replace("'", "\\'")
    return shlex.quote(f"{key}='{escaped}'")


def _short(error: Exception) -> str:
    """First line of what went wrong: an unreachable server is told in a page of nested causes."""
    return str(error).strip().partition("\n")[0][:300] or type(error).__name__


def _page(experiment_id: str) -> str:
    """Address of the arms' table below the server's own address; without the workflow type, MLflow opens a page for
    traces."""
    return f"#/experiments/{experiment_id}/runs?workflowType=machine_learning&viewStateShareKey={projection.VIEW}"


def _where(uri: str, experiment_id: str) -> str:
    uri = mask_text(uri)
    if uri.startswith("http"):
        return f"{uri.rstrip('/')}/{_page(experiment_id)}"
    backend = "" if uri == "sqlite:///mlflow.db" else f" --backend-store-uri {shlex.quote(uri)}"
    return f"mlflow ui{backend}, then http://127.0.0.1:5000/{_page(experiment_id)}"


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
