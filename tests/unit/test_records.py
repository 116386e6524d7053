from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.measuring.records import RECORD_SCHEMA, RecordFile, read_records
from tests.record_factory import counters, record


def test_records_survive_the_file_unchanged(tmp_path: Path) -> None:
    one = record(spec=counters([1, 2], 9), text='a\nb\u2028"c"', top2=[((1, -0.1), (2, -3.0))] * 4)
    two = record(outcome="timeout", error="late", e2e_s=None)
    file = RecordFile(tmp_path / "deep" / "records.jsonl")
    file.append(one)
    assert list(read_records(file.path)) == [one], "a record is readable before the file is closed"
    file.append(two)
    file.close()
    assert list(read_records(file.path)) == [one, two]


def test_a_line_cut_off_by_a_crash_is_passed_over(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "records.jsonl")
    file.append(record())
    file.append(record(prompt_id="p1"))
    file.close()
    file.path.write_bytes(file.path.read_bytes()[:-20])
    assert [read.prompt_id for read in read_records(file.path)] == ["p0"]


def test_a_record_file_is_never_opened_twice(tmp_path: Path) -> None:
    RecordFile(tmp_path / "records.jsonl").close()
    with pytest.raises(FileExistsError):
        RecordFile(tmp_path / "records.jsonl")


def test_ttft_and_tpot_use_tokens_after_the_first_chunk() -> None:
    several = record(output_ids=list(range(8)), chunks=[(0.5, 2), (0.6, 5), (1.1, 8)])
    assert several.ttft_s == 0.5
    assert several.tpot_s == pytest.approx((1.1 - 0.5) / 6)
    assert record(output_ids=[1], chunks=[(0.5, 1)]).tpot_s is None
    assert record(output_ids=[], chunks=[]).ttft_s is None


def test_records_of_the_first_schema_are_read_without_what_they_did_not_know(tmp_path: Path) -> None:
    new = {"endpoint", "late_s", "steady"}
    old = record().model_dump(mode="json", exclude=new) | {"record_schema": 1}
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps(old) + "\n")
    (read,) = read_records(path)
    assert read.record_schema == 1
    assert (read.endpoint, read.late_s, read.steady) == ("generate", None, None)


def test_records_of_a_later_schema_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps(record().model_dump(mode="json") | {"record_schema": RECORD_SCHEMA + 1}) + "\n")
    with pytest.raises(ValueError, match=f"of schema {RECORD_SCHEMA + 1}, this version reads up to {RECORD_SCHEMA}"):
        list(read_records(path))
