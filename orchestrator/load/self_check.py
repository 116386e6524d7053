"""What measuring cost this process, and whether it was quick enough to be believed.

Late stamps come from two things: a core that has nothing left to give, and a loop that is busy elsewhere when bytes
arrive. The first shows in CPU time, the second in how late a periodic timer is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Literal, Self

from orchestrator.analysis import metrics
from orchestrator.frozen import Frozen
from orchestrator.load.http import clock
from orchestrator.load.timer import Timer
from orchestrator.measuring.records import RequestRecord

PERIOD_S = 0.02
BUSY_SHARE = 0.8
"""Of one core, from which the client counts as the bottleneck."""
LAG_S = 1e-3
"""A lag up to this moves no figure that is shown."""
LATE_S = 5e-3
LATE_SHARE = 0.1
"""Of the mean gap between releases of an open loop. A lateness above either makes another load than was asked for."""


class ClientUsage(Frozen):
    """The client while it measured one trial."""

    where: Literal["here", "node"] = "here"
    """In the orchestrator's own process, or beside the server."""
    wall_s: float
    cpu_s: float
    """CPU time of this process, all threads."""
    loop_cpu_s: float
    """CPU time of the thread that runs the event loop."""
    lag_p99_s: float
    """How late a timer of every 20 ms was called; of a blocked loop every call that was due meanwhile counts."""
    lag_max_s: float
    chunk_gap_p50_s: float | None
    """Median gap between chunks of one request, for scale; None without two chunks."""
    late_p99_s: float | None = None
    """Open loop: how late requests were sent."""
    late_max_s: float | None = None
    release_gap_s: float | None = None
    """Open loop: mean time between the planned releases of two requests; None without two."""

    @property
    def cpu_share(self) -> float:
        """CPU time of the process per second, in cores."""
        return self.cpu_s / self.wall_s if self.wall_s else 0.0

    @property
    def late(self) -> str | None:
        """How late the requests of an open loop were sent, where that is too late; None where they were in time."""
        late, gap = self.late_p99_s, self.release_gap_s
        if late is None or (late <= LATE_S and (gap is None or late <= LATE_SHARE * gap)):
            return None
        most = f", {1000 * self.late_max_s:.1f} ms at most" if self.late_max_s is not None else ""
        every = f", with one due every {1000 * gap:.1f} ms" if gap is not None else ""
        return f"up to {1000 * late:.1f} ms late (p99{most}){every}"


class Watch:
    """Measures the process while its block runs; needs a running loop."""

    def __enter__(self) -> Self:
        self._lags: list[float] = []
        self._timer = Timer(self._tick)
        self._wall, self._cpu, self._thread = clock(), time.process_time(), time.thread_time()
        self._due = self._wall + PERIOD_S
        self._timer.at(self._due)
        return self

    def __exit__(self, *_: object) -> None:
        self._note(clock())
        self._timer.close()
        self._thread = time.thread_time() - self._thread  # inside the span of the process's
        self._wall, self._cpu = clock() - self._wall, time.process_time() - self._cpu

    def usage(self, records: Iterable[RequestRecord]) -> ClientUsage:
        """After the block; ``records`` are those that were measured in it."""
        measured = list(records)
        gaps = (gap for record in measured for gap, _ in metrics.inter_token_gaps(record))
        late = [record.late_s for record in measured if record.late_s is not None]
        due = [record.sent_at - record.late_s for record in measured if record.late_s is not None]
        return ClientUsage(
            wall_s=self._wall,
            cpu_s=self._cpu,
            loop_cpu_s=self._thread,
            lag_p99_s=metrics.percentiles(self._lags).p99 or 0.0,
            lag_max_s=max(self._lags, default=0.0),
            chunk_gap_p50_s=metrics.percentiles(gaps).p50,
            late_p99_s=metrics.percentiles(late).p99,
            late_max_s=max(late, default=None),
            release_gap_s=(max(due) - min(due)) / (len(due) - 1) if len(due) > 1 else None,
        )

    def _tick(self) -> None:
        self._note(clock())
        self._timer.at(self._due)

    def _note(self, now: float) -> None:
        while self._due <= now:
            self._lags.append(now - self._due)
            self._due += PERIOD_S
