"""Sends one request and makes its record. Nothing that goes wrong with a request is raised: it becomes its outcome."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable

import orjson

from orchestrator.load import generate, openai
from orchestrator.load.answer import Answer, Reader, message
from orchestrator.load.events import EventSplitter
from orchestrator.load.http import Broken, Connection, Line, Stalled, clock
from orchestrator.load.request import Limits, Request
from orchestrator.measuring.records import Outcome, RequestRecord


async def send(
    line: Line, request: Request, limits: Limits, release: Callable[[], Awaitable[float]] | None = None
) -> RequestRecord:
    """Send one request and return its record, whatever happens to it.

    With ``release`` it is sent when that returns (the time for which it was planned), on a connection that is open
    before. A cancellation too ends in a record (outcome ``cancelled``), so that the caller can keep it before it stops.
    """
    path, payload, reader = _dialect(request)
    sink = EventSplitter(reader.event).feed
    outcome: Outcome = "ok"
    error: str | None = None
    due: float | None = None
    ended: float | None = None
    wall, started = time.time(), clock()
    try:
        connection = await _opened(line)
        if release is not None:
            due = await release()
        wall, started = time.time(), clock()
        if isinstance(connection, Broken):
            raise connection
        response = await connection.exchange("POST", path, payload, sink, limits.timeout_s, limits.stall_timeout_s)
        ended = response.ended_at
        if response.status != 200:
            outcome, error = "error", f"HTTP {response.status}: {message(response.body)}"
    except TimeoutError:
        outcome, error = "timeout", f"no end after {limits.timeout_s:g} s"
    except Stalled:
        outcome, error = "stalled", f"no byte for {limits.stall_timeout_s:g} s inside the answer"
    except Broken as problem:
        outcome, error = "truncated" if problem.began else "error", str(problem)
    except asyncio.CancelledError:
        outcome, error = "cancelled", "cancelled by the caller"
    answer = reader.finish() if outcome != "error" else Answer()
    if outcome == "ok" and (wrong := answer.problem or _cut_short(answer, request.sampling.max_new_tokens)):
        outcome, error = wrong
    return RequestRecord(
        trial_key=request.trial_key,
        arm=request.arm,
        session_index=request.session_index,
        phase=request.phase,
        endpoint=request.endpoint,
        prompt_id=request.prompt_id,
        category=request.category,
        prompt_sha256=hashlib.sha256(_prompt(request)).hexdigest(),
        repeat=request.repeat,
        sent_wall_time=wall,
        sent_at=started,
        late_s=None if due is None else started - due,
        chunks=[(seconds - started, tokens) for seconds, tokens in answer.chunks],
        e2e_s=ended - started if ended is not None and outcome == "ok" else None,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        cached_tokens=answer.cached_tokens,
        output_ids=answer.output_ids,
        text=answer.text,
        finish_reason=answer.finish_reason,
        top2=answer.top2 if request.phase == "probe" else None,
        spec=answer.spec,
        outcome=outcome,
        error=error,
    )


def _cut_short(answer: Answer, limit: int) -> tuple[Outcome, str] | None:
    """SGLang ends an output that its cache does not hold as if the token limit had been reached."""
    if answer.finish_reason != "length" or answer.completion_tokens is None or answer.completion_tokens >= limit:
        return None
    got = f"{answer.completion_tokens} of {limit} tokens"
    return "truncated", f"the server ended it after {got}: its cache or its context holds no more"


async def _opened(line: Line) -> Connection | Broken:
    """A server that cannot be reached is told when the request would have been sent, not before."""
    try:
        return await line.open()
    except Broken as problem:
        return problem


def _dialect(request: Request) -> tuple[str, bytes, Reader]:
    """Path, body, and what reads the answer."""
    if request.endpoint == "generate":
        return generate.PATH, generate.body(request), generate.GenerateReader()
    return openai.PATHS[request.endpoint], openai.body(request), openai.OpenAIReader()


def _prompt(request: Request) -> bytes:
    if request.endpoint != "chat":
        return request.text.encode()
    return orjson.dumps([request.messages, request.template_kwargs])
