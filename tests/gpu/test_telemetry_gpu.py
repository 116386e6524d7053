"""Telemetry against real NVML. By hand, on a machine with an NVIDIA GPU, torch, psutil, nvidia-ml-py, pydantic, orjson:

    python -m pytest -s tests/gpu/test_telemetry_gpu.py      or, without pytest,
    PYTHONPATH=. python tests/gpu/test_telemetry_gpu.py

It takes about a minute, loads GPU 0 and needs 12 GiB of its memory. What it measured is printed as JSON lines.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from orchestrator.analysis.baseline import gpu_bandwidth
from orchestrator.measuring.records import RequestRecord
from orchestrator.telemetry import samples
from orchestrator.telemetry.sampler import Sampler
from orchestrator.telemetry.window import TrialUsage, usage
from runners.telemetry.gpu import Gpus

GIB = 2**30
LOAD_S = 8.0
FAKE = Path(__file__).parents[1] / "fake_nvml/pynvml.py"
WORK = """
import sys, time, torch
held = torch.empty(int(sys.argv[1]) * 2**30, dtype=torch.uint8, device="cuda").fill_(1)
a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
torch.cuda.synchronize()
print("ready", flush=True)
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    for _ in range(20):
        b = a @ a
    torch.cuda.synchronize()
print("done", flush=True)
time.sleep(600)
"""
BANDWIDTH = """
import time, torch
a = torch.empty(4 * 2**30, dtype=torch.uint8, device="cuda").fill_(1)
b = torch.empty_like(a)
best = 0.0
for _ in range(20):
    torch.cuda.synchronize(); started = time.perf_counter()
    b.copy_(a)
    torch.cuda.synchronize(); best = max(best, 2 * a.numel() / (time.perf_counter() - started))
print(best)
"""


def say(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


@contextmanager
def computing(gib: int, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """A process that holds so much GPU memory and multiplies matrices; ready when this yields."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORK, str(gib), str(seconds)], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()


def window(start: float, end: float) -> RequestRecord:
    """A request of 1000 tokens that took the whole window."""
    return RequestRecord(
        trial_key="t", arm="plain", session_index=0, phase="measure", prompt_id="p", category="c", prompt_sha256="0",
        repeat=0, sent_wall_time=0.0, sent_at=start, chunks=[], e2e_s=end - start, prompt_tokens=1,
        completion_tokens=1000, cached_tokens=0, output_ids=[], text="", finish_reason="length", spec=None,
        outcome="ok",
    )  # fmt: skip


def loaded(server_gib: int, other_gib: int = 0) -> tuple[TrialUsage, samples.Samples]:
    """What the sampler says of a server that computes for some seconds, with or without a neighbour."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "telemetry.jsonl"
        neighbour: AbstractContextManager[Any] = computing(other_gib, 0.0) if other_gib else nullcontext()
        with neighbour, Sampler(path, "0") as sampler, computing(server_gib, LOAD_S) as server:
            sampler.watch([server.pid])
            time.sleep(0.5)  # CPU time is read off at the window's two ends, so a sample of the server comes before it
            sampler.synchronize()
            start = time.perf_counter()
            time.sleep(LOAD_S - 3)
            end = time.perf_counter()
            sampler.synchronize()
        read = samples.read(path)
    found = usage(read, [window(start, end)])
    assert found is not None
    return found, read


def test_the_real_binding_has_every_name_that_the_fake_has() -> None:
    import pynvml

    spec = importlib.util.spec_from_file_location("fake", FAKE)
    assert spec is not None and spec.loader is not None
    fake = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fake)
    constants = [name for name in vars(fake) if name.startswith(("NVML_", "nvmlMemory"))]
    missing = [name for name in [*constants, *fake._FUNCTIONS] if not hasattr(pynvml, name)]
    assert missing == [], missing
    assert all(getattr(pynvml, name) == getattr(fake, name) for name in constants)


def test_a_data_centre_gpu_answers_every_field() -> None:
    gpus = Gpus("0")
    assert gpus.absent is None, gpus.absent
    (facts,), (reading,) = gpus.describe(), gpus.read()
    say(facts=facts, reading=reading, driver=gpus.driver)
    missing = {name for name, value in facts.items() if value is None}
    assert missing <= {"numa_node", "nvlinks"}, facts  # a virtual machine may show neither
    unknown = [name for name, value in reading.items() if value is None]
    assert not set(unknown) - {"processes"}, f"refused: {unknown}"
    assert 10 < reading["power_w"] < 1500 and 10 < reading["temperature_c"] < 110
    assert 100 <= reading["sm_mhz"] <= facts["sm_max_mhz"] and reading["memory_mhz"] <= facts["memory_max_mhz"]


def test_a_sample_costs_little() -> None:
    gpus = Gpus("0")
    gpus.read()
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(100):
        gpus.read()
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    say(read_ms=10 * wall, read_cpu_ms=10 * cpu)
    assert wall / 100 < 0.05, "half of the time between two samples"


def test_energy_by_counter_and_by_power_agree_under_load() -> None:
    found, read = loaded(4)
    (gpu,) = found.gpus
    say(
        usage=json.loads(found.model_dump_json()), power_is=read.start["gpus"][0]["power_is"],
        sampler_core_share=(found.sampler_cpu_s or 0) / found.seconds,
    )  # fmt: skip
    assert found.absent is None and found.longest_gap_s < 1 and found.samples > 8 * found.seconds
    assert gpu.utilisation is not None and gpu.utilisation.mean > 0.9, "matrices were multiplied all the time"
    assert gpu.used_bytes is not None and gpu.used_bytes.high > 4 * GIB
    assert gpu.counter_j is not None and gpu.integrated_j is not None
    assert abs(gpu.counter_j / gpu.integrated_j - 1) < 0.05, (gpu.counter_j, gpu.integrated_j)
    assert gpu.throttled is not None, "throttle reasons are told"
    assert found.rss_bytes is not None and found.cpu_s is not None and found.cpu_s > 0
    assert found.sampler_cpu_s is not None and found.sampler_cpu_s < 0.1 * found.seconds


def test_memory_of_another_process_is_told_apart_where_processes_are_told() -> None:
    found, read = loaded(4, other_gib=2)
    (gpu,) = found.gpus
    listed = read.lines[-1]["gpus"][0]["processes"]
    say(
        processes=listed,
        server=gpu.server_bytes and gpu.server_bytes.high,
        other=gpu.other_bytes and gpu.other_bytes.high,
    )
    if gpu.server_bytes is None:  # process ids of another namespace, or none at all: nothing may be claimed
        assert gpu.other_bytes is None
        return
    assert gpu.server_bytes.high > 4 * GIB
    assert gpu.other_bytes is not None and 2 * GIB < gpu.other_bytes.high < 4 * GIB


def test_a_server_that_dies_leaves_the_gpu_figures() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "telemetry.jsonl"
        with Sampler(path, "0") as sampler:
            with computing(2, 30.0) as server:
                sampler.watch([server.pid])
                sampler.synchronize()
                time.sleep(1)
            time.sleep(1)
            sampler.synchronize()
        read = samples.read(path)
    assert read.lines[-1]["server"] is None and any(line["server"] for line in read.lines)
    assert all(line["gpus"][0]["used_bytes"] is not None for line in read.lines)
    assert read.end == {"kind": "end", "code": 0, "said": ""}, read.end


def test_the_bandwidth_of_the_data_sheet_is_nearly_reached() -> None:
    (facts,) = Gpus("0").describe()
    stated = gpu_bandwidth([facts])
    by_bus = gpu_bandwidth([facts | {"name": "unknown"}])
    done = subprocess.run([sys.executable, "-c", BANDWIDTH], capture_output=True, text=True, check=True)
    copied = float(done.stdout)
    say(stated=stated, by_bus=by_bus, copied=copied)
    assert stated.value is not None, stated.source
    assert 0.75 < copied / stated.value < 1.02, "a copy of 4 GiB, read and written"
    assert by_bus.value is None or abs(by_bus.value / stated.value - 1) < 0.05


if __name__ == "__main__":
    failed = 0
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            try:
                test()
                print(f"ok      {name}", flush=True)
            except AssertionError as problem:
                failed += 1
                print(f"FAILED  {name}: {problem}", flush=True)
    sys.exit(failed)
