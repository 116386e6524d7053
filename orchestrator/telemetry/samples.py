"""Reads a telemetry file: samples on the clock that stamped the requests, and what is said of the sampler itself.

Lines that are not whole (a sampler killed while it wrote, a disk that was full) are passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

Line = dict[str, Any]


@dataclass(frozen=True)
class Clock:
    """How the sampler's monotonic clock relates to the client's at one moment."""

    at: float
    """Client's clock, s."""
    offset_s: float
    """Sampler's clock minus the client's; about 0 on one machine."""
    error_s: float
    """The offset is right to this, to either side."""


@dataclass(frozen=True)
class Samples:
    """One telemetry file. ``lines`` are its samples, by time."""

    start: Line
    """What the sampler said first; empty where it said nothing."""
    end: Line
    """How it ended; empty while it runs, and where the orchestrator itself was killed."""
    clocks: Sequence[Clock]
    lines: Sequence[Line]

    def clock(self, at: float) -> Clock:
        """The clock reading closest to ``at`` (client's clock, s); the same clock for both where there is none."""
        return min(self.clocks, key=lambda clock: abs(clock.at - at), default=Clock(at, 0.0, 0.0))

    def between(self, start: float, end: float, margin: float = 0.0) -> list[tuple[float, Line]]:
        """(time, sample) from ``start`` to ``end`` on the client's clock, and for ``margin`` s more to either side."""
        offset = self.clock((start + end) / 2).offset_s
        stamped = ((line["mono"] - offset, line) for line in self.lines)
        return [(time, line) for time, line in stamped if start - margin <= time <= end + margin]


def beside(records: Path) -> Path:
    """Where the telemetry of a record file lies."""
    return records.with_name(records.name.replace("records", "telemetry"))


def parse(line: bytes) -> Line:
    """A line of the file; empty where it is none."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def read(path: Path) -> Samples:
    """The whole file. Raises OSError where it cannot be read."""
    return _samples([parse(line) for line in path.read_bytes().split(b"\n")])


def _samples(lines: Sequence[Line]) -> Samples:
    return Samples(
        start=next((line for line in lines if line.get("kind") == "start"), {}),
        end=next((line for line in lines if line.get("kind") == "end"), {}),
        clocks=[_clock(line) for line in lines if line.get("kind") == "clock"],
        lines=[line for line in lines if line.get("kind") == "sample"],
    )


def copy(source: Path, target: Path, start: float, end: float) -> None:
    """What belongs to one trial, as a new file: the samples from ``start`` to ``end`` (client's clock) and for a second
    more to either side, the very first one, and all that is not a sample."""
    texts = source.read_bytes().split(b"\n")
    lines = [parse(text) for text in texts]
    found = _samples(lines)
    kept = {line["mono"] for _, line in found.between(start, end, margin=1.0)} | {
        line["mono"] for line in found.lines[:1]
    }
    with target.open("xb") as file:
        for text, line in zip(texts, lines, strict=True):
            if line and (line.get("kind") != "sample" or line["mono"] in kept):
                file.write(text + b"\n")


def _clock(line: Line) -> Clock:
    sent, received = line["sent"], line["received"]
    middle = (sent + received) / 2
    return Clock(at=middle, offset_s=line["sampler"] - middle, error_s=(received - sent) / 2)
