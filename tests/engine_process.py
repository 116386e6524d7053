"""The embedded engine as a process, for tests: started on a free port, stopped at the end, its log at hand."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

START_S = 120


@dataclass
class Engine:
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(self.url, timeout=aiohttp.ClientTimeout(total=START_S))

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(START_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launch(folder: Path | str, log: Path, *flags: str, port: int | None = None) -> Engine:
    """Start without waiting for anything."""
    port = port or free_port()
    command = [
        sys.executable,
        "-m",
        "runners.engine",
        "--model-path",
        str(folder),
        "--port",
        str(port),
        "--threads",
        "1",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *flags], stdout=output, stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
    return Engine(process, port, log)


@contextmanager
def running(folder: Path | str, log: Path, *flags: str) -> Iterator[Engine]:
    """A server that is ready; stopped, and if need be killed, on the way out."""
    engine = launch(folder, log, *flags)
    try:
        deadline = time.monotonic() + START_S
        while b"ready to roll" not in log.read_bytes():
            assert engine.process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield engine
    finally:
        try:
            engine.stop()
        finally:
            engine.process.kill()
            engine.process.wait()
