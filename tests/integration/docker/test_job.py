"""The command with its servers in containers: the main job whole, and runs that are broken off in every way."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from orchestrator.analysis.results import read_summary
from orchestrator.measuring import store
from orchestrator.telemetry import samples
from tests.command_process import eventually
from tests.container_server import config, make_runner
from tests.docker_engine import DockerEngine, NoEngine
from tests.integration.docker.conftest import EMBEDDED, MOUNTS, ROOT

COMMAND = [sys.executable, "-m", "orchestrator"]
SHORT = [*COMMAND, "+experiment=embedded_drafters", "~arms.dflash2", "~arms.dspine", "tracking=none"]
IN_CONTAINERS = ["runner=docker_embedded", MOUNTS, "suite=smoke_2"]
LONG = ["suite.max_new_tokens.default=96", "load.warmup_requests=0"]


def environment(engine: DockerEngine | NoEngine) -> dict[str, str]:
    return os.environ | {"DOCKER_HOST": engine.address, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def run(
    place: Path, engine: DockerEngine | NoEngine, command: list[str], *more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *IN_CONTAINERS, *more],
        cwd=place, env=environment(engine), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@contextmanager
def going(place: Path, engine: DockerEngine) -> Iterator[subprocess.Popen[str]]:
    """A run whose server answers requests; it would take a while. In a session of its own, as at a terminal."""
    process = subprocess.Popen(
        [*SHORT, *IN_CONTAINERS, *LONG],
        cwd=place, env=environment(engine), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        eventually(lambda: serves(place) or process.poll() is not None, 120)
        assert process.poll() is None, process.communicate()[0]
        yield process
    finally:
        process.kill()
        process.wait()


def serves(place: Path) -> bool:
    """Whether the run knows that its first server is ready: it has told the sampler what to watch."""
    files = place.glob("runs/*/*/sessions/*/telemetry*.jsonl")
    return any(re.search(r'"server": ?\{', file.read_text()) for file in files)


def reaper(process: subprocess.Popen[str]) -> psutil.Process:
    """Of a run's server."""
    (found,) = [one for one in psutil.Process(process.pid).children() if "runners.docker.reaper" in one.cmdline()]
    return found


def test_the_main_job(engine: DockerEngine, tmp_path: Path, target_folder: Path) -> None:
    command = [*COMMAND, "+experiment=dspine_vs_dflash2", "order=once"]
    done = run(tmp_path, engine, command)
    assert done.returncode == 0, done.stdout + done.stderr
    (directory,) = tmp_path.glob("runs/dspine_vs_dflash2/*")
    summary = read_summary(directory / "summary.json")
    assert summary.status == "finished" and [arm.name for arm in summary.arms] == ["plain", "dflash2", "dspine"]
    digest = engine.client().images.get(EMBEDDED).id
    entries, records = store.load(directory)
    assert len(entries) == 3 and len(records) == 6 and all(record.outcome == "ok" for record in records)
    for entry in entries:
        identity = entry.server.identity
        assert (identity["image"], identity["image_digest"]) == (EMBEDDED, digest)
        assert identity["model_path"] == str(target_folder) and entry.server.command[:2] == ["docker", "run"]
        # 135 million parameters of four bytes are 0.5 GiB.
        assert entry.server.peak_memory_bytes is not None and 2**29 < entry.server.peak_memory_bytes < 2**32
    for arm in summary.arms[1:]:
        assert arm.lossless is not None and arm.lossless.identical == arm.lossless.compared == 2
        assert arm.point is not None and arm.point.acceptance is not None and arm.point.acceptance.tau > 1.2
    for session in directory.glob("sessions/*"):
        assert "ready to roll" in (session / "server.log").read_text()
        watched = [line["server"] for line in samples.read(session / "telemetry.jsonl").lines if line.get("server")]
        assert max(one["rss_bytes"] for one in watched) > 2**29
    assert json.loads((tmp_path / "runs/images.lock.json").read_text()) == {EMBEDDED: digest}
    assert (tmp_path / "mlflow.db").exists() or any(tmp_path.glob("**/mlflow.db"))

    again = run(tmp_path, engine, command, "tracking=none")
    assert again.returncode == 0 and "3 of 3 trials are measured already" in again.stdout
    # A plan knows from the lock file what is measured, without an engine.
    plan = run(tmp_path, NoEngine(f"unix://{tmp_path}/none.sock"), command, "action=plan", "tracking=none")
    assert plan.returncode == 0, plan.stderr
    assert "measured already" in plan.stdout


def test_a_killed_container_costs_its_trial_only(engine: DockerEngine, tmp_path: Path) -> None:
    with going(tmp_path, engine) as process:
        (container,) = engine.client().containers.list()
        container.kill()
        output = process.communicate(timeout=120)[0]
    assert process.returncode == 1
    assert "plain: the server ended while it served: its container was killed (137)" in output
    assert "ngram" in output  # the other arm was measured


def test_an_engine_that_dies_in_mid_run(own_engine: DockerEngine, tmp_path: Path) -> None:
    with going(tmp_path, own_engine) as process:
        watcher = reaper(process)
        own_engine.signal(signal.SIGKILL)
        output = process.communicate(timeout=120)[0]
    assert process.returncode == 1 and "no engine answers there" in output
    inside = [one for one in own_engine.processes() if "runners.engine" in one.cmdline()]
    assert inside == []
    own_engine.start()
    eventually(lambda: own_engine.containers() == [] and not watcher.is_running(), 60)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_orchestrator_that_ends_leaves_nothing(engine: DockerEngine, tmp_path: Path, how: signal.Signals) -> None:
    with going(tmp_path, engine) as process:
        watcher = reaper(process)
        assert len(engine.containers()) == 1
        os.killpg(process.pid, how)  # as Ctrl-C at a terminal reaches all of the group
        began = time.monotonic()
        process.wait(60)
        eventually(lambda: engine.containers() == [] and not watcher.is_running(), 30)
        assert time.monotonic() - began < 20
    assert process.returncode == (-how if how == signal.SIGKILL else 128 + how)


def test_what_outlived_even_its_reaper_goes_at_the_next_start(
    engine: DockerEngine, tmp_path: Path, place: Path
) -> None:
    with going(tmp_path, engine) as process:
        for one in [reaper(process), process]:
            one.kill()
        process.wait()
    time.sleep(1)
    assert len(engine.containers()) == 1
    runner = make_runner(place)
    handle = runner.start(config(), place, lambda text: None)
    assert len(engine.containers()) == 1
    runner.stop(handle)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["runner.image=spec-orchestrator/embedded:none"], "docker build -t spec-orchestrator/embedded:none"),
        (["runner.image=no/such"], "docker pull no/such on the node"),
    ],
)
def test_an_absent_image_is_told_before_anything_starts(
    engine: DockerEngine, tmp_path: Path, more: list[str], told: str
) -> None:
    done = run(tmp_path, engine, SHORT, *more)
    assert done.returncode == 2 and told in done.stderr
    assert not (tmp_path / "runs").exists()


def test_an_absent_engine_is_told_before_anything_starts(tmp_path: Path) -> None:
    done = run(tmp_path, NoEngine(f"unix://{tmp_path}/none.sock"), SHORT)
    assert done.returncode == 2 and "no container engine can be used" in done.stderr
    assert "systemctl start docker" in done.stderr and "runner=embedded" in done.stderr
    assert not (tmp_path / "runs").exists()
