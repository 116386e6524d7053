"""The command against a real SGLang 0.5.23, on a CPU: it is started, proven, measured and stopped, and tells why where
it cannot."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.analysis.acceptance import disagreement
from orchestrator.analysis.results import Arm, Summary, read_summary
from orchestrator.measuring import store
from runners.attach import AttachRunner
from runners.base import Launch, ServerFailure
from runners.process import ProcessRunner
from runners.sglang.software import SglangSoftware
from tests.command_process import ENVIRONMENT, ROOT, eventually
from tests.sglang_cpu import rig

pytestmark = pytest.mark.sglang
CONFIG_DIR = ROOT / "tests/sglang_cpu/conf"


def command(target: Path, *overrides: str) -> list[str]:
    return [
        sys.executable, "-m", "orchestrator", "--config-dir", str(CONFIG_DIR), "+experiment=sglang_drafters",
        "suite=lists_3", "tracking=none", "order=once", *rig.overrides(target), *overrides,
    ]  # fmt: skip


def servers() -> list[psutil.Process]:
    """Processes of the environment that has SGLang."""
    place, found = str(rig.python().parents[1]), []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        # A process that names itself (sglang::scheduler) has no other sign than where its code lies.
        if any(place in word or word.startswith("sglang::") for word in words) and "orchestrator" not in words:
            found.append(process)
    return found


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, target_folder: Path) -> tuple[str, Path, Summary]:
    """One whole run of three arms: what it said, where it is, its result."""
    place = tmp_path_factory.mktemp("sglang")
    done = subprocess.run(
        command(target_folder), cwd=place, env=ENVIRONMENT, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    (directory,) = (place / "runs/sglang_drafters").iterdir()
    return done.stdout, directory, read_summary(directory / "summary.json")


Measured = tuple[str, Path, Summary]


def arm(measured: Measured, name: str) -> Arm:
    return next(arm for arm in measured[2].arms if arm.name == name)


def test_every_server_was_ready_and_none_is_left(measured: Measured) -> None:
    said, directory, summary = measured
    assert summary.status == "finished" and said.count("server ready after") == 3
    assert servers() == []
    assert not {finding.code for finding in summary.findings if finding.severity == "error"}
    for name in ("plain", "ngram", "standalone"):
        (folder,) = directory.glob(f"sessions/*-{name}")
        assert "--served-model-name smollm2_135m-" in (folder / "command.txt").read_text()


def test_what_serves_is_what_was_asked_for(measured: Measured) -> None:
    _, directory, _ = measured
    entries, records = store.load(directory)
    assert len(records) == 9 and {record.outcome for record in records} == {"ok"}
    asked = {"plain": None, "ngram": "NGRAM", "standalone": "STANDALONE"}
    for entry in entries:
        known = entry.server.identity
        assert known["version"] == "0.5.23" and known["speculative_algorithm"] == asked[entry.server.arm]
        assert known["attention_backend"] == "intel_amx" and known["device"] == "cpu"
        assert known["server_log"]["token_capacity"] == 8192
        assert known["server_log"]["memory_gib"]["target_weights"] is not None


def test_every_drafter_gives_the_plain_text(measured: Measured) -> None:
    for name in ("ngram", "standalone"):
        found = arm(measured, name).lossless
        assert found is not None and (found.identical, found.compared, found.forks) == (3, 3, [])


def test_acceptance_is_read_from_its_counters(measured: Measured) -> None:
    _, directory, _ = measured
    _, records = store.load(directory)
    assert [disagreement(record) for record in records if record.arm != "plain"] == [None] * 6
    tau = {}
    for name in ("ngram", "standalone"):
        point = arm(measured, name).point
        assert point is not None and point.acceptance is not None
        tau[name] = point.acceptance.tau
    assert 1 < tau["ngram"] < 8, "the lists repeat themselves"
    assert 3.5 < tau["standalone"] <= 4, "the target drafts for itself, three tokens at a time, less at an end"
    plain = arm(measured, "plain").point
    assert plain is not None and plain.acceptance is None


def test_its_memory_is_that_of_its_processes(measured: Measured) -> None:
    memory = arm(measured, "plain").memory
    assert memory is not None and memory.kind == "rss" and 1 < memory.gib < 8


class Unchecked(SglangSoftware):
    """Starts what its own check would refuse."""

    def launch(self, host: str, port: int, ask: Any) -> Launch:
        made = super().launch(host, port, ask)
        return Launch([*made.words, *self.more], made.env)

    more: tuple[str, ...] = ()


def runner(target: Path, software: type[SglangSoftware], **drafter: Any) -> tuple[ProcessRunner, dict[str, Any]]:
    """A runner of one server whose drafter is the target itself, and its server config."""
    arm = ["drafter=standalone", f"+drafter.checkpoints.smollm2_135m={{path: '{target}'}}"]
    one, config = rig.one_server(target, arm, software=software)
    config["drafter"] |= drafter
    return one, config


def failed_start(target: Path, place: Path, software: type[SglangSoftware], **drafter: Any) -> ServerFailure:
    one, config = runner(target, software, **drafter)
    with pytest.raises(ServerFailure) as caught:
        one.start(config, place, lambda text: None)
    assert servers() == []
    return caught.value


def test_a_flag_that_this_sglang_does_not_have_is_refused_before_it_starts(tmp_path: Path, target_folder: Path) -> None:
    done = subprocess.run(
        command(target_folder, "+server_args.moe-runner-backend=tritonn", "~arms.ngram", "~arms.standalone"),
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "--moe-runner-backend tritonn is not allowed here" in done.stdout
    assert "nearest: triton" in done.stdout and not list(tmp_path.glob("runs/*/*/sessions/*/server.log"))


def test_a_flag_that_it_refuses_itself_is_told_from_its_log(tmp_path: Path, target_folder: Path) -> None:
    software = type("Wrong", (Unchecked,), {"more": ("--no-such-flag", "1")})
    failure = failed_start(target_folder, tmp_path, software)
    assert (failure.cause, failure.served) == ("argument", False)
    assert "unrecognized arguments: --no-such-flag" in str(failure)


def test_a_drafter_that_is_not_there_is_told_from_its_log(tmp_path: Path, target_folder: Path) -> None:
    failure = failed_start(target_folder, tmp_path, SglangSoftware, path="/nowhere/draft")
    assert (failure.cause, failure.served) == ("weights", False)
    assert "/nowhere/draft" in f"{failure}\n{failure.detail}"


def test_a_port_that_another_server_has_is_told_from_its_log(tmp_path: Path, target_folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        more = ("--port", str(taken.getsockname()[1]))
        failure = failed_start(target_folder, tmp_path, type("Taken", (Unchecked,), {"more": more}))
    assert (failure.cause, failure.served) == ("port_in_use", False) and "runner.port=null" in str(failure)


def test_a_server_is_attached_to_and_found_dead_with_nothing_left_when_its_scheduler_is(
    tmp_path: Path, target_folder: Path
) -> None:
    one, config = runner(target_folder, SglangSoftware)
    handle = one.start(config, tmp_path, lambda text: None)
    try:
        (tmp_path / "attached").mkdir()
        other = AttachRunner(handle.url, here=True)
        found = other.start(config, tmp_path / "attached", lambda text: None)
        assert found.identity["speculative_algorithm"] == "STANDALONE" and found.tokenizer == target_folder
        assert set(found.pids) <= set(handle.pids) and found.pids
        alone = {**config, "drafter": {**config["drafter"], "algorithm": None}}
        with pytest.raises(ServerFailure, match="speculative_algorithm is STANDALONE, asked for was None"):
            other.start(alone, tmp_path / "attached", lambda text: None)
        other.stop(found)
        assert other.failure(found) is None, "it is not ours to stop"
        (scheduler,) = [process for process in servers() if "scheduler" in " ".join(process.cmdline())]
        scheduler.send_signal(signal.SIGKILL)
        eventually(lambda: one.failure(handle) is not None, 60)
        failure = one.failure(handle)
        assert failure is not None and failure.served and failure.cause in ("killed", "died"), failure
        gone = other.failure(found)
        assert gone is not None and gone.cause == "unreachable"
    finally:
        one.stop(handle)
    assert servers() == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_ends_while_its_server_loads_leaves_no_process(
    tmp_path: Path, target_folder: Path, how: signal.Signals
) -> None:
    process = subprocess.Popen(
        command(target_folder), cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        logs = lambda: list(tmp_path.glob("runs/*/*/sessions/00-plain/server.log"))  # noqa: E731
        eventually(lambda: process.poll() is not None or (logs() and "Load weight begin" in logs()[0].read_text()))
        assert len(servers()) > 1
        os.killpg(process.pid, how)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    if how == signal.SIGINT:
        assert process.returncode == 130 and "Stopped by" in said
    else:
        eventually(lambda: servers() == [], 10)
    assert servers() == []
