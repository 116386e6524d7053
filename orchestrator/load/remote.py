"""The load client beside a server on another machine: jobs go to `worker.py` there, records come back as they end.

Its stamps are of its own machine, so the network between here and there is in none of them. Each record's
``sent_at`` is then moved to the clock of this process, to which all else in a record is relative; the two clocks are
related to half the round trip of a question, and only the windows of the telemetry depend on that.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Any

import orjson

from orchestrator.load.http import clock
from orchestrator.load.job import Job, Send, send_here
from orchestrator.load.loops import Keep
from orchestrator.load.self_check import ClientUsage
from orchestrator.load.worker import LINE_BYTES
from orchestrator.measuring.records import RequestRecord

_START_S = 60.0
_ANSWER_S = 10.0
_END_S = 5.0
_QUESTIONS = 5
_SAID = 500


class ClientLost(Exception):
    """The load client did not start, ended, or does not answer; the message says what it said last."""


@contextlib.asynccontextmanager
async def load_client(command: Sequence[str]) -> AsyncIterator[Send]:
    """What sends jobs: this process without a ``command``, else the worker that it starts, which has ended after.

    Raises ClientLost, and so does what it gives.
    """
    if not command:
        yield send_here
        return
    with tempfile.TemporaryFile() as said:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=said,
                limit=LINE_BYTES,
                start_new_session=True,  # Ctrl-C is for the orchestrator, which then cancels the job
            )
        except OSError as problem:
            raise ClientLost(f"the load client did not start: {problem}") from problem
        client = _Remote(process, said)
        try:
            await client.expect("hello", _START_S)
            yield client.send
        finally:
            await client.close()


class _Remote:
    def __init__(self, process: asyncio.subprocess.Process, said: Any) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process, self._said = process, said
        self._in, self._out = process.stdin, process.stdout

    async def send(self, job: Job, keep: Keep) -> ClientUsage:
        offset = await self._offset()
        self._tell("job", job=asdict(job))
        try:
            usage = await self._records(keep, offset)
        except ClientLost:
            raise
        except asyncio.CancelledError:
            await self._cancel(keep, offset)
            raise
        except BaseException:  # of ``keep``
            await self._cancel(lambda record: None, offset)
            raise
        if usage is None:
            raise ClientLost("the load client gave the job up unasked")
        return usage

    async def _records(self, keep: Keep, offset: float) -> ClientUsage | None:
        while True:
            told = await self._line()
            if told["kind"] == "record":
                record = RequestRecord.model_validate(told["record"])
                keep(record.model_copy(update={"sent_at": record.sent_at - offset}))
            elif told["kind"] == "done":
                usage = told["usage"]
                return None if usage is None else ClientUsage.model_validate({**usage, "where": "node"})
            elif told["kind"] == "failed":
                raise ClientLost(f"the load client failed: {told['said']}")

    async def _cancel(self, keep: Keep, offset: float) -> None:
        with contextlib.suppress(ClientLost, TimeoutError):
            self._tell("cancel")
            await asyncio.wait_for(self._records(keep, offset), _END_S)

    async def _offset(self) -> float:
        """The client's clock minus that of this process, s, by the quickest of some questions."""
        found = []
        for _ in range(_QUESTIONS):
            sent = clock()
            self._tell("clock")
            told = await self.expect("clock", _ANSWER_S)
            received = clock()
            found.append((received - sent, told["at"] - (sent + received) / 2))
        return min(found)[1]

    async def expect(self, kind: str, within_s: float) -> dict[str, Any]:
        try:
            told = await asyncio.wait_for(self._line(), within_s)
        except TimeoutError as problem:
            raise ClientLost(f"the load client gave no answer for {within_s:g} s") from problem
        if told["kind"] != kind:
            raise ClientLost(f"the load client said {told['kind']} in place of {kind}")
        return told

    async def _line(self) -> dict[str, Any]:
        line = await self._out.readline()
        if not line.endswith(b"\n"):
            await self._process.wait()
            self._said.seek(0)
            said = self._said.read().decode(errors="replace").strip()[-_SAID:]
            raise ClientLost(f"the load client ended{f': {said}' if said else ', and said nothing'}")
        try:
            return dict(orjson.loads(line))
        except (orjson.JSONDecodeError, ValueError) as problem:
            raise ClientLost(f"the load client said what is no line of it: {line[:200]!r}") from problem

    def _tell(self, kind: str, **content: Any) -> None:
        self._in.write(orjson.dumps({"kind": kind, **content}) + b"\n")

    async def close(self) -> None:
        """The end of its input ends it."""
        with contextlib.suppress(OSError):
            self._in.close()
        try:
            await asyncio.wait_for(self._process.wait(), _END_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
