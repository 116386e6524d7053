"""The thread that loads the model and runs the scheduler; the HTTP loop talks to it through ``call``."""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from runners.engine.fetch import ModelUnavailable
from runners.engine.request import Finish
from runners.engine.scheduler import Scheduler

_THROUGHPUT_WINDOW_S = 1.0
_USER_ERRORS = (ModelUnavailable, ValueError, OSError)


class EngineFailed(RuntimeError):
    """The engine's thread ended with an exception, or the model could not be loaded."""


class Worker:
    """``state`` goes from starting to ready, or to failed with ``failure`` set."""

    def __init__(self, load: Callable[[], Scheduler], on_state: Callable[[], None]) -> None:
        """``load`` runs on the thread; ``on_state`` is called on it when the state changes."""
        self.state = "starting"
        self.failure: BaseException | None = None
        self.gen_throughput = 0.0
        """Output tokens per second over the last second or more of work."""
        self._load, self._on_state = load, on_state
        self._inbox: deque[tuple[Callable[[Scheduler], Any], Future[Any]]] = deque()
        self._wake = threading.Condition()
        # A daemon: a forward in progress cannot be interrupted, and the process must end without it.
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def call(self, action: Callable[[Scheduler], Any]) -> Future[Any]:
        """Run ``action`` on the engine's thread between two steps."""
        future: Future[Any] = Future()
        with self._wake:
            if self.state == "failed":
                future.set_exception(EngineFailed(f"the engine failed: {self.failure}"))
            else:
                self._inbox.append((action, future))
                self._wake.notify()
        return future

    def _main(self) -> None:
        scheduler: Scheduler | None = None
        try:
            scheduler = self._load()
            self._set("ready")
            self._loop(scheduler)
        except BaseException as error:
            # A model or drafter that cannot be loaded is the user's to mend: the message says it all.
            if scheduler is not None or not isinstance(error, _USER_ERRORS):
                traceback.print_exc()
            with self._wake:
                self.failure = error
                self.state = "failed"
                pending, self._inbox = self._inbox, deque()
            for _, future in pending:
                future.set_exception(EngineFailed(f"the engine failed: {error}"))
            if scheduler is not None:
                scheduler.abort(None, Finish("abort", message=f"the engine failed: {error!r}", error_code=500))
            self._on_state()

    def _loop(self, scheduler: Scheduler) -> None:
        since, tokens = time.monotonic(), 0
        while True:
            with self._wake:
                if scheduler.idle and not self._inbox:
                    while not self._inbox:
                        self._wake.wait()
                    since, tokens = time.monotonic(), scheduler.totals.output_tokens
                actions, self._inbox = self._inbox, deque()
            for action, future in actions:
                try:
                    future.set_result(action(scheduler))
                except Exception as error:  # the caller's mistake, not the engine's
                    future.set_exception(error)
            if not scheduler.idle:
                scheduler.step()
            elapsed = time.monotonic() - since
            done = scheduler.totals.output_tokens
            if elapsed >= _THROUGHPUT_WINDOW_S or (scheduler.idle and done > tokens):
                self.gen_throughput = (done - tokens) / elapsed
                since, tokens = time.monotonic(), done

    def _set(self, state: str) -> None:
        self.state = state
        self._on_state()
