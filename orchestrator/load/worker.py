"""The load client as a process of its own: ``python -m orchestrator.load.worker``, on the node that serves.

Lines of JSON. Asked on standard input: ``clock``, ``job`` (one at a time), ``cancel``. Told on standard output:
``hello`` once it can, then ``clock``, and for a job each ``record`` as its request ends and ``done``, or ``failed``.
The end of its input ends it. `remote.py` is the other side.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any

import orjson
import uvloop
from pydantic import TypeAdapter

from orchestrator.load.http import clock
from orchestrator.load.job import Job, send_here
from orchestrator.measuring.records import RequestRecord

LINE_BYTES = 2**30
"""Longest line: a job holds every prompt."""
_JOB = TypeAdapter(Job)


class Worker:
    def __init__(self, out: asyncio.WriteTransport) -> None:
        self._out = out
        self._task: asyncio.Task[None] | None = None

    def tell(self, kind: str, **content: Any) -> None:
        """Never waits: a slow reader at the other side must not hold up the loop that stamps answers."""
        self._out.write(orjson.dumps({"kind": kind, **content}) + b"\n")

    async def serve(self, lines: asyncio.StreamReader) -> None:
        self.tell("hello")
        while line := await lines.readline():
            asked = orjson.loads(line)
            if asked["kind"] == "clock":
                self.tell("clock", at=clock())
            elif asked["kind"] == "job":
                self._task = asyncio.create_task(self._run(_JOB.validate_python(asked["job"])))
            elif self._task is not None:
                self._task.cancel()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, job: Job) -> None:
        try:
            usage = await send_here(job, self._keep)
        except asyncio.CancelledError:
            self.tell("done", usage=None)
        except Exception as problem:  # whatever it is, the other side has to be told
            self.tell("failed", said=f"{type(problem).__name__}: {problem}")
        else:
            self.tell("done", usage=usage.model_dump(mode="json"))

    def _keep(self, record: RequestRecord) -> None:
        self.tell("record", record=record.model_dump(mode="json"))


async def main() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer)
    out, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sys.stdout.buffer)
    await Worker(out).serve(lines)
    out.close()  # once what was told is written


if __name__ == "__main__":
    uvloop.run(main())
