"""A comparison in MLflow's server on Postgres, started by the command of containers/mlflow/compose.yaml."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import yaml
from mlflow import MlflowClient
from mlflow.entities import Run

from orchestrator import projection, report, tracking
from orchestrator.analysis.results import write_summary
from orchestrator.analysis.summary import summarize
from tests import mlflow_service, synthetic
from tests.command_process import start
from tests.mlflow_service import COMPOSE, service
from tests.postgres import Cluster, cluster


class Server(NamedTuple):
    uri: str
    process: psutil.Process
    artifacts: Path
    log: Path
    database: Cluster

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(tracking_uri=self.uri)

    def runs(self, role: str, experiment: str) -> list[Run]:
        found = self.client.get_experiment_by_name(experiment)
        assert found is not None
        return list(self.client.search_runs([found.experiment_id], f"tags.role = '{role}'"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The service's command and environment, with addresses and folders of this machine in place of the container's."""
    place = tmp_path_factory.mktemp("server")
    with cluster("mlflow") as database:
        database.query("postgres", "create database mlflow")
        port = mlflow_service.free_port()
        command = mlflow_service.command(port, str(place / "artifacts"))
        command[0] = str(Path(sys.executable).with_name("mlflow"))
        variables = os.environ | mlflow_service.environment(database)
        log = place / "log"
        with log.open("w") as output:
            process = psutil.Popen(command, cwd=place, env=variables, stdout=output, stderr=output, process_group=0)
        try:
            uri = f"http://127.0.0.1:{port}"
            mlflow_service.wait(uri, lambda: process.poll() is None, log.read_text)
            yield Server(uri, process, place / "artifacts", log, database)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=60)


def test_a_run_logs_to_it_and_its_artifacts_arrive(server: Server, tmp_path: Path) -> None:
    run = start(tmp_path, "order=once", "suite.repeats=1", "tracking=mlflow", f"tracking.uri={server.uri}")
    said = run.communicate(timeout=300)[0]
    assert run.returncode == 0, said
    assert f"{server.uri}/#/experiments/" in said
    (directory,) = (tmp_path / "runs/embedded_drafters").iterdir()
    (parent,) = server.runs("comparison", "embedded_drafters")
    arms = server.runs("arm", "embedded_drafters")
    assert {arm.data.tags["arm"] for arm in arms} == {"plain", "ngram"}
    assert {arm.data.tags["mlflow.parentRunId"] for arm in arms} == {parent.info.run_id}
    assert {one.info.status for one in (parent, *arms)} == {"FINISHED"}
    assert all(arm.data.metrics["throughput/output_tok_s"] > 0 for arm in arms)
    assert parent.info.artifact_uri.startswith("mlflow-artifacts:/"), "through the server, not through a shared folder"
    listed = {item.path for item in server.client.list_artifacts(parent.info.run_id)}
    assert listed >= {"report.html", "summary.json", "trials.jsonl", "plots", "sessions"}
    for name in ("report.html", "sessions/00-plain/records.jsonl"):
        fetched = Path(server.client.download_artifacts(parent.info.run_id, name, str(tmp_path)))
        assert fetched.read_bytes() == (directory / name).read_bytes()
        kept = parent.info.artifact_uri.removeprefix("mlflow-artifacts:/")
        assert (server.artifacts / kept / name).read_bytes() == fetched.read_bytes()
    assert not (tmp_path / "mlruns").exists() and not (tmp_path / "mlflow.db").exists()
    rows = server.database.query("mlflow", "select count(*) from metrics")
    assert rows[0][0] > 50, "they are in Postgres"
    before = server.database.query("mlflow", "select count(*) from runs")
    tracking.replay(directory, server.uri)
    assert server.database.query("mlflow", "select count(*) from runs") == before, "logged again, nothing is doubled"


def test_what_is_long_is_taken(server: Server, tmp_path: Path) -> None:
    """SQLite takes a value of any length, Postgres refuses one that is longer than its column; REST refuses more than
    100 params or 1000 metrics at once, which nothing here comes near."""
    loads = (1, 2, 4, 8)
    facts = synthetic.facts(concurrencies=loads)
    long = [f"drafter.env.NAME={'é' * 7000}"]
    arms = [replace(arm, overrides=[*arm.overrides, *long]) for arm in facts.arms]
    summary = summarize(
        synthetic.records(concurrencies=loads),
        replace(facts, experiment="much", description="ü" * 9000, arms=arms),
    )
    for arm in summary.arms:
        batches = [projection.arm_metrics(arm), *(metrics for _, metrics in projection.arm_curves(arm))]
        assert max(map(len, batches)) < 500 and len(projection.arm_params(arm)) < 50
    directory = tmp_path / "run"
    directory.mkdir()
    write_summary(summary, directory / "summary.json")
    report.write(summary, directory)
    tracking.project(summary, server.uri, directory)
    runs = {run.data.tags["arm"]: run for run in server.runs("arm", "much")}
    assert runs["dspine"].data.params["overrides"].startswith("drafter=dspine drafter.env.NAME=ééé")
    assert len(runs["dspine"].data.params["overrides"]) == 6000, "MLflow's limit"
    curve = server.client.get_metric_history(runs["dspine"].info.run_id, "by_concurrency/speedup")
    assert sorted(point.step for point in curve) == list(loads)


def test_no_command_line_and_no_log_has_the_password(server: Server) -> None:
    lines = [one.cmdline() for one in (server.process, *server.process.children(recursive=True))]
    assert len(lines) > 1 and not any(server.database.password in " ".join(line) for line in lines)
    assert server.database.password not in server.log.read_text()


def config(folder: Path) -> subprocess.CompletedProcess[str]:
    """What Compose itself makes of the file, with the .env of a folder; Debian's docker-compose, which needs no engine
    for it."""
    tool = shutil.which("docker-compose")
    assert tool is not None, "Debian's package docker-compose is not installed (.ci/common.sh installs it)"
    words = [tool, "--file", str(COMPOSE), "--project-directory", str(folder), "config"]
    clean = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return subprocess.run(words, env=clean, capture_output=True, text=True, check=False)


def test_compose_takes_the_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MLFLOW_DB_PASSWORD=a-password\nMLFLOW_PORT=5123\n")
    done = config(tmp_path)
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert services["mlflow"]["command"] == service()["command"]
    assert services["mlflow"]["ports"] == ["127.0.0.1:5123:5000/tcp"], "loopback only"
    assert services["mlflow"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"] == "a-password"
    assert all(one["healthcheck"]["test"][0] == "CMD" for one in services.values())


def test_compose_refuses_to_start_without_a_password(tmp_path: Path) -> None:
    done = config(tmp_path)
    assert done.returncode != 0
    assert "write MLFLOW_DB_PASSWORD=... into containers/mlflow/.env" in done.stderr


def test_the_health_check_of_the_server_is_one(server: Server) -> None:
    check = service()["healthcheck"]["test"]
    assert check[:3] == ["CMD", "python3", "-c"]
    here = check[3].replace("http://127.0.0.1:5000", server.uri)
    assert here != check[3]
    assert subprocess.run([sys.executable, "-c", here], check=False).returncode == 0
    gone = check[3].replace("127.0.0.1:5000", "127.0.0.1:9")
    assert subprocess.run([sys.executable, "-c", gone], check=False, capture_output=True).returncode != 0
