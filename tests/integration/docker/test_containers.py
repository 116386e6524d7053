"""The images of containers/, built by a real engine as their READMEs say, on a stand-in for SGLang's own image."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import report, tracking
from orchestrator.analysis.results import write_summary
from orchestrator.analysis.summary import summarize
from tests import base_image, mlflow_service, standin_sglang, synthetic, vendor_plugin
from tests.docker_engine import DockerEngine
from tests.postgres import cluster

ROOT = Path(__file__).resolve().parents[3]
SGLANG, DSPINE = "spec-orchestrator/sglang:v0.5.23", "spec-orchestrator/dspine:v0.5.23"
SAMPLER = ("--entrypoint", "python3", "--env", "PYTHONPATH=/opt/spec-orchestrator")


class Docker:
    """The command line of an engine, in the root of the checkout."""

    def __init__(self, engine: DockerEngine) -> None:
        self._environment = os.environ | {"DOCKER_HOST": engine.address, "DOCKER_BUILDKIT": "0"}

    def __call__(self, *words: str, wanted: int = 0) -> str:
        """What a command says; fails unless it ends as ``wanted``."""
        done = subprocess.run(
            ["docker", *words], cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode != 0) == (wanted != 0), done.stdout
        return done.stdout

    def build(self, file: str, tag: str, *arguments: str, wanted: int = 0) -> str:
        # The tests' engine gives builds no network of their own.
        given = [word for argument in arguments for word in ("--build-arg", argument)]
        return self(
            "build", "--force-rm", "--network", "host", "--tag", tag, "--file", file, *given, ".", wanted=wanted
        )


@pytest.fixture(scope="module")
def docker(shared_engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> Docker:
    """The engine with the stand-in and, on it, this project's image of SGLang."""
    place = tmp_path_factory.mktemp("standin")
    standin_sglang.write(place, base_image.NAME)
    run = Docker(shared_engine)
    run("build", "--tag", standin_sglang.NAME, str(place))
    run.build("containers/sglang/Dockerfile", SGLANG, f"BASE={standin_sglang.NAME}")
    return run


@pytest.fixture(scope="module")
def vendor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    place = tmp_path_factory.mktemp("vendor")
    commits = vendor_plugin.repository(place / "dspine")
    with vendor_plugin.served(place) as address:
        yield f"{address}/dspine", commits


def test_the_sampler_runs_in_the_image_of_sglang(docker: Docker) -> None:
    said = docker("run", "--rm", "--network", "none", *SAMPLER, SGLANG, "-m", "runners.telemetry", "--gpus", "0")
    first = json.loads(said.splitlines()[0])
    assert first["kind"] == "start" and first["cores"] > 0 and first["processes_absent"] is None
    assert first["gpus_absent"], "there is no GPU here, and it says so"


def test_what_sglang_imports_stays_as_published(docker: Docker) -> None:
    found = "import importlib.util as u; print([bool(u.find_spec(name)) for name in ('psutil', 'runners', 'sglang')])"
    assert docker("run", "--rm", "--network", "none", SGLANG, "python3", "-c", found) == "[False, False, True]\n"


def test_the_versions_are_those_of_the_constraints(docker: Docker) -> None:
    told = "from importlib.metadata import version as v; print(v('psutil'), v('nvidia-ml-py'))"
    said = docker("run", "--rm", "--network", "none", *SAMPLER, SGLANG, "-c", told).split()
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert said == [pinned["psutil"], pinned["nvidia-ml-py"]]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "which code? --build-arg DSPINE_GIT_URL="),
        (["DSPINE_GIT_URL=git://127.0.0.1/dspine"], "which revision of git://127.0.0.1/dspine?"),
        (["DSPINE_GIT_REVISION=main"], "which code?"),
        (["DSPINE_GIT_URL=https://token@example.org/dspine", "DSPINE_GIT_REVISION=main"], "holds credentials"),
    ],
)
def test_a_build_that_does_not_say_which_code_is_refused(docker: Docker, arguments: list[str], told: str) -> None:
    said = docker.build("containers/dspine/Dockerfile", DSPINE, *arguments, wanted=1)
    assert told in said.partition("refused: ")[2], said


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (
            "no entry point",
            "0 entry points named 'dspine' in the group sglang.srt.plugins, one is wanted; it has: none",
        ),
        ("another algorithm", "registers no algorithm 'DSPINE': Unknown speculative algorithm name: DSPINE"),
        ("import fails", "registers no algorithm 'DSPINE'"),
    ],
)
def test_a_plugin_that_sglang_would_not_find_is_refused(
    docker: Docker, vendor: tuple[str, dict[str, str]], kind: str, told: str
) -> None:
    url, commits = vendor
    arguments = (f"DSPINE_GIT_URL={url}", f"DSPINE_GIT_REVISION={commits[kind]}")
    said = docker.build("containers/dspine/Dockerfile", "spec-orchestrator/wrong:1", *arguments, wanted=1)
    assert told in said.partition("refused: ")[2], said
    if kind == "import fails":  # SGLang only logs it; the build shows it
        assert "Failed to load plugin dspine" in said and "a_module_that_is_not_there" in said


def test_a_plugin_that_registers_makes_an_image(docker: Docker, vendor: tuple[str, dict[str, str]]) -> None:
    url, commits = vendor
    commit = commits["right"]
    said = docker.build(
        "containers/dspine/Dockerfile", DSPINE, f"DSPINE_GIT_URL={url}", f"DSPINE_GIT_REVISION={commit}"
    )
    assert f"verified: DSPINE of dspine-vendor 0.1, commit {commit}" in said
    labels = json.loads(docker("image", "inspect", "--format", "{{json .Config.Labels}}", DSPINE))
    assert labels["spec-orchestrator.plugin.url"] == url
    assert labels["spec-orchestrator.plugin.revision"] == commit
    check = ("/opt/spec-orchestrator/dspine/verify_plugin.py", "dspine", "DSPINE")
    smoke = ("run", "--rm", "--network", "none", "--env", "SGLANG_PLUGINS=dspine", "--entrypoint", "python3", DSPINE)
    assert f"commit {commit}" in docker(*smoke, *check)
    listed = docker("run", "--rm", "--network", "none", DSPINE, "python3", "-m", "pip", "list")
    assert "torch" not in listed, "what it depends on is the image's business"


@pytest.mark.nightly
def test_the_image_of_mlflow_serves_from_postgres(docker: Docker, tmp_path: Path) -> None:
    """As its service in compose.yaml, but on the network of this machine: the tests' Postgres is no container."""
    docker.build("containers/mlflow/Dockerfile", "spec-orchestrator/mlflow:3.17.2", f"BASE={base_image.NAME}")
    summary = summarize(synthetic.records(), synthetic.facts())
    write_summary(summary, tmp_path / "summary.json")
    report.write(summary, tmp_path)
    with cluster("mlflow") as database:
        database.query("postgres", "create database mlflow")
        port = mlflow_service.free_port()
        variables = mlflow_service.environment(database)
        given = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
        words = ("run", "--detach", "--name", "mlflow", "--network", "host", "--volume", "artifacts:/artifacts", *given)
        docker(*words, "spec-orchestrator/mlflow:3.17.2", *mlflow_service.command(port, "/artifacts"))
        try:
            state = ("inspect", "--format", "{{.State.Running}}", "mlflow")
            uri = f"http://127.0.0.1:{port}"
            mlflow_service.wait(uri, lambda: docker(*state).strip() == "true", lambda: docker("logs", "mlflow"))
            tracking.project(summary, uri, tmp_path)
            kept = docker("exec", "mlflow", "sh", "-c", "ls -n /artifacts/*/*/artifacts/report.html")
            assert " 10001 10001 " in kept
            assert database.query("mlflow", "select count(*) from runs") == [(4,)]
        finally:
            docker("rm", "--force", "mlflow")
