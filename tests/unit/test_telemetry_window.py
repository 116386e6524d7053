"""From samples to what a trial took, against figures that are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.measuring.records import RequestRecord
from orchestrator.telemetry import samples
from orchestrator.telemetry.names import figures
from orchestrator.telemetry.pool import pool
from orchestrator.telemetry.window import TrialUsage, span, usage
from tests.record_factory import record
from tests.telemetry_factory import tenths, write

TRIAL = [record(sent_at=10.0, e2e_s=4.0), record(sent_at=14.05, e2e_s=5.95)]
"""From 10 to 20 s, 8 tokens."""


def measured(path: Path, records: list[RequestRecord] = TRIAL) -> TrialUsage:
    found = usage(samples.read(path), records)
    assert found is not None
    return found


def test_the_window_is_first_send_to_last_byte_of_the_measured_requests() -> None:
    warm = record(phase="warmup", sent_at=1.0, e2e_s=100.0)
    assert span([warm, *TRIAL]) == (10.0, 20.0)
    broken = record(sent_at=21.0, e2e_s=None, outcome="error")
    assert span([*TRIAL, broken]) == (10.0, 21.0 + broken.chunks[-1][0]), "its last chunk stands in"
    assert span([warm]) is None and usage(samples.Samples({}, {}, [], []), [warm]) is None


def test_energy_by_counter_and_by_power_agree_with_what_was_drawn(tmp_path: Path) -> None:
    """Power rises by 20 W/s, so 10..20 s take 10 s at its mean, 100 + 20 * 15 W."""
    path = write(
        tmp_path / "t.jsonl", tenths(0, 30), lambda t: {"power_w": 100 + 20 * t, "energy_j": 100 * t + 10 * t * t}
    )
    found = measured(path)
    (gpu,) = found.gpus
    assert gpu.integrated_j == pytest.approx(4000)
    assert gpu.counter_j == pytest.approx(4000, rel=1e-3), "linear between two readings"
    assert found.energy_j == gpu.counter_j
    pooled = pool([found])
    assert pooled is not None and pooled.energy_per_token_j == pytest.approx(500, rel=1e-3)
    assert gpu.power_w is not None and gpu.power_w.mean == pytest.approx(400, rel=0.01)
    assert (gpu.power_w.low, gpu.power_w.high) == (300, 500)


def test_the_ends_of_the_window_are_interpolated(tmp_path: Path) -> None:
    """Half a watt-second more or less per end would be seen: 0.05 s at 1000 W."""
    path = write(tmp_path / "t.jsonl", [t + 0.05 for t in tenths(0, 30)], lambda t: {"power_w": 1000, "energy_j": None})
    found = measured(path)
    assert found.gpus[0].counter_j is None and found.energy_j == pytest.approx(10_000)


def test_samples_are_placed_on_the_clock_that_stamped_the_requests(tmp_path: Path) -> None:
    """On another node the clock starts elsewhere: what happened from 10 to 20 s here stays from 10 to 20 s."""

    def hot(t: float) -> dict[str, Any]:
        return {"temperature_c": 80 if 10 <= t <= 20 else 30}

    found = measured(write(tmp_path / "t.jsonl", tenths(0, 30), hot, offset=86_400.0))
    assert found.gpus[0].temperature_c is not None and found.gpus[0].temperature_c.low == 80
    assert found.samples in (100, 101) and found.clock_error_s == pytest.approx(0.001)


def test_server_and_sampler_time_are_differences_over_the_window(tmp_path: Path) -> None:
    found = measured(write(tmp_path / "t.jsonl", tenths(0, 30)))
    assert found.cpu_s == pytest.approx(15) and found.sampler_cpu_s == pytest.approx(0.1)
    assert found.rss_bytes is not None and found.rss_bytes.high == 2**30
    pooled = pool([found])
    assert pooled is not None
    assert pooled.cpu_per_token_s == pytest.approx(15 / 8) and pooled.cpu_cores_mean == pytest.approx(1.5)
    assert pooled.sampler_share == pytest.approx(0.01)
    assert pooled.energy_j is None and pooled.vram_peak_bytes is None, "no GPU, no figure of one"


@pytest.mark.parametrize(
    ("busy", "client", "others"),
    [
        (1.9, 0.05, 0.34),  # the server 1.5, the sampler 0.01
        (1.9, None, 0.39),  # a client on another machine
        (1.5, 0.05, 0.0),  # ticks of the node that fell short
    ],
)
def test_what_nobody_here_used_of_the_node_was_used_by_others(
    tmp_path: Path, busy: float, client: float | None, others: float
) -> None:
    def host(t: float) -> dict[str, Any]:
        return {"busy_s": 900 + busy * t, "client_cpu_s": None if client is None else 7 + client * t}

    found = measured(write(tmp_path / "t.jsonl", tenths(0, 30), host=host))
    assert found.others_cores == pytest.approx(others, abs=1e-9) and found.node_cores == 2
    pooled = pool([found])
    assert pooled is not None and pooled.cpu_others_mean == found.others_cores
    assert figures(pooled)["cpu/cores_others_mean"] == found.others_cores


def test_a_load_of_others_counts_only_while_it_was_measured(tmp_path: Path) -> None:
    def host(t: float) -> dict[str, Any]:
        return {"busy_s": 1.51 * t + max(0.0, t - 15.0), "client_cpu_s": 0.0}

    found = measured(write(tmp_path / "t.jsonl", tenths(0, 30), host=host))
    assert found.others_cores == pytest.approx(0.5, abs=1e-3), "a core from 15 to 20 s of 10 to 20 s"


@pytest.mark.parametrize("lacks", ["host", "accounts", "server"])
def test_what_others_used_is_unknown_where_a_part_of_it_is(tmp_path: Path, lacks: str) -> None:
    """A record from before it was sampled, a node that does not account for its cores, a server that nobody watched."""
    options: dict[str, Any] = {"host": lambda t: {"busy_s": 2 * t, "client_cpu_s": None}}
    options |= {"host": None} if lacks == "host" else {}
    options |= {"host": lambda t: None} if lacks == "accounts" else {}
    options |= {"server": lambda t: None} if lacks == "server" else {}
    found = measured(write(tmp_path / "t.jsonl", tenths(0, 30), **options))
    pooled = pool([found])
    assert found.others_cores is None and pooled is not None and pooled.cpu_others_mean is None


def test_refused_fields_stay_unknown_and_the_others_stand(tmp_path: Path) -> None:
    refused = dict.fromkeys(("power_w", "energy_j", "sm_mhz", "processes", "reasons", "utilisation"))
    (gpu,) = measured(write(tmp_path / "t.jsonl", tenths(0, 30), lambda t: refused)).gpus
    assert (gpu.power_w, gpu.energy_j, gpu.sm_mhz, gpu.server_bytes, gpu.other_bytes) == (None,) * 5
    assert gpu.throttled is None and gpu.throttled_share is None, "unknown is not unthrottled"
    assert gpu.memory_mhz is not None and gpu.memory_mhz.mean == 3201


def test_throttling_is_told_by_reason_and_idle_clocks_are_none(tmp_path: Path) -> None:
    def mask(t: float) -> dict[str, Any]:
        return {"reasons": 0x04 | 0x40 if 12 <= t < 14 else 0x04 if t < 15 else 0x01 | 0x10}

    (gpu,) = measured(write(tmp_path / "t.jsonl", tenths(0, 30), mask)).gpus
    assert gpu.throttled is not None and set(gpu.throttled) == {"power cap", "hardware thermal slowdown"}
    assert gpu.throttled["hardware thermal slowdown"] == pytest.approx(0.2, abs=0.01)
    assert gpu.throttled_share == pytest.approx(0.5, abs=0.01)


def test_memory_is_split_between_the_server_and_others(tmp_path: Path) -> None:
    listed = {"processes": {"100": 60 * 2**30, "7": 2**30}}
    (gpu,) = measured(write(tmp_path / "t.jsonl", tenths(0, 30), lambda t: listed)).gpus
    assert gpu.server_bytes is not None and gpu.server_bytes.high == 60 * 2**30
    assert gpu.other_bytes is not None and gpu.other_bytes.high == 2**30


@pytest.mark.parametrize("processes", [{"4242": 60 * 2**30}, {"100": None}, {}, None])
def test_memory_of_processes_that_cannot_be_told_apart_is_unknown(tmp_path: Path, processes: Any) -> None:
    """A container may show ids of another namespace: then its own server would look like a stranger."""
    (gpu,) = measured(write(tmp_path / "t.jsonl", tenths(0, 30), lambda t: {"processes": processes})).gpus
    assert gpu.server_bytes is None and gpu.other_bytes is None


def test_a_gap_costs_the_integral_and_not_the_counter(tmp_path: Path) -> None:
    times = [t for t in tenths(0, 30) if not 12 < t < 14.5]
    found = measured(write(tmp_path / "t.jsonl", times, lambda t: {"power_w": 500, "energy_j": 500 * t}))
    assert found.longest_gap_s == pytest.approx(2.5)
    assert found.gpus[0].integrated_j is None and found.gpus[0].counter_j == pytest.approx(5000)


def test_a_sampler_that_died_in_the_window_leaves_the_rest_unknown(tmp_path: Path) -> None:
    end = {"kind": "end", "code": -9, "said": ""}
    found = measured(write(tmp_path / "t.jsonl", tenths(0, 13), lambda t: {"energy_j": 500 * t}, end=end))
    assert found.longest_gap_s == pytest.approx(7.0) and found.samples == 31
    assert found.energy_j is None and found.cpu_s is None and found.sampler_cpu_s is None
    assert found.absent == "the sampler ended with code -9: it said nothing"
    assert found.rss_bytes is not None, "what it saw before"


def test_a_file_without_a_sample_is_a_fact_too(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"kind":"end","code":1,"said":"Traceback\\nOSError: no"}\n')
    found = measured(tmp_path / "t.jsonl")
    assert (found.samples, found.longest_gap_s, found.absent) == (0, 10.0, "the sampler ended with code 1: OSError: no")


def test_a_server_that_dies_in_the_window_has_no_cpu_time_there(tmp_path: Path) -> None:
    found = measured(
        write(
            tmp_path / "t.jsonl",
            tenths(0, 30),
            server=lambda t: {"pids": [1], "rss_bytes": 5, "cpu_s": t} if t < 15 else None,
        )
    )
    assert found.cpu_s is None and found.rss_bytes is not None and found.rss_bytes.high == 5
    assert found.longest_gap_s == pytest.approx(0.1), "the sampler went on"


def test_a_counter_that_was_reset_is_unknown(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", tenths(0, 30), lambda t: {"energy_j": t if t < 15 else t - 15, "power_w": 7})
    (gpu,) = measured(path).gpus
    assert gpu.counter_j is None and gpu.energy_j == pytest.approx(70)


def test_broken_lines_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", tenths(0, 30))
    whole = path.read_bytes()
    path.write_bytes(b'\x00\xff{"kind":"sam\n[1]\n' + whole + b'{"kind":"sample","mono":')
    assert measured(path).samples == 101


def test_a_trial_is_copied_with_all_that_places_it(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", tenths(0, 300), lambda t: {"energy_j": 3 * t}, offset=50.0)
    samples.copy(path, tmp_path / "copy.jsonl", 10.0, 20.0)
    assert measured(tmp_path / "copy.jsonl") == measured(path)
    assert (tmp_path / "copy.jsonl").stat().st_size < path.stat().st_size / 10


def test_several_gpus_add_up_in_power_and_memory_only(tmp_path: Path) -> None:
    one = measured(write(tmp_path / "t.jsonl", tenths(0, 30), lambda t: {"energy_j": 500 * t}))
    other = one.gpus[0].model_copy(update={"sm_mhz": one.gpus[0].memory_mhz})
    pooled = pool([one.model_copy(update={"gpus": [one.gpus[0], other]})])
    assert pooled is not None
    assert pooled.power_mean_w == pytest.approx(1000) and pooled.energy_j == pytest.approx(10_000)
    assert pooled.vram_peak_bytes == 140 * 2**30 and pooled.utilisation_mean == pytest.approx(0.9)
    assert pooled.sm_mean_mhz == pytest.approx((1755 + 3201) / 2) and pooled.sm_low_mhz == 1755
    silent = other.model_copy(update={"counter_j": None, "integrated_j": None})
    half = pool([one.model_copy(update={"gpus": [one.gpus[0], silent]})])
    assert half is not None and half.energy_j is None, "a half of the energy is no figure"


def test_trials_are_pooled_by_their_length_and_tokens(tmp_path: Path) -> None:
    long = measured(write(tmp_path / "a.jsonl", tenths(0, 30), lambda t: {"energy_j": 100 * t, "sm_mhz": 1000}))
    brief = [record(sent_at=10.0, e2e_s=2.0)]
    short = measured(write(tmp_path / "b.jsonl", tenths(0, 30), lambda t: {"energy_j": 400 * t, "sm_mhz": 2000}), brief)
    pooled = pool([long, short])
    assert pooled is not None
    assert pooled.energy_per_token_j == pytest.approx((1000 + 800) / (8 + 4))
    assert pooled.sm_mean_mhz == pytest.approx((10 * 1000 + 2 * 2000) / 12)
    unknown = short.model_copy(update={"gpus": []})
    part = pool([long, unknown])
    assert part is not None and part.energy_per_token_j == pytest.approx(1000 / 8), "tokens of trials with energy only"
    assert pool([]) is None


def test_names_for_mlflow_are_grouped_and_in_their_units(tmp_path: Path) -> None:
    found = pool([measured(write(tmp_path / "t.jsonl", tenths(0, 30), lambda t: {"energy_j": 800 * t}))])
    assert found is not None
    named = figures(found)
    assert named["energy/joules_per_output_token"] == pytest.approx(1000)
    assert named["memory/peak_vram_used_gib"] == 70 and named["memory/peak_vram_server_gib"] == 69
    assert named["gpu/sm_clock_mean_mhz"] == 1755 and named["gpu/throttled_share"] == 0
    assert named["cpu/ms_per_output_token"] == pytest.approx(1000 * 15 / 8)
    assert named["memory/mean_rss_gib"] == 1
    page = (Path(__file__).parents[2] / "docs/reference/telemetry.md").read_text(encoding="utf-8")
    assert [name for name in named if f"`{name}`" not in page] == [], "names that the reference page leaves out"
    assert {name.partition("/")[0] for name in named} == {"energy", "gpu", "memory", "cpu", "telemetry"}
