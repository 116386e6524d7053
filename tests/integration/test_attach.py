"""Servers that someone else started are measured as they are, and refused where they are not what an arm asks for."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.analysis.results import read_summary
from orchestrator.measuring import store
from tests.command_process import COMMAND, ENVIRONMENT, eventually
from tests.engine_process import Engine, running

FLAGS = ("--context-length", "2048")


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory, target_folder: Path) -> Iterator[tuple[Engine, Engine]]:
    """A plain server and one that looks drafts up, as a person would have started them."""
    place = tmp_path_factory.mktemp("engines")
    drafts = ("--drafter", "ngram", "--block-size", "8")
    with (
        running(target_folder, place / "plain.log", *FLAGS) as plain,
        running(target_folder, place / "ngram.log", *FLAGS, *drafts) as ngram,
    ):
        yield plain, ngram


def command(plain: str, ngram: str, *overrides: str) -> list[str]:
    runner = '"runner=attach","runner.engine=embedded","runner.threads=1"'
    arms = [
        f'arms.plain=["drafter=none",{runner},"runner.url={plain}"]',
        f'arms.ngram=["drafter=ngram","drafter.block_size=8",{runner},"runner.url={ngram}"]',
    ]
    return [*COMMAND[:-1], "preset=embedded", "varies=[drafter,runner]", *arms, *overrides]


def attached(place: Path, plain: str, ngram: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(plain, ngram, *overrides),
        cwd=place, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_two_servers_are_compared_and_left_running(tmp_path: Path, engines: tuple[Engine, Engine]) -> None:
    plain, ngram = engines
    done = attached(tmp_path, plain.url, ngram.url)
    assert done.returncode == 0, done.stdout + done.stderr
    (directory,) = (tmp_path / "runs/embedded_drafters").iterdir()
    summary = read_summary(directory / "summary.json")
    (looked_up,) = [arm for arm in summary.arms if arm.name == "ngram"]
    assert looked_up.lossless is not None and looked_up.lossless.identical == looked_up.lossless.compared == 2
    assert looked_up.point is not None and looked_up.point.acceptance is not None
    entries, _ = store.load(directory)
    assert {entry.server.identity["pid"] for entry in entries} == {plain.process.pid, ngram.process.pid}
    assert plain.process.poll() is None and ngram.process.poll() is None
    assert not list((tmp_path / "runs/index").glob("*.json")), "a server may be another behind the same URL"


def test_a_server_that_is_not_the_one_meant_is_refused_by_what_differs(
    tmp_path: Path, engines: tuple[Engine, Engine]
) -> None:
    plain, ngram = engines
    swapped = attached(tmp_path, ngram.url, plain.url)
    assert swapped.returncode == 1 and "drafter: asked 'none', serves 'ngram'" in swapped.stdout
    assert "Nothing was measured" in swapped.stdout


def test_where_nothing_answers_nothing_is_begun(tmp_path: Path, engines: tuple[Engine, Engine]) -> None:
    plain, _ = engines
    done = attached(tmp_path, plain.url, "http://127.0.0.1:9")
    assert done.returncode == 2 and "runner.url=http://127.0.0.1:9: no server answers there" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_server_that_stops_answering_fails_its_arm_and_keeps_what_was_measured(
    tmp_path: Path, engines: tuple[Engine, Engine], target_folder: Path
) -> None:
    _, ngram = engines
    with (
        running(target_folder, tmp_path / "plain.log", *FLAGS) as plain,
        subprocess.Popen(
            command(plain.url, ngram.url, "suite.max_new_tokens.default=64"),
            cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as run,
    ):  # fmt: skip
        records = lambda: [line for file in tmp_path.rglob("records.jsonl") for line in file.open()]  # noqa: E731
        eventually(lambda: records() or run.poll() is not None)
        assert run.poll() is None
        plain.process.kill()
        said, _ = run.communicate(timeout=300)
    assert run.returncode == 1 and f"{plain.url} no longer answers" in said, said
    assert records() and read_summary(next(tmp_path.rglob("summary.json"))).status == "failed"
    assert ngram.process.poll() is None
