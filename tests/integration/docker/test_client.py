"""The load client in a container beside the server's: what it measures, and what becomes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.measuring import store
from orchestrator.measuring.records import read_records
from orchestrator.telemetry import samples
from runners.docker import fetch
from runners.docker.connect import connect
from tests import base_image, client_image
from tests.command_process import eventually
from tests.docker_engine import DockerEngine
from tests.integration.docker.conftest import EMBEDDED, MOUNTS, ROOT, with_images
from tests.integration.docker.test_job import environment

COMMAND = [
    sys.executable, "-m", "orchestrator", "+experiment=embedded_drafters", "~arms.dflash2", "~arms.dspine",
    "tracking=none", "runner=docker_embedded", MOUNTS, "suite=smoke_2", "load.client=node", "order=once",
]  # fmt: skip
LONG = ["suite.max_new_tokens.default=96", "load.warmup_requests=0"]


@pytest.fixture
def with_client(engine: DockerEngine) -> DockerEngine:
    client = engine.client()
    client_image.make(client)  # the second time nothing is left to do
    client.close()
    return engine


def run(place: Path, engine: DockerEngine, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *more], cwd=place, env=environment(engine), capture_output=True, text=True, timeout=200, check=False
    )


@contextmanager
def going(place: Path, engine: DockerEngine) -> Iterator[subprocess.Popen[str]]:
    """A run whose first answer has ended."""
    process = subprocess.Popen(
        [*COMMAND, *LONG],
        cwd=place, env=environment(engine), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        eventually(lambda: any(file.stat().st_size for file in place.glob("runs/*/*/sessions/*/records.jsonl")), 120)
        assert process.poll() is None, process.communicate()[0]
        yield process
    finally:
        process.kill()
        process.wait()


def client_of(engine: DockerEngine) -> Any:
    (found,) = [one for one in engine.client().containers.list() if client_image.NAME in one.image.tags]
    return found


def test_the_client_runs_beside_the_server(with_client: DockerEngine, tmp_path: Path) -> None:
    done = run(tmp_path, with_client)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "one request at a time, client on the node" in done.stdout
    (directory,) = tmp_path.glob("runs/embedded_drafters/*")
    entries, records = store.load(directory)
    assert len(entries) == 2 and len(records) == 4 and all(record.outcome == "ok" for record in records)
    for entry in entries:
        client, usage = entry.server.client, entry.usage
        assert client is not None and client.where == "node" and 0 < client.cpu_s < client.wall_s
        assert usage is not None and usage.samples > 5, "records and samples are on one clock"
    for session in directory.glob("sessions/*"):
        read = samples.read(session / "telemetry.jsonl")
        sent = [record.sent_at for record in read_records(session / "records.jsonl")]
        assert read.clocks[0].at < min(sent) and max(sent) < read.clocks[-1].at
    lock = json.loads((tmp_path / "runs/images.lock.json").read_text())
    assert set(lock) == {EMBEDDED, "spec-orchestrator/client"}

    here = run(tmp_path, with_client, "load.client=here", "action=plan")
    assert here.returncode == 0 and "measured already" not in here.stdout, "sent from elsewhere it is another trial"


def test_a_killed_client_costs_its_trial_only(with_client: DockerEngine, tmp_path: Path) -> None:
    with going(tmp_path, with_client) as process:
        client_of(with_client).kill()
        output = process.communicate(timeout=120)[0]
    assert process.returncode == 1
    assert "plain: the load client ended" in output and "the same command measures the rest" in output, output
    assert "ngram" in output and with_client.containers() == []
    (directory,) = tmp_path.glob("runs/embedded_drafters/*")
    assert len(list(read_records(directory / "sessions/00-plain/records.jsonl"))) >= 1
    assert {entry.server.arm for entry in store.entries(directory)} == {"ngram"}


@pytest.mark.parametrize("how", [pytest.param(signal.SIGKILL, marks=pytest.mark.nightly), signal.SIGINT])
def test_an_orchestrator_that_ends_leaves_no_client(
    with_client: DockerEngine, tmp_path: Path, how: signal.Signals
) -> None:
    with going(tmp_path, with_client) as process:
        assert len(with_client.containers()) == 2
        os.killpg(process.pid, how)
        process.wait(60)
        eventually(lambda: with_client.containers() == [], 30)
    (file,) = tmp_path.glob("runs/embedded_drafters/*/sessions/00-plain/records.jsonl")
    outcomes = [record.outcome for record in read_records(file)]
    assert outcomes[0] == "ok" and (how == signal.SIGKILL or outcomes[-1] == "cancelled")


def test_a_missing_image_is_told_before_anything_starts(engine: DockerEngine, tmp_path: Path) -> None:
    done = run(tmp_path, engine, "load.image=spec-orchestrator/client:none", "runner.pull=never")
    assert done.returncode == 2 and "load.image=spec-orchestrator/client:none" in done.stderr
    assert "docker build -t spec-orchestrator/client:none -f containers/client/Dockerfile ." in done.stderr


def test_an_image_that_is_no_client_is_told(engine: DockerEngine, tmp_path: Path) -> None:
    done = run(tmp_path, engine, "load.image=python:3.11-slim", "~arms.ngram")
    assert done.returncode == 1 and "the load client ended: " in done.stdout, done.stdout
    assert "No module named 'orjson'" in done.stdout and engine.containers() == []


def test_the_image_is_built_as_its_page_says(engine: DockerEngine) -> None:
    build = ["build", "--force-rm", "--network", "host", "--tag", "spec-orchestrator/client:built"]
    words = ["--file", "containers/client/Dockerfile", "."]
    more = {"DOCKER_BUILDKIT": "0", "DOCKER_HOST": engine.address}
    done = subprocess.run(
        ["docker", *build, *words], cwd=ROOT, env=os.environ | more, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    said = subprocess.run(
        ["docker", "run", "--rm", "spec-orchestrator/client:built"],
        env=os.environ | more, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout == "load client: ready for its code\n"


def network_of_fetch(engine: DockerEngine, place: Path, network: str) -> str:
    """That in which weights are looked for."""
    words = ["python", "-c", "import os; print(os.readlink('/proc/self/ns/net'))"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", engine.address)
        node = {"kind": "local", "gpus": []}
        with connect(node) as connection:
            return fetch.run(connection, node, base_image.NAME, words, str(place / "hub"), [], print, network).strip()


def test_server_and_client_in_the_network_of_a_node_without_a_bridge(tmp_path: Path) -> None:
    with DockerEngine("--bridge=none") as bare:
        with_images(bare)
        client = bare.client()
        client_image.make(client)
        assert "bridge" not in {one.name for one in client.networks.list()}
        client.close()
        mine = os.readlink("/proc/self/ns/net")
        assert [network_of_fetch(bare, tmp_path, one) == mine for one in ("bridge", "host")] == [False, True]
        done = run(tmp_path, bare, "~arms.ngram", "runner.network=host")
        assert done.returncode == 0, done.stdout + done.stderr
        assert bare.containers() == []
    (directory,) = tmp_path.glob("runs/embedded_drafters/*")
    (entry,), records = store.load(directory)
    assert len(records) == 2 and all(record.outcome == "ok" for record in records)
    words = entry.server.command
    assert words[words.index("--network") + 1] == "host" and "127.0.0.1" in words and "--publish" not in words
