"""Telemetry of the real embedded engine: what is told of its memory and time is so, and nothing outlives anything."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from orchestrator.analysis.results import Summary, read_summary
from orchestrator.measuring import store
from orchestrator.measuring.records import RequestRecord
from orchestrator.telemetry import samples
from orchestrator.telemetry.sampler import Sampler
from orchestrator.telemetry.window import usage
from tests.command_process import eventually, going, processes, start
from tests.engine_process import Engine, running
from tests.record_factory import record

LONGER = "suite.max_new_tokens.default=96"


def telemetry(place: Path) -> list[Path]:
    return sorted(place.glob("runs/*/*/sessions/*/telemetry*.jsonl"))


def serving(place: Path) -> bool:
    """Whether the server was seen to generate: some CPU time after it was first sampled."""
    for path in telemetry(place):
        seconds = [line["server"]["cpu_s"] for line in samples.read(path).lines if line["server"]]
        if seconds and seconds[-1] > seconds[0] + 1:
            return True
    return False


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, target_folder: Path) -> tuple[Path, Summary]:
    """One run of the command to its end: its directory and its summary."""
    place = tmp_path_factory.mktemp("telemetry")
    process = start(place)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    (run,) = (place / "runs/embedded_drafters").iterdir()
    assert processes(place, "runners.telemetry") == [], "a sampler was left running"
    return run, read_summary(run / "summary.json")


def test_every_trial_has_telemetry_without_a_hole(finished: tuple[Path, Summary]) -> None:
    run, summary = finished
    entries, _ = store.load(run)
    assert len(entries) == 2 and all(entry.usage and entry.telemetry for entry in entries)
    for arm in summary.arms:
        assert arm.point is not None and arm.point.usage is not None
        used = arm.point.usage
        assert used.absent is None and used.longest_gap_s < 1
        assert used.rss_peak_bytes is not None and used.rss_peak_bytes > 2**29, "the weights alone are more"
        assert arm.memory is not None and used.rss_peak_bytes <= arm.memory.peak_bytes * 1.01
        assert used.cpu_cores_mean is not None and 0.05 < used.cpu_cores_mean <= psutil.cpu_count() * 1.05
        assert used.sampler_share is not None and 0 < used.sampler_share < 0.1
        assert used.energy_j is None and all(trial.gpus == [] for trial in used.trials), "it has no GPU"
    codes = {finding.code for finding in summary.findings}
    assert not codes & {"telemetry_missing", "telemetry_gaps", "no_gpu_telemetry", "gpu_shared", "throttled"}


def test_the_plain_arm_stands_against_the_bandwidth_of_this_machine(finished: tuple[Path, Summary]) -> None:
    _, summary = finished
    plain = summary.baseline
    assert plain is not None and plain.ceiling is not None
    assert plain.ceiling.weights_bytes == pytest.approx(4 * 134.5e6, rel=0.01), "135M parameters in float32, head tied"
    assert plain.ceiling.bandwidth_source.startswith("reading 512 MiB with ")
    assert plain.bandwidth_share is not None and 0.02 < plain.bandwidth_share < 2
    assert all(arm.ceiling is None for arm in summary.arms if not arm.baseline)


def test_clocks_of_sampler_and_client_are_one_on_one_machine(finished: tuple[Path, Summary]) -> None:
    run, _ = finished
    for path in run.glob("sessions/*/telemetry.jsonl"):
        clocks = samples.read(path).clocks
        assert len(clocks) >= 3
        assert all(abs(clock.offset_s) <= clock.error_s < 1 for clock in clocks)


def generate(engine: Engine, tokens: int) -> RequestRecord:
    """A request as the client would record it."""

    body = {"text": "Count to a hundred: 1, 2,", "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}
    asked = urllib.request.Request(
        f"{engine.url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    sent = time.perf_counter()
    with urllib.request.urlopen(asked, timeout=300) as answer:
        meta = json.load(answer)["meta_info"]
    return record(sent_at=sent, e2e_s=time.perf_counter() - sent, completion_tokens=meta["completion_tokens"])


def test_memory_and_time_are_those_that_the_system_counts(target_folder: Path, tmp_path: Path) -> None:
    with running(target_folder, tmp_path / "server.log") as engine, Sampler(tmp_path / "t.jsonl", "none") as sampler:
        sampler.watch([engine.process.pid])
        sampler.synchronize()
        process = psutil.Process(engine.process.pid)
        before = sum(process.cpu_times()[:2])
        asked = generate(engine, 60)
        sampler.synchronize()
        counted = sum(process.cpu_times()[:2]) - before
        resident = process.memory_info().rss
    found = usage(samples.read(tmp_path / "t.jsonl"), [asked])
    assert found is not None and found.output_tokens == 60
    assert found.cpu_s == pytest.approx(counted, abs=0.15, rel=0.1)
    assert found.rss_bytes is not None and found.rss_bytes.high == pytest.approx(resident, rel=0.05)
    assert found.samples >= 3 * found.seconds, "ten a second, fewer on a busy machine"


def test_a_server_that_is_killed_costs_its_run_and_not_the_sampler(target_folder: Path, tmp_path: Path) -> None:
    with going(tmp_path, lambda: serving(tmp_path), LONGER) as run:
        (engine,) = processes(tmp_path, "runners.engine")
        engine.kill()
        said, _ = run.communicate(timeout=300)
    assert run.returncode == 1 and "it was killed (signal 9)" in said
    first = samples.read(telemetry(tmp_path)[0])
    assert first.end == {"kind": "end", "code": 0, "said": ""}, "the sampler ended when it was told to"
    states = [line["server"] is not None for line in first.lines]
    assert True in states and states[-1] is False, "it saw the server go"
    assert processes(tmp_path, "runners.telemetry") == []


def test_a_killed_sampler_is_told_and_costs_no_trial(target_folder: Path, tmp_path: Path) -> None:
    with going(tmp_path, lambda: serving(tmp_path), LONGER) as run:
        (sampler,) = processes(tmp_path, "runners.telemetry")
        sampler.kill()
        said, _ = run.communicate(timeout=300)
    assert run.returncode == 0, said
    (directory,) = (tmp_path / "runs/embedded_drafters").iterdir()
    summary = read_summary(directory / "summary.json")
    (found,) = [one for one in summary.findings if one.code in ("telemetry_gaps", "telemetry_missing")]
    assert "code -9" in found.text
    assert all(arm.point is not None for arm in summary.arms)


def test_no_sampler_outlives_an_orchestrator_that_was_killed(target_folder: Path, tmp_path: Path) -> None:
    with going(tmp_path, lambda: processes(tmp_path, "runners.telemetry"), LONGER):
        pass
    eventually(lambda: not processes(tmp_path, "runners.telemetry"), 10)
    eventually(lambda: not processes(tmp_path, "runners.engine"), 60)
