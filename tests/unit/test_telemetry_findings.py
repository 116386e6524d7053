"""Each trap of the machine, walked into, and the finding that comes out; and what a reader sees of a good run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.baseline import Ceiling
from orchestrator.analysis.facts import Facts
from orchestrator.analysis.results import Finding, Summary
from orchestrator.analysis.summary import summarize
from orchestrator.measuring.records import RequestRecord
from orchestrator.projection import arm_curves, arm_metrics
from orchestrator.report import html, machine, table
from orchestrator.telemetry import samples, window
from tests.synthetic import facts, records
from tests.telemetry_factory import tenths, write

OWN = {
    "telemetry_missing", "telemetry_gaps", "throttled", "clocks_differ", "gpu_shared", "no_gpu_telemetry",
    "weak_baseline", "baseline_handicapped", "above_ceiling", "busy_machine",
}  # fmt: skip
Gpu = Callable[[float], dict[str, Any]]


@pytest.fixture(scope="module")
def run() -> list[RequestRecord]:
    return records()


@pytest.fixture
def observed(run: list[RequestRecord], tmp_path: Path) -> Callable[..., Summary]:
    """A SYNTHETIC comparison whose machine did what a test says: ``arm`` -> options of the telemetry factory."""

    def make(
        ceiling: Ceiling | None = None,
        identity: dict[str, Any] | None = None,
        engine: str = "sglang",
        times: Callable[[float], list[float]] = lambda end: tenths(-1, end + 1),
        **by_arm: Any,
    ) -> Summary:
        base = facts()
        used = {}
        for place, key in enumerate(base.trials):
            own = [record for record in run if record.trial_key == key]
            arm, span = own[0].arm, window.span(own)
            assert span is not None
            options = {"gpu": lambda t: {"energy_j": 400 * (t + 1)}, **by_arm.get(arm, {})}
            path = write(tmp_path / f"{place}.jsonl", times(span[1]), **options)
            used[key] = window.usage(samples.read(path), own)
        sessions = [
            replace(one, ceiling=ceiling, identity=identity or one.identity) if one.arm == "plain" else one
            for one in base.sessions
        ]
        base = replace(base, memory_kind="rss" if engine == "embedded" else "vram")
        changed: Facts = replace(base, engine=engine, usage=used, sessions=sessions)
        return summarize(run, changed)

    return make


def own(summary: Summary) -> list[Finding]:
    return [finding for finding in summary.findings if finding.code in OWN]


def test_a_machine_that_was_the_same_for_every_arm_gives_no_finding(observed: Callable[..., Summary]) -> None:
    assert own(observed()) == []


def test_a_gpu_that_throttled_is_found_with_its_reason(observed: Callable[..., Summary]) -> None:
    (found,) = own(observed(dspine={"gpu": lambda t: {"reasons": 0x40 if t < 3 else 0}}))
    assert (found.code, found.severity, found.arm) == ("throttled", "warning", "dspine")
    assert "hardware thermal slowdown" in found.text and "2 of 2 trials" in found.text


def test_clocks_that_differ_between_arms_are_found_from_three_percent(observed: Callable[..., Summary]) -> None:
    (found,) = own(observed(plain={"gpu": lambda t: {"sm_mhz": 1700}}))
    assert found.code == "clocks_differ" and "SM clock" in found.text
    assert "plain 1700 MHz" in found.text and "dspine 1755 MHz" in found.text
    assert own(observed(plain={"gpu": lambda t: {"sm_mhz": 1710}})) == [], "2.6%"
    (found,) = own(observed(dflash2={"gpu": lambda t: {"memory_mhz": 2619}}))
    assert "memory clock" in found.text


def test_another_process_on_the_gpu_is_found(observed: Callable[..., Summary]) -> None:
    (found,) = own(observed(plain={"gpu": lambda t: {"processes": {"100": 60 * 2**30, "9": 700 * 2**20}}}))
    assert (found.code, found.arm) == ("gpu_shared", "plain") and "700 MiB" in found.text


@pytest.mark.parametrize(("before", "expected"), [(4 * 2**30, ["gpu_shared"]), (5 * 2**20, [])])
def test_where_processes_are_hidden_memory_from_before_the_server_tells_of_others(
    observed: Callable[..., Summary], before: int, expected: list[str]
) -> None:
    def hidden(t: float) -> dict[str, Any]:
        return {"processes": {"4242": 2**30}, "used_bytes": before if t < 0 else 70 * 2**30}

    def server(t: float) -> dict[str, Any] | None:
        return None if t < 0 else {"pids": [100], "rss_bytes": 1, "cpu_s": t}

    found = own(observed(plain={"gpu": hidden, "server": server}))
    assert [one.code for one in found] == expected
    assert all("4096 MiB" in one.text and "before it started" in one.text for one in found)


def test_missing_samples_are_found_and_why(observed: Callable[..., Summary]) -> None:
    killed = {"kind": "end", "code": -9, "said": ""}
    found = own(observed(times=lambda end: tenths(-1, end / 2), plain={"end": killed}))
    assert [(one.code, one.arm) for one in found] == [
        ("telemetry_gaps", name) for name in ("plain", "dflash2", "dspine")
    ]
    assert "code -9" in found[0].text and "code -9" not in found[1].text
    found = own(observed(times=lambda end: [], plain={"end": killed}))
    assert {one.code for one in found} == {"telemetry_missing"} and len(found) == 3


def test_a_gpu_that_cannot_be_asked_is_told_once_and_not_of_the_embedded_engine(
    observed: Callable[..., Summary],
) -> None:
    blind = {arm: {"gpu": None, "absent": "NVML: Driver Not Loaded"} for arm in ("plain", "dflash2", "dspine")}
    (found,) = own(observed(**blind))
    assert (found.code, found.severity) == ("no_gpu_telemetry", "note") and "Driver Not Loaded" in found.text
    assert own(observed(engine="embedded", **blind)) == []


def ceiling(share: float, summary: Summary) -> Ceiling:
    """One of which the plain arm reaches ``share``."""
    assert summary.baseline is not None and summary.baseline.point is not None
    speed = summary.baseline.point.decode_tok_s
    assert speed is not None
    return Ceiling(
        weights_bytes=15e9, weights_source="the server's weights", bandwidth_bytes_s=15e9 * speed / share,
        bandwidth_source="data sheet, NVIDIA H200",
    )  # fmt: skip


def test_a_weak_plain_arm_is_found_and_an_impossible_one(observed: Callable[..., Summary]) -> None:
    plain = observed()
    (weak,) = own(observed(ceiling=ceiling(0.53, plain)))
    assert (weak.code, weak.arm) == ("weak_baseline", "plain") and "53% of" in weak.text
    assert own(observed(ceiling=ceiling(0.63, plain))) == []
    (above,) = own(observed(ceiling=ceiling(1.2, plain)))
    assert above.code == "above_ceiling"


def beside(others: float, cores: float = 0.2) -> dict[str, Any]:
    """Options of an arm whose server and sampler used ``cores`` of two, its client 0.02, and strangers ``others``."""
    return {
        "server": lambda t: {"pids": [100], "rss_bytes": 1, "cpu_s": (cores - 0.01) * t},
        "host": lambda t: {"busy_s": 50 + (cores + 0.02 + others) * t, "client_cpu_s": 0.02 * t},
    }


def test_a_busy_machine_is_told_once_for_all_arms(observed: Callable[..., Summary]) -> None:
    summary = observed(engine="embedded", plain=beside(0.24), dflash2=beside(0.6), dspine=beside(1.0))
    (found,) = own(summary)
    assert (found.code, found.severity, found.arm) == ("busy_machine", "warning", None)
    assert "which has 2, while it was measured (mean: dflash2 0.60 in 2 of 2 trials, dspine 1.00 in 2 of 2 trials)" in (
        found.text
    )
    cells = next(row.cells for row in table.rows(summary) if row.label == "cores used by others")
    assert cells == ["0.24", "0.60", "1.00"]
    assert machine.trials(summary)[0]["others' cores"] == "0.24"


def test_a_node_whose_gpu_serves_may_use_half_of_its_cores_for_others(observed: Callable[..., Summary]) -> None:
    assert own(observed(plain=beside(0.95), dspine=beside(0.6))) == []
    (found,) = own(observed(plain=beside(1.05)))
    assert found.code == "busy_machine" and "(mean: plain 1.05 in 2 of 2 trials)" in found.text


def test_records_that_do_not_know_the_node_are_no_idle_machine(observed: Callable[..., Summary]) -> None:
    summary = observed(engine="embedded")
    assert own(summary) == [] and "cores used by others" not in {row.label for row in table.rows(summary)}


def test_a_plain_arm_is_not_blamed_for_a_busy_machine(observed: Callable[..., Summary]) -> None:
    most = ceiling(0.3, observed())
    busy, weak = own(observed(ceiling=most, engine="embedded", plain=beside(1.0)))
    assert (busy.code, weak.code) == ("busy_machine", "weak_baseline")
    assert "The machine was busy with other processes" in weak.text and "stronger plain arm" not in weak.text
    (weak,) = own(observed(ceiling=most, engine="embedded", plain=beside(0.1)))
    assert "a stronger plain arm would shrink every speedup" in weak.text


def test_a_plain_arm_without_graphs_or_overlap_is_found(observed: Callable[..., Summary]) -> None:
    (found,) = own(observed(identity={"disable_cuda_graph": True, "disable_overlap_schedule": True}))
    assert found.code == "baseline_handicapped" and "CUDA graphs and overlap scheduling" in found.text
    assert own(observed(identity={"disable_cuda_graph": False, "disable_overlap_schedule": False})) == []


def test_the_table_the_page_and_mlflow_show_it(observed: Callable[..., Summary]) -> None:
    on = {"disable_cuda_graph": False, "disable_overlap_schedule": False}
    summary = observed(ceiling=ceiling(0.63, observed()), identity=on)
    rows = {
        row.label: dict(zip((arm.name for arm in summary.arms), row.cells, strict=True)) for row in table.rows(summary)
    }
    assert rows["GPU power mean/peak, W"]["dspine"] == "500 / 500"
    assert rows["throttled, share of time"]["dspine"] == "0%"
    assert rows["share of bandwidth ceiling"]["plain"].startswith("63% of")
    assert rows["share of bandwidth ceiling"]["dspine"] == machine.ABSENT
    assert rows["CUDA graphs / overlap"]["plain"] == "on / on"
    plain = next(arm for arm in summary.arms if arm.baseline)
    named = arm_metrics(plain)
    assert named["baseline/bandwidth_share"] == pytest.approx(0.63)
    assert plain.point is not None and plain.point.usage is not None
    assert named["energy/joules_per_output_token"] == plain.point.usage.energy_per_token_j
    assert named["energy/joules"] == pytest.approx(400 * sum(trial.seconds for trial in plain.point.usage.trials))
    lines = machine.trials(summary)
    assert len(lines) == 6 and lines[0]["SM MHz"] == "1755" and "RSS GiB" in lines[0]
    assert "What the machine did, trial by trial" in html.render(summary, [])


def test_a_run_without_telemetry_shows_none_of_it(run: list[RequestRecord]) -> None:
    summary = summarize(run, facts())
    assert own(summary) == [] and machine.trials(summary) == []
    assert not {row.section for row in table.rows(summary)} & {"Machine", "Baseline"}
    assert not any(name.startswith(("gpu/", "energy/")) for arm in summary.arms for name in arm_metrics(arm))


def test_energy_by_load_is_a_curve(observed: Callable[..., Summary]) -> None:
    arm = observed().arms[0]
    assert arm.point is not None
    other = arm.point.model_copy(update={"concurrency": 8})
    curves = dict(arm_curves(arm.model_copy(update={"points": [arm.point, other]})))
    assert (
        curves[8]["by_concurrency/joules_per_output_token"] == curves[1]["by_concurrency/joules_per_output_token"] > 0
    )


def test_memory_is_the_gpus_where_one_serves(observed: Callable[..., Summary]) -> None:
    seen = observed(engine="embedded").arms[0].memory
    assert seen is not None and seen.kind == "rss", "what the runner saw of the processes"
    seen = observed().arms[0].memory
    assert seen is not None and (seen.kind, seen.gib) == ("vram", 69), "the server's own"
    seen = observed(plain={"gpu": lambda t: {"processes": None}}).arms[0].memory
    assert seen is not None and seen.gib == 70, "the whole GPU's, where processes are not told"
    silent = {"processes": None, "used_bytes": None}
    assert observed(plain={"gpu": lambda t: silent}).arms[0].memory is None
