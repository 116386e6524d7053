"""From samples to what happened inside one trial: from its first request sent to its last byte received."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from orchestrator.frozen import Frozen
from orchestrator.measuring.records import RequestRecord
from orchestrator.telemetry.samples import Line, Samples

MAX_GAP_S = 1.0
"""Samples further apart than this say nothing about what is between them."""

THROTTLES: dict[int, str] = {
    # NVML's clocks event reasons (nvml.h, nvmlClocksEventReason*) that lower clocks below what was set.
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Idle clocks (0x01), clocks that someone set (0x02, 0x100) and sync boost (0x10) are no throttling."""

_Points = Sequence[tuple[float, float]]


class Spread(Frozen):
    """Of the samples inside the window."""

    mean: float
    low: float
    high: float


class GpuUsage(Frozen):
    """One GPU in one trial; None where the GPU does not say."""

    name: str | None
    uuid: str | None
    used_bytes: Spread | None
    server_bytes: Spread | None
    """Of the server's processes; None where NVML names none of them (containers may hide them)."""
    other_bytes: Spread | None
    """Of processes that are not the server's; known where ``server_bytes`` is."""
    before_bytes: int | None
    """Used before the server was there; None where the first sample came too late for that."""
    utilisation: Spread | None
    """Share of the time with any kernel running, 0..1."""
    power_w: Spread | None
    sm_mhz: Spread | None
    memory_mhz: Spread | None
    temperature_c: Spread | None
    throttled: dict[str, float] | None
    """Reason -> share of the samples; empty where it never throttled."""
    throttled_share: float | None
    """Share of the samples with any of the reasons."""
    counter_j: float | None
    """Energy by the GPU's own counter, read off at the window's two ends."""
    integrated_j: float | None
    """Energy by the trapezoid rule over the power samples; None where they have a gap."""

    @property
    def energy_j(self) -> float | None:
        return self.integrated_j if self.counter_j is None else self.counter_j


class TrialUsage(Frozen):
    """One trial's window."""

    seconds: float
    output_tokens: int
    samples: int
    longest_gap_s: float
    """Longest time without a sample inside the window."""
    gpus: list[GpuUsage]
    rss_bytes: Spread | None
    """Sum over the server's processes."""
    cpu_s: float | None
    """User and system time of the server's processes."""
    sampler_cpu_s: float | None
    """What the sampling itself cost."""
    others_cores: float | None = None
    """Cores that neither the server nor the client nor the sampler used, mean; None in records that do not know it."""
    node_cores: int | None = None
    """Logical cores of the server's node."""
    clock_error_s: float
    """The window's place on the sampler's clock is right to this."""
    absent: str | None
    """Why there is less than was asked for."""

    @property
    def energy_j(self) -> float | None:
        """Of all GPUs; None where one of them is not known, or there is none."""
        joules = [gpu.energy_j for gpu in self.gpus]
        known = [value for value in joules if value is not None]
        return sum(known) if known and len(known) == len(joules) else None


def span(records: Iterable[RequestRecord]) -> tuple[float, float] | None:
    """First send and last byte of the measured requests, client's monotonic clock, s; None where none was sent.

    A request that did not end well has no last byte; its last chunk stands in for it.
    """
    timed = [record for record in records if record.phase == "measure"]
    if not timed:
        return None
    ends = [record.sent_at + _length_s(record) for record in timed]
    return min(record.sent_at for record in timed), max(ends)


def _length_s(record: RequestRecord) -> float:
    if record.e2e_s is not None:
        return record.e2e_s
    return record.chunks[-1][0] if record.chunks else 0.0


def usage(samples: Samples, records: Sequence[RequestRecord], client_s: float = 0.0) -> TrialUsage | None:
    """What one trial's requests cost. None where the trial has no measured request.

    ``client_s``: CPU time of a load client on the node that the sampler does not see.
    """
    window = span(records)
    if window is None:
        return None
    start, end = window
    around = samples.between(start, end, margin=MAX_GAP_S)
    inside = [line for time, line in around if start <= time <= end]
    tokens = sum(record.completion_tokens or 0 for record in records if record.phase == "measure")
    server = [(time, line["server"]) for time, line in around if line["server"]]
    cpu_s = _difference([(time, read["cpu_s"]) for time, read in server], start, end)
    sampler_cpu_s = _difference([(time, line["cpu_s"]) for time, line in around], start, end)
    return TrialUsage(
        seconds=end - start,
        output_tokens=tokens,
        samples=len(inside),
        longest_gap_s=_longest_gap([time for time, _ in around], start, end),
        gpus=[
            _gpu(place, facts, samples.lines[:1], around, inside, start, end)
            for place, facts in enumerate(samples.start.get("gpus", []))
        ],
        rss_bytes=_spread(line["server"]["rss_bytes"] for line in inside if line["server"]),
        cpu_s=cpu_s,
        sampler_cpu_s=sampler_cpu_s,
        others_cores=_others_cores(around, start, end, cpu_s, (sampler_cpu_s or 0.0) + client_s),
        node_cores=samples.start.get("cores"),
        clock_error_s=samples.clock((start + end) / 2).error_s,
        absent=_absent(samples),
    )


def _others_cores(
    around: Sequence[tuple[float, Line]], start: float, end: float, server_s: float | None, own_s: float
) -> float | None:
    """What of the node's busy time was nobody's here, per second. Where the client cannot be seen it runs elsewhere, or
    is in ``own_s`` with the sampler."""
    read = [(time, line["host"]) for time, line in around if line.get("host")]
    busy = _difference([(time, host["busy_s"]) for time, host in read], start, end)
    if busy is None or server_s is None or end <= start:
        return None
    seen = [(time, host["client_cpu_s"]) for time, host in read if host["client_cpu_s"] is not None]
    client = _difference(seen, start, end) or 0.0
    # The node counts in ticks, processes to the microsecond: of an idle node the difference can fall below 0.
    return max(0.0, busy - server_s - client - own_s) / (end - start)


def _gpu(
    place: int,
    facts: Line,
    first: Sequence[Line],
    around: Sequence[tuple[float, Line]],
    inside: Sequence[Line],
    start: float,
    end: float,
) -> GpuUsage:
    readings = [line["gpus"][place] for line in inside]

    def spread(name: str) -> Spread | None:
        return _spread(reading[name] for reading in readings)

    def points(name: str) -> list[tuple[float, float]]:
        found = [(time, line["gpus"][place][name]) for time, line in around]
        return [(time, value) for time, value in found if value is not None]

    masks = [reading["reasons"] for reading in readings if reading["reasons"] is not None]
    shares = {name: sum(bool(mask & bit) for mask in masks) / len(masks) for bit, name in THROTTLES.items() if masks}
    any_bit = sum(THROTTLES)
    own, other = _by_process(inside, place)
    return GpuUsage(
        name=facts["name"],
        uuid=facts["uuid"],
        used_bytes=spread("used_bytes"),
        server_bytes=_spread(own),
        other_bytes=_spread(other),
        before_bytes=next((line["gpus"][place]["used_bytes"] for line in first if line["server"] is None), None),
        utilisation=spread("utilisation"),
        power_w=spread("power_w"),
        sm_mhz=spread("sm_mhz"),
        memory_mhz=spread("memory_mhz"),
        temperature_c=spread("temperature_c"),
        throttled={name: share for name, share in shares.items() if share} if masks else None,
        throttled_share=sum(bool(mask & any_bit) for mask in masks) / len(masks) if masks else None,
        counter_j=_difference(points("energy_j"), start, end),
        integrated_j=_integral(points("power_w"), start, end),
    )


def _by_process(inside: Sequence[Line], place: int) -> tuple[list[int], list[int]]:
    """Bytes of the server's processes and of the others, per sample in which NVML names at least one of the server's.

    Without that its ids may be those of another process namespace, and every process would look like a stranger.
    """
    own, other = [], []
    for line in inside:
        listed: dict[str, int | None] = line["gpus"][place]["processes"] or {}
        mine = {str(pid) for pid in line["server"]["pids"]} & set(listed) if line["server"] else set()
        if mine and all(size is not None for size in listed.values()):
            own.append(sum(size or 0 for pid, size in listed.items() if pid in mine))
            other.append(sum(size or 0 for pid, size in listed.items() if pid not in mine))
    return own, other


def _absent(samples: Samples) -> str | None:
    start, end = samples.start, samples.end
    said = [start.get("gpus_absent"), start.get("processes_absent")]
    if end and end["code"] != 0:
        said.append(f"the sampler ended with code {end['code']}: {(end['said'] or 'it said nothing').splitlines()[-1]}")
    return "; ".join(text for text in said if text) or None


def _spread(values: Iterable[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(mean=sum(known) / len(known), low=min(known), high=max(known)) if known else None


def _longest_gap(times: Sequence[float], start: float, end: float) -> float:
    """Longest stretch of the window without a sample. A sample just outside bounds it as well as one inside."""
    bounded = [time for time in times if time < start][-1:] or [start]
    bounded += [time for time in times if start <= time <= end]
    bounded += [time for time in times if time > end][:1] or [end]
    # Only what lies inside the window counts.
    clipped = [min(max(time, start), end) for time in bounded]
    return max((later - earlier for earlier, later in pairwise(clipped)), default=end - start)


def _at(points: _Points, time: float) -> float | None:
    """Value at a time, linear between the samples before and after it; None where they are too far apart."""
    for (before, low), (after, high) in pairwise(points):
        if before <= time <= after and after - before <= MAX_GAP_S:
            return low + (high - low) * (time - before) / (after - before) if after > before else low
    return None


def _difference(points: _Points, start: float, end: float) -> float | None:
    """Growth of a counter over the window; None where an end of the window is not known, or the counter was reset."""
    first, last = _at(points, start), _at(points, end)
    return last - first if first is not None and last is not None and last >= first else None


def _integral(points: _Points, start: float, end: float) -> float | None:
    """Trapezoid rule over the window, its ends interpolated; None where samples are missing."""
    first, last = _at(points, start), _at(points, end)
    if first is None or last is None:
        return None
    path = [(start, first), *((time, value) for time, value in points if start < time < end), (end, last)]
    if any(after - before > MAX_GAP_S for (before, _), (after, _) in pairwise(path)):
        return None
    return sum((after - before) * (low + high) / 2 for (before, low), (after, high) in pairwise(path))
