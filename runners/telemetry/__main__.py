"""The sampler: one JSON line per sample on standard output until standard input closes."""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from runners.telemetry.gpu import Gpus
from runners.telemetry.processes import Host, Processes

SCHEMA = 1
_DESCRIPTION = """Samples GPUs and processes and writes JSON lines to standard output.

It ends when standard input closes, so it never outlives the process that started it.
Commands on standard input, one JSON object a line: {"watch": [PID, ...]} watches these process
trees from now on; {"clock": ID} takes a sample at once and answers with this node's monotonic clock."""


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    gpus = Gpus(arguments.gpus)
    processes = Processes(arguments.pid)
    host = Host(arguments.client)
    commands = Commands(sys.stdin.fileno())
    interval = arguments.interval_ms / 1000
    try:
        _write(
            {
                "kind": "start",
                "schema": SCHEMA,
                "pid": os.getpid(),
                "interval_s": interval,
                "wall": time.time(),
                "mono": time.monotonic(),
                "cores": host.cores,
                "driver": gpus.driver,
                "gpus": gpus.describe(),
                "gpus_absent": gpus.absent,
                "processes_absent": processes.absent,
            }
        )
        due = time.monotonic()
        while True:
            for command in commands.until(due):
                if "watch" in command:
                    processes.watch(map(int, command["watch"]))
                elif "clock" in command:
                    _sample(gpus, processes, host)
                    _write({"kind": "reply", "id": command["clock"], "mono": time.monotonic()})
                else:
                    _write({"kind": "refused", "command": command})
            now = time.monotonic()
            if now < due:
                continue
            _sample(gpus, processes, host)
            # Ticks that were missed are not made up for: a burst of late samples would say nothing about the past.
            due += interval * (1 + (now - due) // interval)
    except EOFError:
        _sample(gpus, processes, host)  # how it ended: a server may have gone since the last one
        return 0
    except BrokenPipeError:  # nobody reads any more
        return 0


class Commands:
    """Lines on a file descriptor, without blocking a sample."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""

    def until(self, due: float) -> Iterator[dict[str, Any]]:
        """The commands that arrive before ``due`` (monotonic, s), at least one look. Raises EOFError at the end."""
        while True:
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, due - time.monotonic()))
            if not ready:
                return
            data = os.read(self._descriptor, 65536)
            if not data:
                raise EOFError
            *lines, self._rest = (self._rest + data).split(b"\n")
            yield from (_command(line) for line in lines if line.strip())


def _command(line: bytes) -> dict[str, Any]:
    try:
        command = json.loads(line)
    except ValueError:
        command = None
    return command if isinstance(command, dict) else {"not understood": line.decode(errors="replace")}


def _sample(gpus: Gpus, processes: Processes, host: Host) -> None:
    # "cpu_s" is what this process itself has cost so far.
    line = {"kind": "sample", "mono": time.monotonic(), "wall": time.time(), "cpu_s": time.process_time()}
    _write(line | {"gpus": gpus.read(), "server": processes.read(), "host": host.read()})


def _write(line: dict[str, Any]) -> None:
    # Without a buffer between, so that a line is one piece: others append to the same file.
    data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m runners.telemetry", description=_DESCRIPTION, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--interval-ms", type=_milliseconds, default=100.0, help="time between samples (default: 100)")
    parser.add_argument("--gpus", default="all", help="all, none, or indices and UUIDs: 0,1 (default: all)")
    parser.add_argument("--pid", type=int, action="append", default=[], help="a process to watch with its children")
    parser.add_argument("--client", type=int, help="process that sends the requests: its CPU time is told apart")
    return parser.parse_args(words)


def _milliseconds(text: str) -> float:
    value = float(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least 1 ms")
    return value


if __name__ == "__main__":
    sys.exit(main())
