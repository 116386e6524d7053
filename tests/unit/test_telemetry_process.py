"""The sampler as a process: what it writes, and that it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from orchestrator.telemetry import sampler as module
from orchestrator.telemetry.sampler import Sampler
from orchestrator.telemetry.samples import read
from runners.telemetry.processes import Host, Processes

ROOT = Path(__file__).parents[2]
FAST = (*module.COMMAND, "--interval-ms", "20")
BURN = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nprint(1, flush=True)"


def eventually(condition: Callable[[], Any], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def python(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_it_samples_on_a_grid_says_what_it_costs_and_ends_with_its_input(tmp_path: Path) -> None:
    with Sampler(tmp_path / "telemetry.jsonl", "none", FAST) as sampler:
        sampler.synchronize()
        time.sleep(0.5)
        sampler.synchronize()
        process = sampler._process
        assert process is not None and process.poll() is None
    assert process.returncode == 0
    found = read(sampler.path)
    assert found.start["schema"] == 1 and found.start["interval_s"] == 0.02 and found.start["gpus"] == []
    assert found.end == {"kind": "end", "code": 0, "said": ""}
    times = [line["mono"] for line in found.lines]
    assert times == sorted(times) and len(times) >= 10
    costs = [line["cpu_s"] for line in found.lines]
    assert costs == sorted(costs) and costs[-1] > 0
    assert all(line["server"] is None for line in found.lines), "nothing is watched"
    assert found.start["cores"] == psutil.cpu_count()
    assert all(line["host"]["client_cpu_s"] > 0 for line in found.lines), "this process is the client"


def test_on_one_machine_both_clocks_are_the_same(tmp_path: Path) -> None:
    with Sampler(tmp_path / "telemetry.jsonl", "none") as sampler:
        before = time.perf_counter()
        for _ in range(3):
            sampler.synchronize()
        after = time.perf_counter()
    clocks = read(sampler.path).clocks
    assert len(clocks) == 3
    for clock in clocks:
        assert before <= clock.at <= after
        assert abs(clock.offset_s) <= clock.error_s, "the offset is known to within its stated error"


def test_it_is_an_error_neither_to_ask_for_a_gpu_nor_to_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests/fake_nvml'}")
    with Sampler(tmp_path / "gpu.jsonl", "all") as sampler:
        sampler.synchronize()
        assert [gpu["name"] for gpu in sampler.gpus] == ["NVIDIA H200"]
    assert read(sampler.path).lines[0]["gpus"][0]["power_w"] == 300.0
    monkeypatch.setenv("FAKE_NVML_REFUSES", "nvmlInit")
    with Sampler(tmp_path / "none.jsonl", "all") as sampler:
        sampler.synchronize()
    assert read(sampler.path).start["gpus_absent"] == "NVML: Not Supported"
    assert read(sampler.path).end["code"] == 0


def test_memory_and_time_of_a_process_tree_are_those_of_all_its_processes() -> None:
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}]); x = bytearray(64 * 2**20)\n"
    parent = python(inner + "print(2, flush=True); input()")
    try:
        assert parent.stdout is not None and parent.stdout.readline() == b"1\n"
        assert parent.stdout.readline() == b"2\n"
        reading = Processes([parent.pid]).read()
        assert reading is not None and reading["pids"] == [parent.pid]
        assert reading["cpu_s"] >= 0.3, "the child that ended burned it"
        assert 64 * 2**20 <= reading["rss_bytes"] <= psutil.Process(parent.pid).memory_info().rss * 1.1
    finally:
        parent.kill()
        parent.wait()


def test_children_are_found_and_processes_that_end_are_left_out() -> None:
    code = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()'])\nprint(p.pid, flush=True); "
    parent = python(code + "p.wait()")
    watched = Processes([parent.pid])
    try:
        assert parent.stdout is not None and parent.stdin is not None
        child = int(parent.stdout.readline())
        reading = watched.read()
        assert reading is not None and reading["pids"] == [parent.pid, child]
    finally:
        parent.kill()
    eventually(lambda: (watched.read() or {}).get("pids") == [child])
    parent.stdin.close()  # which the child reads, too
    eventually(lambda: watched.read() is None)
    parent.wait()
    assert watched.read() is None


def test_a_process_that_never_was_is_nothing() -> None:
    assert Processes([2**22 + 1]).read() is None
    assert Processes([]).read() is None


def test_without_psutil_the_reason_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    processes = Processes([1])
    processes.watch([1])
    assert processes.read() is None
    assert processes.absent == "psutil is not installed where the server runs"
    assert Host(os.getpid()).cores is None and Host(os.getpid()).read() is None


def test_the_node_is_as_busy_as_what_runs_on_it_and_the_client_is_told_apart() -> None:
    host = Host(os.getpid())
    before, own = host.read(), time.process_time()
    burner = python(BURN)
    assert burner.stdout is not None and burner.stdout.readline() == b"1\n"
    after = host.read()
    burner.communicate()
    assert before is not None and after is not None and host.cores == psutil.cpu_count()
    assert (after["busy_s"] or 0) - (before["busy_s"] or 0) >= 0.25, "0.3 s were burned; the node counts in ticks"
    client = (after["client_cpu_s"] or 0) - (before["client_cpu_s"] or 0)
    assert client == pytest.approx(time.process_time() - own, abs=0.03) and client < 0.25, "not its child's"


def test_a_node_that_shows_zeros_or_no_client_is_no_idle_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(_asdict=lambda: {"user": 0.0, "idle": 0.0}))
    assert Host(os.getpid()).read() is None
    monkeypatch.undo()
    reading = Host(2**22 + 1).read()
    assert reading is not None and reading["client_cpu_s"] is None and (reading["busy_s"] or 0) > 0


def test_a_killed_sampler_costs_samples_and_nothing_else(tmp_path: Path) -> None:
    sampler = Sampler(tmp_path / "telemetry.jsonl", "none", FAST)
    sampler.synchronize()
    assert sampler._process is not None
    os.kill(sampler._process.pid, signal.SIGKILL)
    sampler._process.wait()
    began = time.monotonic()
    sampler.watch([1])
    sampler.synchronize()
    sampler.close()
    sampler.close()
    assert time.monotonic() - began < 1, "nobody waits for a dead sampler"
    found = read(sampler.path)
    assert found.end["code"] == -signal.SIGKILL and found.lines


def test_a_sampler_that_does_not_start_says_why(tmp_path: Path) -> None:
    with Sampler(tmp_path / "one.jsonl", "none", ["/there/is/no/such/program"]) as sampler:
        sampler.watch([1])
        sampler.synchronize()
    assert "the sampler did not start" in read(sampler.path).end["said"]
    with Sampler(tmp_path / "two.jsonl", "none", [sys.executable, "-c", "raise SystemExit('no such node')"]) as sampler:
        sampler.synchronize()
    assert read(sampler.path).end == {"kind": "end", "code": 1, "said": "no such node"}


def test_a_sampler_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ANSWER_S", 0.1)
    monkeypatch.setattr(module, "_END_S", 0.2)
    with Sampler(tmp_path / "one.jsonl", "none", [sys.executable, "-c", "import time; time.sleep(60)"]) as sampler:
        process = sampler._process
        assert process is not None
        sampler.synchronize()
    assert process.returncode == -signal.SIGKILL


def test_it_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from orchestrator.telemetry.sampler import Sampler\n"
        f"s = Sampler(Path({str(tmp_path / 'telemetry.jsonl')!r}), 'none')\n"
        "print(s._process.pid, flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert psutil.pid_exists(pid)
    owner.kill()
    owner.wait()
    eventually(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_commands_that_make_no_sense_are_answered_and_it_goes_on() -> None:
    commands = b'nonsense\n{"dance": 1}\n\n[1]\n{"clock": 5}\n'
    done = subprocess.run(
        [*module.COMMAND, "--gpus", "none"], input=commands, capture_output=True, cwd=ROOT, timeout=60
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and done.stderr == b""
    assert [line["command"] for line in lines if line["kind"] == "refused"] == [
        {"not understood": "nonsense"}, {"dance": 1}, {"not understood": "[1]"}
    ]  # fmt: skip
    assert [line["id"] for line in lines if line["kind"] == "reply"] == [5]


def test_a_wrong_interval_is_refused() -> None:
    done = subprocess.run([*module.COMMAND, "--interval-ms", "0"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and "0: at least 1 ms" in done.stderr


def test_it_needs_nothing_of_the_project_but_itself() -> None:
    code = "import sys, runners.telemetry.__main__; print([name for name in sys.modules if 'orchestrator' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr
    code = "import sys, runners.telemetry.__main__; print('psutil' in sys.modules, 'pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "False False", done.stderr
