"""Is the server up, and is it ours? From its log and from one `/server_info`; nothing is asked while it is measured.

`/health` is no proof and no free question: it answers for whoever has the port, and each call is a request that the
scheduler works on. Nor is the line "The server is fired up and ready to roll!" alone: where the port was taken,
SGLang's warm-up talks to the other server and prints it all the same, after the error. So ours is ready when its log
says that it listens and that it is up, without a bind error, and when what answers on the port has the name that was
made for this start.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_STAGES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), stage)
    for pattern, stage in (
        (r"server_args=ServerArgs\(", "starting its processes"),
        (r"Init torch distributed begin", "setting up the GPU"),
        (r"Load weight begin", "loading the target"),
        (r"(KV|Mamba) Cache (is allocated|VA upper bound)", "allocating caches"),
        (r"Capture ([\w ]+?) CUDA graph begin", "capturing CUDA graphs ({0})"),
        (r"Uvicorn running on", "warming up"),
    )
)
_PROCESS = re.compile(r"Started server process \[(\d+)\]")
_LISTENS = re.compile(r"Uvicorn running on (?:https?://)?\S+?:(\d+)")
_BIND_FAILED = re.compile(r"\[Errno 98\]|address already in use", re.IGNORECASE)
_FIRED_UP = "The server is fired up and ready to roll!"


@dataclass
class StartLog:
    """What the log of a start has said so far; fed line by line, so that a runner reads each line once."""

    stage: str = "starting"
    """What the server is doing, for a person who waits."""
    pid: int | None = None
    """The server's own process, as numbered where it runs: in a container mostly 1."""
    port: int | None = None
    """Port that it listens on; None before."""
    bind_failed: bool = False
    fired_up: bool = False
    _loaded: bool = False

    @property
    def ready(self) -> bool:
        return self.port is not None and self.fired_up and not self.bind_failed

    def feed(self, line: str) -> None:
        for pattern, stage in _STAGES:
            if found := pattern.search(line):
                self.stage = stage.format(*found.groups())
        if "Load weight end" in line:
            self._loaded = True
        elif "Load weight begin" in line and self._loaded:
            self.stage = "loading the drafter"
        if found := _PROCESS.search(line):
            self.pid = int(found[1])
        if found := _LISTENS.search(line):
            self.port = int(found[1])
        if _BIND_FAILED.search(line):
            self.bind_failed = True
        if _FIRED_UP in line:
            self.fired_up = True
            self.stage = "ready" if self.ready else "listening nowhere"


def read(lines: Iterable[str]) -> StartLog:
    log = StartLog()
    for line in lines:
        log.feed(line)
    return log


def served_name(target: str) -> str:
    """A model name that no other server has; SGLang gives it back in `/server_info`. Clients need not use it: SGLang
    answers to any name."""
    return f"{target}-{secrets.token_hex(4)}"


def not_ours(
    server_info: Mapping[str, Any], log: StartLog, name: str, port: int, seed: int, pids: Iterable[int] | None = None
) -> list[str]:
    """Why the server that answered is not the one that was started; [] when it is proven to be.

    ``name``, ``port`` and ``seed`` are those of its command line. ``pids``: the processes that were started, where they
    are numbered as in the log (not across containers).
    """
    told = []
    if log.bind_failed:
        told.append(f"its log says that port {port} was taken when it wanted to listen")
    elif log.port != port:
        told.append(f"its log does not say that it listens on port {port}")
    asked = {"served_model_name": name, "port": port, "random_seed": seed}
    told += [
        f"{key}: started with {value!r}, answers {server_info.get(key)!r}"
        for key, value in asked.items()
        if server_info.get(key) != value
    ]
    if pids is not None and log.pid not in set(pids):
        told.append(f"process {log.pid} of its log is none of those that were started")
    return told
