"""What was measured, on disk: append-only record files of each run, and an index of finished trials by content.

A run directory stands alone:

    trials.jsonl                      one TrialEntry per finished trial, appended when its last record is on disk
    sessions/00-plain/records.jsonl   request records in the order they ended, warm-up and unfinished trials included
    sessions/00-plain/telemetry.jsonl what the machine did meanwhile (docs/reference/telemetry.md)
    sessions/00-plain/server.log

The index beside the runs holds one small file per trial key that says which run has it. A later run copies such a trial
instead of measuring it. An index entry whose run is gone counts as not measured.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from orchestrator.analysis.baseline import Ceiling
from orchestrator.frozen import Frozen
from orchestrator.load.self_check import ClientUsage
from orchestrator.measuring.records import RECORD_SCHEMA, RecordFile, RequestRecord, read_records
from orchestrator.measuring.server_totals import TrialTotals
from orchestrator.telemetry import samples, window
from orchestrator.telemetry.samples import beside
from orchestrator.telemetry.window import TrialUsage

TRIALS = "trials.jsonl"


class ServerFacts(Frozen):
    """What was seen of the server that served a trial."""

    session_index: int
    arm: str
    command: list[str]
    identity: dict[str, Any]
    started: float
    """Unix time of the start, s."""
    ready_s: float
    """Seconds from start to ready."""
    peak_memory_bytes: int | None
    """Up to the end of the trial."""
    totals: TrialTotals | None = None
    """What the server counted over the trial; None where it was not asked."""
    ceiling: Ceiling | None = None
    """What bounds the decode speed, of a plain server."""
    client: ClientUsage | None = None
    """What measuring the trial took of this side."""


class TrialEntry(Frozen):
    """A finished trial: enough to find its records and to know how they came about."""

    record_schema: int = RECORD_SCHEMA
    key: str
    records: str
    """Record file, relative to the run directory."""
    count: int
    """Records of the trial in it, warm-up excluded."""
    server: ServerFacts
    source: str | None = None
    """Run directory it was copied from; None where this run measured it."""
    telemetry: str | None = None
    """Telemetry file, relative to the run directory; None for a trial that was measured without."""
    usage: TrialUsage | None = Field(default=None, exclude=True)
    """What the trial took of the machine, read from that file by ``load``; never written."""


class Found(Frozen):
    """A finished trial of some run, as the index knows it."""

    run: str
    """Run directory, relative to the index directory."""
    entry: TrialEntry


class Store:
    """Writes one run and reads those before it. Several processes may share the index, never a run directory's file."""

    def __init__(self, run: Path, index: Path) -> None:
        self.run = run
        self.index = index
        run.mkdir(parents=True, exist_ok=True)
        index.mkdir(parents=True, exist_ok=True)

    def open_session(self, index: int, arm: str) -> tuple[Path, RecordFile]:
        """Directory of a server session (for its log) and a new record file in it.

        The file is new even when the run directory is used again, so that records of an attempt that did not finish
        are never mixed with those of the next.
        """
        directory = self.run / "sessions" / f"{index:02d}-{re.sub(r'[^A-Za-z0-9_.-]', '_', arm)}"
        directory.mkdir(parents=True, exist_ok=True)
        attempt = 0
        while True:
            path = directory / (f"records.{attempt}.jsonl" if attempt else "records.jsonl")
            try:
                return directory, RecordFile(path)
            except FileExistsError:
                attempt += 1

    def finish(
        self,
        key: str,
        file: RecordFile,
        count: int,
        server: ServerFacts,
        source: str | None = None,
        reusable: bool = True,
        telemetry: Path | None = None,
    ) -> None:
        """Declare a trial finished: its records are forced to disk, then the run and the index learn of it.

        A trial that is not ``reusable`` (some of its requests failed) belongs to this run only and is measured again
        by the next.
        """
        file.sync()
        records = str(file.path.relative_to(self.run))
        entry = TrialEntry(
            key=key,
            records=records,
            count=count,
            server=server,
            source=source,
            telemetry=str(telemetry.relative_to(self.run)) if telemetry else None,
        )
        with (self.run / TRIALS).open("ab") as trials:
            trials.write(entry.model_dump_json().encode() + b"\n")
            trials.flush()
            os.fsync(trials.fileno())
        if not reusable:
            return
        found = Found(run=os.path.relpath(self.run, self.index), entry=entry)
        temporary = self.index / f".{key}.{os.getpid()}"
        temporary.write_text(found.model_dump_json() + "\n")
        os.replace(temporary, self.index / f"{key}.json")

    def find(self, key: str) -> tuple[Found, list[RequestRecord]] | None:
        """A finished trial of an earlier run with all its records; None where it must be measured (again)."""
        try:
            found = Found.model_validate_json((self.index / f"{key}.json").read_bytes())
            records = list(_of_trial(read_records(self.index / found.run / found.entry.records), key))
        except (FileNotFoundError, ValidationError):  # never measured, run removed, or written by another version
            return None
        whole = found.entry.record_schema == RECORD_SCHEMA and len(records) == found.entry.count
        return (found, records) if whole else None

    def adopt(self, found: Found, records: Iterable[RequestRecord], session_index: int, arm: str) -> None:
        """Copy a trial of an earlier run into this one."""
        run = self.index / found.run
        source = found.entry.source or os.path.relpath(run, self.run)
        self._copy(run, found.entry, records, session_index, arm, source)

    def extend(self, entry: TrialEntry, extra: Iterable[RequestRecord]) -> None:
        """Add records (probes) to a finished trial of this run, as a new file with all of them."""
        records = [*_of_trial(read_records(self.run / entry.records), entry.key), *extra]
        self._copy(self.run, entry, records, entry.server.session_index, entry.server.arm, entry.source)

    def _copy(
        self,
        run: Path,
        entry: TrialEntry,
        records: Iterable[RequestRecord],
        session_index: int,
        arm: str,
        source: str | None,
    ) -> None:
        _, file = self.open_session(session_index, arm)
        copied = list(records)
        for record in copied:
            file.append(record)
        well = all(record.outcome == "ok" for record in copied)
        telemetry = _copy_telemetry(run, entry, copied, beside(file.path))
        self.finish(entry.key, file, len(copied), entry.server, source, reusable=well, telemetry=telemetry)
        file.close()


def entries(run: Path) -> list[TrialEntry]:
    """Finished trials of a run directory; the last entry of a key counts."""
    path = run / TRIALS
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    read = [TrialEntry.model_validate_json(line) for line in lines if line.endswith(b"\n")]
    return list({entry.key: entry for entry in read}.values())


def load(run: Path) -> tuple[list[TrialEntry], list[RequestRecord]]:
    """Finished trials of a run directory and their records, warm-up excluded; the last entry of a key counts."""
    finished = {entry.key: entry for entry in entries(run)}
    file = cache(lambda path: list(read_records(run / path)))  # of a session, that of all its trials
    records = {key: list(_of_trial(file(entry.records), key)) for key, entry in finished.items()}
    read = cache(lambda file: samples.read(run / file))
    used = [
        entry.model_copy(update={"usage": window.usage(read(entry.telemetry), records[key], _client_s(entry))})
        if entry.telemetry and (run / entry.telemetry).exists()
        else entry
        for key, entry in finished.items()
    ]
    return used, list(chain.from_iterable(records.values()))


def _client_s(entry: TrialEntry) -> float:
    """CPU time of the load client where it ran beside the server, in a container of its own."""
    client = entry.server.client
    return client.cpu_s if client is not None and client.where == "node" else 0.0


def _copy_telemetry(run: Path, entry: TrialEntry, records: Iterable[RequestRecord], target: Path) -> Path | None:
    span = window.span(records)
    if entry.telemetry is None or span is None or not (run / entry.telemetry).exists():
        return None
    samples.copy(run / entry.telemetry, target, *span)
    return target


def _of_trial(records: Iterable[RequestRecord], key: str) -> Iterator[RequestRecord]:
    return (record for record in records if record.trial_key == key and record.phase != "warmup")
