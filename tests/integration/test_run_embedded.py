"""The command against the real engine: what is measured is right, and nothing is lost or left running."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from orchestrator.analysis.acceptance import disagreement, pooled
from orchestrator.analysis.lossless import check
from orchestrator.analysis.results import Summary, read_summary
from orchestrator.config.compose import load
from orchestrator.job import planned
from orchestrator.measuring import store
from orchestrator.measuring.interrupt import Interrupt
from orchestrator.measuring.measure import probe
from orchestrator.measuring.progress import Display
from orchestrator.measuring.records import RequestRecord, read_records
from runners.choose import make_runner
from tests.command_process import COMMAND, ENVIRONMENT, eventually, going, processes


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, target_folder: Path) -> Path:
    """Working directory of the user; the target is there already."""
    return tmp_path_factory.mktemp("place")


LONGER = "suite.max_new_tokens.default=48"


def run(place: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *overrides], cwd=place, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False
    )


def newest(place: Path) -> Path:
    return max((place / "runs/embedded_drafters").iterdir(), key=lambda path: path.stat().st_mtime)


def engines(place: Path) -> list[psutil.Process]:
    return processes(place, "runners.engine")


def kept(place: Path) -> list[RequestRecord]:
    return [one for path in place.glob("runs/*/*/sessions/*/records*.jsonl") for one in read_records(path)]


@pytest.fixture(scope="module")
def first(place: Path) -> tuple[subprocess.CompletedProcess[str], Path, Summary]:
    """One whole run, which the tests below look at."""
    done = run(place)
    assert done.returncode == 0, done.stdout + done.stderr
    return done, newest(place), read_summary(newest(place) / "summary.json")


First = tuple[subprocess.CompletedProcess[str], Path, Summary]


def test_a_run_ends_with_a_table_and_says_where_the_rest_is(first: First) -> None:
    done, directory, summary = first
    assert summary.status == "finished" and [arm.name for arm in summary.arms] == ["plain", "ngram"]
    assert "acceptance length tau" in done.stdout and str(directory / "report.html") in done.stdout
    assert engines(directory.parents[2]) == []


def test_every_record_has_its_times_tokens_and_identity(first: First) -> None:
    _, directory, summary = first
    entries, records = store.load(directory)
    assert len(entries) == 2 and len(records) == 4
    for record in records:
        assert record.outcome == "ok" and record.completion_tokens == len(record.output_ids) > 0
        assert record.chunks[-1][1] == record.completion_tokens
        assert record.e2e_s is not None and record.ttft_s is not None and 0 < record.ttft_s <= record.e2e_s
        assert record.prompt_tokens is not None and record.prompt_tokens > 10
    for entry in entries:
        assert entry.server.identity["dtype"] == "float32" and entry.server.identity["weights_sha256"]
        # 135 million parameters of four bytes are 0.5 GiB.
        assert entry.server.peak_memory_bytes is not None and 2**29 < entry.server.peak_memory_bytes < 2**32
        assert "--drafter" in entry.server.command
    assert {arm.name: arm.sessions for arm in summary.arms} == {"plain": 1, "ngram": 1}


def test_the_output_is_that_of_the_plain_arm_and_the_counters_those_of_the_stream(first: First) -> None:
    _, directory, summary = first
    _, records = store.load(directory)
    (ngram,) = [arm for arm in summary.arms if arm.name == "ngram"]
    assert ngram.lossless is not None and ngram.lossless.identical == ngram.lossless.compared == 2
    speculated = [record for record in records if record.arm == "ngram"]
    assert all(record.spec is not None for record in speculated)
    assert [disagreement(record) for record in records] == [None] * 4
    result = pooled(speculated)
    assert result is not None and ngram.point is not None and ngram.point.acceptance is not None
    assert ngram.point.acceptance.tau == result.tau >= 1


def test_the_answers_are_judged_as_recorded_and_alike_in_both_arms(first: First) -> None:
    done, _, summary = first
    plain, ngram = (arm.point.solved if arm.point else None for arm in summary.arms)
    assert plain is not None and ngram is not None and plain.answers == ngram.answers
    assert [answer.prompt_id for answer in plain.answers] == ["smoke-colors"] and plain.seconds > 0
    assert "tasks solved" in done.stdout and "solved_differs" not in {finding.code for finding in summary.findings}


def test_the_server_s_own_totals_are_those_of_the_requests(first: First) -> None:
    _, _, summary = first
    for arm in summary.arms:
        totals = arm.point.server_totals if arm.point else None
        assert totals is not None and totals.disagreements == [] and totals.trials == 1
        assert totals.committed_per_step == totals.committed_counted
        accepted = arm.point.acceptance if arm.point else None
        assert totals.tau == (pytest.approx(accepted.tau) if accepted else None)
    assert not {"totals_disagree", "no_server_totals"} & {finding.code for finding in summary.findings}


def test_a_second_run_measures_nothing_again(place: Path, first: First) -> None:
    began = time.time()
    done = run(place)
    assert done.returncode == 0 and "2 of 2 trials are measured already" in done.stdout
    assert not any(path.stat().st_mtime > began for path in place.glob("runs/*/*/sessions/*/server.log"))
    assert [arm.point for arm in read_summary(newest(place) / "summary.json").arms] == [
        arm.point for arm in first[2].arms
    ]


def test_the_plain_target_tells_how_close_its_choices_were(first: First, tmp_path: Path) -> None:
    _, directory, _ = first
    experiment = load([*COMMAND[3:]])
    session = next(one for one in planned(experiment).sessions if one.arm.name == "plain")
    plain = next(one for one in store.load(directory)[1] if one.arm == "plain")
    with Interrupt() as interrupt, Display(Console(quiet=True), 1) as display:
        (answer,) = probe(
            session, {plain.prompt_id: 5}, make_runner(session.arm), tmp_path, display, interrupt, plain.trial_key
        )
    assert answer.phase == "probe" and answer.output_ids == plain.output_ids[:5], "logprobs change no token"
    assert answer.top2 is not None and len(answer.top2) == 5
    for token, ((best, best_logprob), (second, second_logprob)) in zip(answer.output_ids, answer.top2, strict=True):
        assert best == token != second and 0 >= best_logprob >= second_logprob
    changed = {"arm": "ngram", "output_ids": [*plain.output_ids[:4], -1], "completion_tokens": 5}
    forked = plain.model_copy(update=changed)
    fork = check([plain, answer, forked], "plain")["ngram"].forks[0]
    assert fork.position == 4 and fork.margin == answer.top2[4][0][1] - answer.top2[4][1][1]


@pytest.fixture
def under_way(place: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A run that has its first record of the plain arm, in a place of its own."""
    with going(tmp_path, lambda: kept(tmp_path), LONGER) as process:
        yield process, tmp_path


def test_ctrl_c_stops_the_server_keeps_the_records_and_the_next_run_goes_on(
    under_way: tuple[subprocess.Popen[str], Path],
) -> None:
    process, place = under_way
    before = len(kept(place))
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert engines(place) == []
    assert "Stopped by SIGINT" in out and "0 of 2 trials are finished" in out
    assert "Traceback" not in out
    after = kept(place)
    assert len(after) >= before and after[-1].outcome in ("ok", "cancelled")
    done = run(place, LONGER)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_summary(newest(place) / "summary.json").status == "finished"


def test_a_killed_orchestrator_leaves_no_server_behind(under_way: tuple[subprocess.Popen[str], Path]) -> None:
    process, place = under_way
    assert len(engines(place)) == 1
    process.kill()
    process.wait()
    eventually(lambda: engines(place) == [], seconds=15)
    assert kept(place)[0].outcome == "ok"


def test_a_server_that_dies_fails_its_arm_and_not_the_other(under_way: tuple[subprocess.Popen[str], Path]) -> None:
    process, place = under_way
    (engine,) = engines(place)
    engine.kill()
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 1, out
    assert "plain: the server ended while it served (signal SIGKILL)" in out and "log: " in out
    summary = read_summary(newest(place) / "summary.json")
    assert summary.status == "failed"
    assert {arm.name: bool(arm.points) for arm in summary.arms} == {"plain": False, "ngram": True}
    assert engines(place) == []


def test_a_port_in_use_is_refused_by_name(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run(tmp_path, f"runner.port={port}")
    assert done.returncode == 1
    assert f"runner.port={port} cannot be used (Address already in use)" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert len(re.findall("cannot be used", done.stdout)) >= 1 and engines(tmp_path) == []
