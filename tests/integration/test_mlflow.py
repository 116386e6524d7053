"""A comparison in a real MLflow store on disk, and what happens when there is none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from orchestrator import report, tracking
from orchestrator.analysis.facts import ArmFacts
from orchestrator.analysis.results import Summary, write_summary
from orchestrator.analysis.summary import summarize
from orchestrator.report import table
from tests import plan_factory, synthetic

ROOT = Path(__file__).resolve().parents[2]


def run_directory(directory: Path, **changes: Any) -> tuple[Summary, Path]:
    """A run directory as a run leaves it, of synthetic records."""
    loads = changes.pop("loads", (1,))
    arms = changes.pop("arms", synthetic.ARMS)
    summary = summarize(
        synthetic.records(arms, concurrencies=loads), replace(synthetic.facts(arms, concurrencies=loads), **changes)
    )
    session = directory / "sessions" / "00-plain"
    session.mkdir(parents=True)
    (session / "records.jsonl").write_text("{}\n")
    (session / "server.log").write_text("ready\n")
    (directory / "config.yaml").write_text("name: synthetic\n")
    write_summary(summary, directory / "summary.json")
    report.write(summary, directory)
    return summary, directory


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with its tables: making them takes seconds, so the tests copy it."""
    file = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture
def store(empty: Path, tmp_path: Path) -> Store:
    shutil.copy(empty, tmp_path / "mlflow.db")
    return Store(tmp_path)


class Store:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.uri = f"sqlite:///{directory}/mlflow.db"
        self.client = MlflowClient(tracking_uri=self.uri)

    def runs(self, role: str) -> list[Run]:
        ids = [experiment.experiment_id for experiment in self.client.search_experiments()]
        return list(self.client.search_runs(ids, f"tags.role = '{role}'"))

    def artifacts(self, run: Run, folder: str | None = None) -> set[str]:
        return {item.path for item in self.client.list_artifacts(run.info.run_id, folder)}

    def everything(self) -> str:
        """All params, tags, metrics and their history, as one text that two states of the store are compared by."""
        lines = []
        for role in ("comparison", "arm", "sweep"):
            for run in self.runs(role):
                data = run.data
                history = {key: self.client.get_metric_history(run.info.run_id, key) for key in data.metrics}
                points = {key: [(m.step, m.value, m.timestamp) for m in items] for key, items in history.items()}
                lines.append(
                    json.dumps([run.info.run_id, run.info.status, data.params, data.tags, points], sort_keys=True)
                )
        return "\n".join(sorted(lines))


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Summary, Path]:
    folder = tmp_path_factory.mktemp("mlflow")
    summary, directory = run_directory(folder / "run", loads=(1, 2))
    store = Store(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_RUN_ID", "0123456789abcdef0123456789abcdef")
        tracking.project(summary, store.uri, directory)
    return store, summary, directory


def arm(store: Store, name: str) -> Run:
    return next(run for run in store.runs("arm") if run.data.tags["arm"] == name)


def test_a_parent_per_comparison_and_a_child_per_arm(logged: tuple[Store, Summary, Path]) -> None:
    store, summary, _ = logged
    (parent,) = store.runs("comparison")
    children = store.runs("arm")
    assert sorted(run.info.run_name for run in children) == ["dflash2", "dspine", "plain"]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert {run.info.status for run in [parent, *children]} == {"FINISHED"}
    assert {run.data.tags["engine"] for run in [parent, *children]} == {"embedded"}
    assert parent.data.tags["git_commit"] == "0" * 40
    assert parent.data.tags["mlflow.note.content"] == table.markdown(summary)
    assert parent.data.params["suite"] == "short_long_16"
    assert parent.info.start_time == round(1000 * summary.started)


def test_headline_metrics_are_unstepped_and_curves_are_stepped(logged: tuple[Store, Summary, Path]) -> None:
    store, summary, _ = logged
    run = arm(store, "dspine")
    found = summary.arms[2]
    point = found.point
    assert point is not None
    assert point.acceptance is not None
    assert point.speedup is not None
    assert found.memory is not None
    expected = {
        "acceptance/length": point.acceptance.tau,
        "acceptance/rate": point.acceptance.rate,
        "acceptance/position_01": point.acceptance.positions[0].joint,
        "throughput/output_tok_s": point.output_tok_s,
        "throughput/output_tok_s_short": point.tok_s_by_category["short"],
        "throughput/speedup": point.speedup.ratio,
        "throughput/speedup_low": point.speedup.low,
        "latency/ttft_p50_ms": 1000 * (point.metrics.ttft_s.p50 or 0),
        "latency/step_ms": point.step_ms,
        "memory/peak_rss_gib": found.memory.gib,
        "output/identical_share": 1.0,
        "requests/failed": 0,
    }
    for key, value in expected.items():
        (metric,) = store.client.get_metric_history(run.info.run_id, key)
        assert metric.value == pytest.approx(value, rel=1e-4)
        assert metric.step == 0
    curve = store.client.get_metric_history(run.info.run_id, "by_concurrency/speedup")
    assert sorted(metric.step for metric in curve) == [1, 2]
    places = store.client.get_metric_history(run.info.run_id, "acceptance/by_position")
    assert sorted(metric.step for metric in places) == list(range(1, 16))
    (parent,) = store.runs("comparison")
    assert parent.data.metrics["speedup/dspine"] == run.data.metrics["throughput/speedup"]
    assert run.data.params == {
        "drafter": "dspine", "block_size": "16", "proposed_tokens": "15", "verify_window": "16",
        "overrides": "drafter=dspine",
    }  # fmt: skip


def test_artifacts_hold_report_plots_records_logs_and_how_it_was_started(logged: tuple[Store, Summary, Path]) -> None:
    store, _, _ = logged
    (parent,) = store.runs("comparison")
    assert store.artifacts(parent) >= {"report.html", "result.md", "summary.json", "config.yaml", "plots", "sessions"}
    assert "plots/throughput.png" in store.artifacts(parent, "plots")
    assert store.artifacts(parent, "sessions/00-plain") == {
        "sessions/00-plain/records.jsonl",
        "sessions/00-plain/server.log",
    }
    child = arm(store, "dspine")
    assert store.artifacts(child) == {"launch_command.txt", "server_info.json"}
    text = Path(store.client.download_artifacts(child.info.run_id, "launch_command.txt")).read_text()
    assert text.startswith("python -m runners.engine --drafter dspine")


def test_no_secret_is_logged(logged: tuple[Store, Summary, Path]) -> None:
    store, _, _ = logged
    files = [file for file in (store.directory / "mlruns").rglob("*") if file.is_file()]
    assert files
    assert not any(b"not-a-real" in file.read_bytes() for file in files)
    assert "not-a-real" not in store.everything()


def test_logging_it_again_changes_nothing(logged: tuple[Store, Summary, Path]) -> None:
    store, summary, directory = logged
    before = store.everything()
    tracking.project(summary, store.uri, directory)
    assert tracking.replay(directory, store.uri).startswith(f"mlflow ui --backend-store-uri {store.uri}, then http://")
    assert store.everything() == before


def test_a_deleted_run_is_logged_anew_and_its_arms_follow(store: Store, tmp_path: Path) -> None:
    summary, directory = run_directory(tmp_path / "run")
    tracking.project(summary, store.uri, directory)
    store.client.delete_run(store.runs("comparison")[0].info.run_id)
    tracking.project(summary, store.uri, directory)
    (parent,) = store.runs("comparison")
    assert {run.data.tags["mlflow.parentRunId"] for run in store.runs("arm")} == {parent.info.run_id}


@pytest.mark.parametrize(("status", "expected"), [("failed", "FAILED"), ("interrupted", "KILLED")])
def test_status_of_the_run_is_that_of_the_comparison(status: str, expected: str, store: Store, tmp_path: Path) -> None:
    arms = [*synthetic.facts().arms, ArmFacts("eagle3", "eagle3", missing="no weights")]
    summary, directory = run_directory(tmp_path / "run", status=status)
    summary = summarize(synthetic.records(), replace(synthetic.facts(), status=status, arms=arms))  # type: ignore[arg-type]
    tracking.project(summary, store.uri, directory)
    assert [run.info.status for run in store.runs("comparison")] == [expected]
    missing = arm(store, "eagle3")
    assert (missing.info.status, missing.data.tags["missing"], missing.data.metrics) == ("FAILED", "no weights", {})


def test_a_sweep_shares_a_tag_and_has_one_summary_run(store: Store, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep-7"
    for place, block in enumerate((4, 8)):
        arms = (synthetic.ARMS[0], replace(synthetic.ARMS[1], block_size=block, proposed=block - 1))
        command = {"command_line": ["+experiment=synthetic", f"drafter.block_size={block}"]}
        run_directory(sweep / str(place), arms=arms, comparison=f"block-{block}", sweep=sweep.name, config=command)
    tracking.replay(sweep, store.uri)
    (summary_run,) = store.runs("sweep")
    comparisons = store.runs("comparison")
    assert {run.data.tags["sweep"] for run in [summary_run, *comparisons]} == {"sweep-7"}
    assert sorted(run.info.run_name for run in comparisons) == [
        "drafter.block_size=4 · block-4",
        "drafter.block_size=8 · block-8",
    ]
    assert sorted(run.info.run_name for run in store.runs("arm") if run.data.tags["arm"] == "dflash2") == [
        "dflash2 · drafter.block_size=4",
        "dflash2 · drafter.block_size=8",
    ]
    note = summary_run.data.tags["mlflow.note.content"]
    assert len([line for line in note.splitlines() if "| dflash2 |" in line]) == 2
    steps = store.client.get_metric_history(summary_run.info.run_id, "speedup/dflash2")
    assert sorted(metric.step for metric in steps) == [0, 1]
    before = store.everything()
    tracking.log_sweep(sweep, store.uri)
    assert store.everything() == before


def start(directory: Path, uri: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "orchestrator", "action=log", f"run_dir={directory}", f"tracking.uri={uri}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # also without an installation
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=cwd, env=environment, stdout=pipe, stderr=pipe, text=True)


def test_first_use_by_several_processes_at_once_and_without_noise(tmp_path: Path) -> None:
    directories = [run_directory(tmp_path / name, comparison=name)[1] for name in ("one", "two")]
    # the default URI, relative to the working directory of the process
    processes = [start(directory, "sqlite:///mlflow.db", tmp_path) for directory in directories]
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    page = "/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=arms"
    assert outputs == [(f"Browse:  mlflow ui, then http://127.0.0.1:5000{page}\n", "")] * 2
    store = Store(tmp_path)
    assert sorted(run.data.tags["comparison"] for run in store.runs("comparison")) == ["one", "two"]
    assert len(store.runs("arm")) == 6


def test_an_outage_says_what_happened_and_how_to_log_it_later(tmp_path: Path) -> None:
    _, directory = run_directory(tmp_path / "run")
    before = sorted((file, file.read_bytes()) for file in directory.rglob("*") if file.is_file())
    process = start(directory, "http://127.0.0.1:9", tmp_path)  # the discard port: nobody answers
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    assert "MLflow at http://127.0.0.1:9 did not take the result" in err
    assert f"python -m orchestrator action=log run_dir={directory} tracking.uri=http://127.0.0.1:9" in err
    assert "Traceback" not in err
    assert sorted((file, file.read_bytes()) for file in directory.rglob("*") if file.is_file()) == before


def test_what_cannot_be_logged_is_refused_in_words(store: Store, tmp_path: Path) -> None:
    with pytest.raises(tracking.TrackingFailure, match=r"nowhere holds no summary\.json"):
        tracking.replay(tmp_path / "nowhere", "sqlite:///mlflow.db")
    summary, directory = run_directory(tmp_path / "run")
    tracking.project(summary, store.uri, directory)
    store.client.delete_experiment(store.runs("comparison")[0].info.experiment_id)
    with pytest.raises(tracking.TrackingFailure, match="'synthetic' is deleted: restore it"):
        tracking.project(summary, store.uri, directory)


def test_tracking_none_logs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    suite, load = plan_factory.suite(), plan_factory.load()
    experiment, _ = plan_factory.comparison(tmp_path, plan_factory.arm("plain", suite, load))
    summary = summarize(synthetic.records(), synthetic.facts())
    assert experiment.tracking.kind == "none"
    assert tracking.log(summary, experiment, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_the_core_does_without_mlflow() -> None:
    modules: Sequence[str] = (
        "analysis.summary", "findings.judge", "analysis.facts", "stats", "report", "projection", "tracking"
    )  # fmt: skip
    code = f"import sys; import {', '.join(f'orchestrator.{name}' for name in modules)}; " + (
        "print(sorted({'mlflow', 'hydra', 'torch', 'matplotlib', 'docker'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
