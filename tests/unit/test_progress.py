"""What a log, which is no terminal, is told while servers start and requests run."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from orchestrator.measuring import progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_slow_start_is_said_once_in_a_log(clock: list[float]) -> None:
    told = io.StringIO()
    with progress.Display(Console(file=told, width=200), 4) as display:
        for _ in range(100):  # 50 s
            display.status("plain: starting the server")
            clock[0] += 0.5
        display.note("plain: server ready after 50.0 s")
    assert told.getvalue().splitlines() == ["plain: starting the server", "plain: server ready after 50.0 s"]


def test_a_quick_start_is_one_line_and_progress_comes_after_silence_only(clock: list[float]) -> None:
    told = io.StringIO()
    with progress.Display(Console(file=told, width=200), 4) as display:
        display.status("plain: starting the server")
        clock[0] += 5
        display.note("plain: server ready after 5.0 s")
        for done in range(30):
            display.status(f"plain: {done} of 30")
            clock[0] += 1
    assert told.getvalue().splitlines() == ["plain: server ready after 5.0 s", "plain: 11 of 30", "plain: 22 of 30"]
