"""Starts the sampler beside a server, keeps its clock and the client's related, and stops it.

A measurement never fails for want of telemetry: what goes wrong with the sampler is written into its file.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from orchestrator.schema import ArmConfig, AttachRunner
from orchestrator.telemetry.samples import parse

COMMAND = (sys.executable, "-m", "runners.telemetry")
"""On this machine; in a container or on another node it is the same with something before it that passes standard input
and output through (``docker exec -i``, ``ssh``)."""

_ANSWER_S = 2.0
_POLL_S = 0.0005
_END_S = 2.0
_SAID = 500


def sampled_gpus(arm: ArmConfig) -> str:
    """The GPUs of this machine that an arm's server uses: of the embedded engine none, whatever is there."""
    elsewhere = isinstance(arm.runner, AttachRunner) and not arm.runner.here
    return "none" if elsewhere else ",".join(map(str, arm.chosen_gpus)) or "none"


class Sampler:
    """A running sampler that appends its lines to a new file; a context manager, and closed it is gone.

    ``gpus``: ``none``, or indices and UUIDs with commas between them. ``pids``: process trees to watch from the first
    sample on; without any, the samples up to `watch` tell what was there before the server.
    """

    def __init__(self, path: Path, gpus: str, command: Sequence[str] = COMMAND, pids: Iterable[int] = ()) -> None:
        self.path = path
        self.gpus: list[dict[str, Any]] = []
        """What does not change, by GPU (name, memory, ...), once the sampler has said it."""
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND)
        self._reader = path.open("rb")
        self._rest = b""
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._count = 0
        self._process: subprocess.Popen[bytes] | None = None
        # On another machine, or in a container, its number would be another process's.
        client = ("--client", str(os.getpid())) if tuple(command[: len(COMMAND)]) == COMMAND else ()
        try:
            self._process = subprocess.Popen(
                [*command, "--gpus", gpus, *client, *(word for pid in pids for word in ("--pid", str(pid)))],
                stdin=subprocess.PIPE,
                # Straight into the file: lines that passed through here would take this process' time while it
                # stamps the answers of a server.
                stdout=self._file,
                stderr=self._said,
                # Ctrl-C is for the orchestrator, which then closes the sampler's standard input.
                start_new_session=True,
                bufsize=0,
            )
        except OSError as problem:
            self._write({"kind": "end", "code": None, "said": f"the sampler did not start: {problem}"})

    def watch(self, pids: Iterable[int]) -> None:
        """From now on watch the process trees of these (ids of the node that the sampler runs on)."""
        self._tell({"watch": list(pids)})

    def synchronize(self) -> None:
        """Have a sample taken now, and relate the sampler's clock to the one that stamps requests.

        That is ``time.perf_counter`` of this process. The sampler's clock was read between sending and receiving, so
        the error is at most half of that.
        """
        self._count += 1
        sent = time.perf_counter()
        self._tell({"clock": self._count})
        while self._process is not None and time.perf_counter() < sent + _ANSWER_S:
            for found in self._new_lines():
                if found.get("kind") == "start":
                    self.gpus = found["gpus"]
                if found.get("kind") == "reply" and found.get("id") == self._count:
                    received = time.perf_counter()
                    self._write({"kind": "clock", "sent": sent, "received": received, "sampler": found["mono"]})
                    return
            if self._process.poll() is not None:
                return
            time.sleep(_POLL_S)

    def close(self) -> None:
        """End the sampler; how it ended is its file's last line."""
        if self._reader.closed:
            return
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
            code: int | None
            try:
                code = process.wait(_END_S)
            except subprocess.TimeoutExpired:  # a driver that hangs
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)
                code = process.poll()
            self._said.seek(0)
            said = self._said.read().decode(errors="replace").strip()[-_SAID:]
            self._write({"kind": "end", "code": code, "said": said})
        os.close(self._file)
        self._reader.close()
        self._said.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _new_lines(self) -> list[dict[str, Any]]:
        *lines, self._rest = (self._rest + self._reader.read()).split(b"\n")
        return [parse(line) for line in lines]

    def _tell(self, command: dict[str, Any]) -> None:
        if self._process is None or self._process.stdin is None:
            return
        with contextlib.suppress(OSError):  # it has ended; close() says how
            self._process.stdin.write(orjson.dumps(command) + b"\n")

    def _write(self, line: dict[str, Any]) -> None:
        # The first line break ends what a killed sampler may have left of a line.
        with contextlib.suppress(OSError):  # a full disk stops the request records, too, and they say so
            os.write(self._file, b"\n" + orjson.dumps(line) + b"\n")
