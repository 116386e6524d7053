"""What a person sees while servers are measured: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from orchestrator.analysis import acceptance, metrics
from orchestrator.measuring.records import RequestRecord

_SILENCE_S = 10.0
_WIDTH = 60


class Display:
    """Notes stay, the status is replaced by the next one."""

    def __init__(self, console: Console, total: int) -> None:
        """``total``: requests that will be measured, warm-up included."""
        self.console = console
        self._live = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("requests ·"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            refresh_per_second=2,  # the display shares the cores with the server it watches
            disable=not console.is_terminal,
        )
        self._task = self._live.add_task("", total=total)
        self._last = time.monotonic()
        self._said = ""

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def note(self, text: str, style: str | None = None) -> None:
        """A line that stays."""
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
        self._last = time.monotonic()

    def status(self, text: str) -> None:
        """What is going on now. Off a terminal it is a line only after some silence, and the same text only once."""
        self._live.update(self._task, description=text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…")
        if self.console.is_terminal or text == self._said or time.monotonic() - self._last <= _SILENCE_S:
            return
        self.note(text)  # a log shows that something is going on, and not each step of it
        self._said = text

    def expect(self, more: int) -> None:
        """So many requests more than said at first will be measured."""
        self._live.update(self._task, total=(self._live.tasks[self._task].total or 0) + more)

    def advance(self) -> None:
        """One request more has ended."""
        self._live.advance(self._task)


def trial_line(place: str, records: Sequence[RequestRecord]) -> str:
    """One line about a finished trial."""
    figures = metrics.compute(records)
    parts = [place, f"{figures.requests} requests in {figures.wall_s or 0:.1f} s"]
    if figures.output_tok_s:
        parts.append(f"{figures.output_tok_s:.1f} tok/s")
    accepted = acceptance.pooled(metrics.measured(records))
    if accepted:
        parts.append(f"tau {accepted.tau:.2f}")
    failed = figures.failed
    if failed:
        parts.append("not well ended: " + ", ".join(f"{count} {outcome}" for outcome, count in failed.items()))
    return " · ".join(parts)
