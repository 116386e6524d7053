"""The engine's thread: what is asked of it, and what happens when it fails."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from runners.engine.llama import Llama
from runners.engine.request import Output, Request
from runners.engine.sampling import SamplingParams
from runners.engine.scheduler import Scheduler, Verification
from runners.engine.tokenizer import Tokenizer
from runners.engine.worker import EngineFailed, Worker
from tests import tiny_llama

WAIT_S = 30


@pytest.fixture
def scheduler(tmp_path: Path) -> Scheduler:
    folder = tiny_llama.write(tmp_path)
    return Scheduler(Llama.load(folder), Tokenizer(folder), None, Verification(), 2, seed=0)


class Watched:
    """A worker and events for its state and the end of a request."""

    def __init__(self, load: Any) -> None:
        self.changed, self.ended = threading.Event(), threading.Event()
        self.output: Output | None = None
        self.worker = Worker(load, self.changed.set)
        self.worker.start()
        assert self.changed.wait(WAIT_S)
        self.changed.clear()

    def request(self) -> Request:
        return Request("r", [5, 6], SamplingParams(0.0), 8, self.update)

    def update(self, output: Output) -> None:
        if output.finish is not None:
            self.output = output
            self.ended.set()


def test_serves_a_request(scheduler: Scheduler) -> None:
    watched = Watched(lambda: scheduler)
    assert watched.worker.state == "ready"
    request = watched.request()
    watched.worker.call(lambda s: s.add(request)).result(WAIT_S)
    assert watched.ended.wait(WAIT_S)
    assert watched.output is not None and len(watched.output.ids) == 8


def test_a_callers_mistake_is_the_callers(scheduler: Scheduler) -> None:
    watched = Watched(lambda: scheduler)
    with pytest.raises(ZeroDivisionError):
        watched.worker.call(lambda s: 1 // 0).result(WAIT_S)
    assert watched.worker.call(lambda s: s.idle).result(WAIT_S) is True


def test_a_crash_ends_requests_with_a_typed_error(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(lambda: scheduler)

    def crash() -> None:
        raise FloatingPointError("broken")

    monkeypatch.setattr(scheduler, "step", crash)
    request = watched.request()
    watched.worker.call(lambda s: s.add(request))
    assert watched.ended.wait(WAIT_S) and watched.changed.wait(WAIT_S)
    assert watched.worker.state == "failed"
    assert watched.output is not None and watched.output.finish is not None
    assert watched.output.finish.kind == "abort" and watched.output.finish.error_code == 500
    assert "broken" in str(watched.output.finish.message)
    with pytest.raises(EngineFailed, match="broken"):
        watched.worker.call(lambda s: s.idle).result(WAIT_S)


def test_a_model_that_cannot_be_loaded_is_a_failure() -> None:
    def load() -> Scheduler:
        raise ValueError("no such tensor")

    watched = Watched(load)
    assert watched.worker.state == "failed"
    with pytest.raises(EngineFailed, match="no such tensor"):
        watched.worker.call(lambda s: s.idle).result(WAIT_S)
