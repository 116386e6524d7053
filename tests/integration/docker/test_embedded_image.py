"""The image of containers/embedded, built as a user builds it, serves a comparison."""

from __future__ import annotations

import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.analysis.results import read_summary
from tests import base_image
from tests.docker_engine import DockerEngine
from tests.integration.docker.conftest import ROOT
from tests.integration.docker.test_job import SHORT, environment

TAG = "spec-orchestrator/embedded:built"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of the torch that this machine's pip takes: a build for the CPU, where it is set up so."""
    folder = tmp_path_factory.mktemp("wheels")
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    subprocess.run([*download, "-c", str(ROOT / "constraints.txt"), "torch"], check=True)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.nightly
def test_the_image_is_built_and_serves(engine: DockerEngine, wheels: str, tmp_path: Path) -> None:
    # The tests' engine gives builds no network of their own.
    build = ["build", "--force-rm", "--network", "host", "--tag", TAG, "--file", "containers/embedded/Dockerfile"]
    options = [f"BASE={base_image.NAME}", f"PIP_OPTIONS=--find-links {wheels}"]
    words = [word for option in options for word in ("--build-arg", option)]
    done = subprocess.run(
        ["docker", "--host", engine.address, *build, *words, "."],
        cwd=ROOT, env=os.environ | {"DOCKER_BUILDKIT": "0"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    image = engine.client().images.get(TAG)
    assert image.attrs["Config"]["User"] == "10001:10001"
    smoke = ["docker", "--host", engine.address, "run", "--rm", TAG]
    assert "--drafter" in subprocess.run(smoke, capture_output=True, text=True, check=True).stdout

    run = subprocess.run(
        [*SHORT, "runner=docker_embedded", f"runner.image={TAG}", "suite=smoke_2"],
        cwd=tmp_path, env=environment(engine), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    (directory,) = tmp_path.glob("runs/embedded_drafters/*")
    (ngram,) = [arm for arm in read_summary(directory / "summary.json").arms if arm.name == "ngram"]
    assert ngram.lossless is not None and ngram.lossless.identical == ngram.lossless.compared == 2
