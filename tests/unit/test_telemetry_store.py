"""Telemetry belongs to its trial: it is found again, adopted with it, and never stands in its way."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from orchestrator.measuring.records import RequestRecord
from orchestrator.measuring.store import ServerFacts, Store, load
from orchestrator.schema.place import ProcessRunner
from orchestrator.telemetry.sampler import sampled_gpus
from orchestrator.telemetry.samples import beside
from tests.plan_factory import arm, suite
from tests.plan_factory import load as load_point
from tests.record_factory import record
from tests.telemetry_factory import tenths, write

SERVER = ServerFacts(
    session_index=0, arm="plain", command=["serve"], identity={}, started=1.0, ready_s=2.0, peak_memory_bytes=3
)


def measure(run: Path) -> list[RequestRecord]:
    """Two trials of one session, at 10 and at 40 s, in one telemetry file."""
    store = Store(run, run.parent / "index")
    _, file = store.open_session(0, "plain")
    path = write(beside(file.path), tenths(0, 60), lambda t: {"energy_j": 10 * t if t < 30 else 30 * t - 600})
    kept = []
    for key, start in (("k1", 10.0), ("k2", 40.0)):
        kept.append(record(trial_key=key, sent_at=start, e2e_s=10.0))
        file.append(kept[-1])
        store.finish(key, file, 1, SERVER, telemetry=path)
    file.close()
    return kept


def joules(run: Path) -> dict[str, float]:
    return {entry.key: round(entry.usage.energy_j or 0) for entry in load(run)[0] if entry.usage}


def test_each_trial_of_a_session_gets_its_own_part_of_the_file(tmp_path: Path) -> None:
    measure(tmp_path / "one")
    entries, _ = load(tmp_path / "one")
    assert [entry.telemetry for entry in entries] == ["sessions/00-plain/telemetry.jsonl"] * 2
    assert joules(tmp_path / "one") == {"k1": 100, "k2": 300}
    assert '"usage"' not in (tmp_path / "one/trials.jsonl").read_text(), "computed, never kept"


def test_an_adopted_trial_brings_its_telemetry(tmp_path: Path) -> None:
    measure(tmp_path / "one")
    store = Store(tmp_path / "two", tmp_path / "index")
    for key in ("k2", "k1"):
        found = store.find(key)
        assert found is not None
        store.adopt(*found, 0, "plain")
    shutil.rmtree(tmp_path / "one")
    assert joules(tmp_path / "two") == {"k1": 100, "k2": 300}
    files = sorted(path.name for path in (tmp_path / "two/sessions/00-plain").iterdir())
    assert files == ["records.1.jsonl", "records.jsonl", "telemetry.1.jsonl", "telemetry.jsonl"]


def test_probes_added_to_a_trial_leave_its_window_alone(tmp_path: Path) -> None:
    measure(tmp_path / "one")
    store = Store(tmp_path / "one", tmp_path / "index")
    entries, _ = load(tmp_path / "one")
    store.extend(entries[0], [record(trial_key="k1", phase="probe", sent_at=55.0)])
    assert joules(tmp_path / "one") == {"k1": 100, "k2": 300}


def test_trials_without_telemetry_are_trials(tmp_path: Path) -> None:
    measure(tmp_path / "one")
    (tmp_path / "one/sessions/00-plain/telemetry.jsonl").unlink()
    assert joules(tmp_path / "one") == {}
    store = Store(tmp_path / "two", tmp_path / "index")
    found = store.find("k1")
    assert found is not None
    store.adopt(*found, 0, "plain")
    (entry,), records = load(tmp_path / "two")
    assert (entry.telemetry, entry.usage, len(records)) == (None, None, 1)


def test_the_gpus_of_the_server_are_sampled_and_no_others() -> None:
    plain = arm("plain", suite(), load_point())
    assert sampled_gpus(plain) == "none", "the embedded engine uses none, whatever the machine has"

    def served(node: dict[str, Any], tp_size: int = 1) -> str:
        changed = {
            "runner": ProcessRunner(kind="process", command=("serve",), port=None, ready_timeout_s=1.0, start_s=1.0),
            "node": plain.node.model_copy(update=node),
            "target": plain.target.model_copy(update={"tp_size": tp_size}),
        }
        return sampled_gpus(plain.model_copy(update=changed))

    assert served({}) == "0" and served({}, tp_size=2) == "0,1"
    assert served({"gpus": (3, "GPU-7")}) == "3,GPU-7"
