"""What a load client is asked to send, and how it sends it: in this process, or in one beside the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from orchestrator.load.loops import Keep, closed_loop, open_loop
from orchestrator.load.request import Limits, Request
from orchestrator.load.self_check import ClientUsage, Watch
from orchestrator.measuring.records import RequestRecord


@dataclass(frozen=True)
class Job:
    """Requests in order, and when they are sent: ``concurrency`` of them in flight, or else at ``times``."""

    url: str
    """As the client sees the server."""
    requests: tuple[Request, ...]
    limits: Limits
    concurrency: int | None = None
    times: tuple[float, ...] = ()
    """Open loop: seconds after the first, one for each request."""


Send = Callable[[Job, Keep], Awaitable[ClientUsage]]
"""Sends a job; ``keep`` gets each record as its request ends, those of a cancelled job included. What ``keep`` raises
ends the job."""


async def send_here(job: Job, keep: Keep) -> ClientUsage:
    """Send a job from this process; returns what that cost it."""
    kept: list[RequestRecord] = []

    def keep_both(record: RequestRecord) -> None:
        kept.append(record)
        keep(record)

    with Watch() as watch:
        if job.concurrency is not None:
            await closed_loop(job.url, job.requests, job.concurrency, job.limits, keep_both)
        else:
            await open_loop(job.url, job.requests, job.times, job.limits, keep_both)
    return watch.usage(kept)
