"""One request as it was measured, and the append-only file it is written to.

The record is the truth: everything else (summary, MLflow, report) is computed from it and can be computed again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import field_validator

from orchestrator.frozen import Frozen

RECORD_SCHEMA = 2
"""2: endpoint, late_s, steady and the outcome ``stalled``; records of 1 are read as they are, without them."""

Outcome = Literal["ok", "error", "timeout", "stalled", "truncated", "cancelled"]
"""``timeout``: no end in time; ``stalled``: the answer had begun, then no byte came; ``truncated``: it broke off;
``error``: all else, told by the server or by the connection; ``cancelled``: by this side."""


class SpecCounters(Frozen):
    """Speculation counters of one request, under the names SGLang uses in ``meta_info``."""

    spec_verify_ct: int
    """Verification steps."""
    spec_num_correct_drafts: int
    """Draft tokens the target agreed with, bonus excluded; drafts past EOS or the token limit count."""
    spec_num_proposed_drafts: int
    """Draft tokens sent to verification, bonus excluded."""
    spec_correct_drafts_histogram: list[int]
    """Index i: verification steps with exactly i correct drafts; sums to ``spec_verify_ct``."""
    spec_cap_lens_histogram: list[int] | None = None
    """Index i: verification steps with a window of i tokens (anchor included); None where all had the same."""


class RequestRecord(Frozen):
    """One request. Times are seconds on the client's monotonic clock; ``sent_at`` is its zero point."""

    record_schema: int = RECORD_SCHEMA
    trial_key: str
    arm: str
    session_index: int
    """Which server session of the plan served it (order of starts, from 0)."""
    phase: Literal["warmup", "measure", "probe"]
    """``probe``: asked of the plain arm after the measurement, for the margins (``top2``) of a fork; never timed."""
    endpoint: Literal["generate", "completions", "chat"] = "generate"
    prompt_id: str
    category: str
    prompt_sha256: str
    """Of the text that was sent, chat template applied; of the messages where the server applies it (``chat``)."""
    repeat: int
    sent_wall_time: float
    """Unix time, s."""
    sent_at: float
    """Monotonic client clock, s; comparable inside one trial only."""
    late_s: float | None = None
    """Open loop: seconds between the planned time and ``sent_at``."""
    steady: bool | None = None
    """The load was full from its first to its last moment (``load/loops.py``); False in the ramps, None where not
    known."""
    chunks: list[tuple[float, int]]
    """(seconds since ``sent_at``, cumulative completion tokens) per streamed chunk that brought tokens."""
    e2e_s: float | None
    """Seconds from send to the last byte; None where the request did not end well."""
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    output_ids: list[int]
    text: str
    finish_reason: str | None
    """``stop``, ``length`` or ``abort``."""
    top2: list[tuple[tuple[int, float], tuple[int, float]]] | None = None
    """Per output position the two likeliest tokens as (token id, log-probability), likeliest first; probes only."""
    spec: SpecCounters | None
    """None for a server that does not speculate."""
    outcome: Outcome
    error: str | None = None

    @field_validator("record_schema")
    @classmethod
    def _is_known(cls, schema: int) -> int:
        if schema > RECORD_SCHEMA:
            raise ValueError(f"the record is of schema {schema}, this version reads up to {RECORD_SCHEMA}")
        return schema

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, s."""
        return self.chunks[0][0] if self.chunks else None

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first chunk, s: (last chunk - first chunk) / (tokens after the first chunk).

        vLLM and SGLang divide by (tokens - 1); with a first chunk of one token the two are the same.
        """
        if len(self.chunks) < 2:
            return None
        (first_s, first_tokens), (last_s, last_tokens) = self.chunks[0], self.chunks[-1]
        return (last_s - first_s) / (last_tokens - first_tokens) if last_tokens > first_tokens else None


class RecordFile:
    """A new append-only JSONL file of request records. Raises FileExistsError where the path is taken."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("xb")

    def append(self, record: RequestRecord) -> None:
        """Hand the record to the operating system: from here on a crash of this process cannot lose it.

        It is not forced to the disk here, since a slow disk would then move the time stamps of requests in flight.
        """
        self._file.write(record.model_dump_json().encode() + b"\n")
        self._file.flush()

    def sync(self) -> None:
        """Force what was appended to the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self.sync()
        self._file.close()


def read_records(path: Path) -> Iterator[RequestRecord]:
    """Records of a file in the order they were written; a last line cut off by a crash is passed over."""
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield RequestRecord.model_validate_json(line)
