from __future__ import annotations

import shutil
from pathlib import Path

from orchestrator.measuring.records import RECORD_SCHEMA, RequestRecord
from orchestrator.measuring.store import ServerFacts, Store, load
from tests.record_factory import record

SERVER = ServerFacts(
    session_index=0,
    arm="plain",
    command=["serve"],
    identity={"version": "1"},
    started=1.0,
    ready_s=2.0,
    peak_memory_bytes=3,
)


def measure(run: Path, key: str = "k1", count: int = 2, finish: bool = True) -> list[RequestRecord]:
    store = Store(run, run.parent / "index")
    _, file = store.open_session(0, "plain")
    file.append(record(trial_key=key, phase="warmup"))
    records = [record(trial_key=key, prompt_id=f"p{number}") for number in range(count)]
    for one in records:
        file.append(one)
    if finish:
        store.finish(key, file, count, SERVER)
    file.close()
    return records


def test_a_finished_trial_is_found_by_a_later_run(tmp_path: Path) -> None:
    records = measure(tmp_path / "one")
    found = Store(tmp_path / "two", tmp_path / "index").find("k1")
    assert found is not None
    assert found[1] == records, "warm-up excluded"
    assert found[0].entry.server == SERVER
    assert Store(tmp_path / "two", tmp_path / "index").find("k2") is None


def test_an_unfinished_trial_keeps_its_records_and_is_measured_again(tmp_path: Path) -> None:
    records = measure(tmp_path / "one", finish=False)
    assert Store(tmp_path / "two", tmp_path / "index").find("k1") is None
    assert load(tmp_path / "one") == ([], [])
    text = (tmp_path / "one/sessions/00-plain/records.jsonl").read_text()
    assert text.count("\n") == len(records) + 1


def test_an_adopted_trial_makes_the_new_run_stand_alone(tmp_path: Path) -> None:
    records = measure(tmp_path / "one")
    store = Store(tmp_path / "two", tmp_path / "index")
    found = store.find("k1")
    assert found is not None
    store.adopt(*found, 0, "plain")
    shutil.rmtree(tmp_path / "one")
    entries, loaded = load(tmp_path / "two")
    assert loaded == records
    assert (entries[0].source, entries[0].server) == ("../one", SERVER)
    assert Store(tmp_path / "three", tmp_path / "index").find("k1") is not None, "the index follows the copy"


def test_an_index_entry_whose_records_are_gone_or_short_counts_as_not_measured(tmp_path: Path) -> None:
    measure(tmp_path / "one")
    path = tmp_path / "one/sessions/00-plain/records.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    store = Store(tmp_path / "two", tmp_path / "index")
    assert store.find("k1") is None
    shutil.rmtree(tmp_path / "one")
    assert store.find("k1") is None


def test_an_index_entry_of_another_version_counts_as_not_measured(tmp_path: Path) -> None:
    measure(tmp_path / "one")
    entry = tmp_path / "index/k1.json"
    entry.write_text(entry.read_text().replace(f'"record_schema":{RECORD_SCHEMA}', '"record_schema":0'))
    store = Store(tmp_path / "two", tmp_path / "index")
    assert store.find("k1") is None
    entry.write_text('{"from": "another program"}')
    assert store.find("k1") is None


def test_a_run_directory_used_again_never_mixes_two_attempts(tmp_path: Path) -> None:
    measure(tmp_path / "one", finish=False)
    records = measure(tmp_path / "one")
    entries, loaded = load(tmp_path / "one")
    assert loaded == records
    assert [entry.records for entry in entries] == ["sessions/00-plain/records.1.jsonl"]


def test_arm_names_cannot_leave_the_run_directory(tmp_path: Path) -> None:
    directory, file = Store(tmp_path / "one", tmp_path / "index").open_session(3, "../a b")
    file.close()
    assert directory == tmp_path / "one/sessions/03-.._a_b"
