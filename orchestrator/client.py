"""Streaming client for SGLang's ``/generate``: sends one request, stamps what arrives, parses it afterwards.

While a request runs, nothing happens but noting (time, bytes) of each read; what the bytes mean is worked out when the
request is over. Token counts are the server's ``meta_info.completion_tokens``, never a count of re-tokenised text.
Nothing that goes wrong with one request is raised: it becomes the outcome of that request.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
import orjson

from orchestrator.records import Outcome, RequestRecord, SpecCounters

_SPEC_KEYS = tuple(SpecCounters.model_fields)
_HEADERS = {"Content-Type": "application/json"}
_DONE = b"[DONE]"


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters; all of them are sent, since a server's own defaults come from the model's files."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()

    def body(self) -> dict[str, Any]:
        """Under SGLang's names."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "sampling_seed": self.seed,
            "ignore_eos": self.ignore_eos,
            "stop": list(self.stop),
        }


@dataclass(frozen=True)
class Request:
    """One request to send, and what its record says about it besides what the server answers."""

    text: str
    """Chat template already applied."""
    sampling: Sampling
    trial_key: str
    arm: str
    session_index: int
    phase: Literal["warmup", "measure", "probe"]
    prompt_id: str
    category: str
    repeat: int


@asynccontextmanager
async def connect(url: str, concurrency: int) -> AsyncIterator[aiohttp.ClientSession]:
    """A session for ``concurrency`` requests at once; connections are kept, so that none is opened while measuring."""
    connector = aiohttp.TCPConnector(limit=concurrency, force_close=False)
    # read_bufsize: cumulative streams grow to megabytes; a full buffer would pause reading and move the stamps.
    async with aiohttp.ClientSession(
        url, connector=connector, timeout=aiohttp.ClientTimeout(total=None), read_bufsize=2**22
    ) as session:
        yield session


async def closed_loop(
    session: aiohttp.ClientSession,
    requests: Iterable[Request],
    concurrency: int,
    timeout_s: float,
    keep: Callable[[RequestRecord], None],
) -> None:
    """Send the requests in order with ``concurrency`` of them in flight; ``keep`` gets each record as it ends.

    When cancelled, the records of the requests in flight (outcome ``cancelled``) are kept before this returns.
    """
    queue = iter(requests)

    async def worker() -> None:
        for request in queue:
            record = await send(session, request, timeout_s)
            keep(record)
            if record.outcome == "cancelled":
                raise asyncio.CancelledError

    workers = [asyncio.create_task(worker()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def send(session: aiohttp.ClientSession, request: Request, timeout_s: float) -> RequestRecord:
    """Send one request and return its record, whatever happens to it.

    A cancellation too ends in a record (outcome ``cancelled``), so that the caller can keep it before it stops.
    """
    body = {"text": request.text, "sampling_params": request.sampling.body(), "stream": True}
    if request.phase == "probe":
        body |= {"return_logprob": True, "top_logprobs_num": 2}
    payload = orjson.dumps(body)
    reads: list[tuple[float, bytes]] = []
    outcome: Outcome = "ok"
    error: str | None = None
    wall, started, clock = time.time(), time.perf_counter(), time.perf_counter
    try:
        async with asyncio.timeout(timeout_s):
            async with session.post("/generate", data=payload, headers=_HEADERS) as response:
                async for data in response.content.iter_any():
                    reads.append((clock() - started, data))
                if response.status != 200:
                    outcome, error = "error", f"HTTP {response.status}: {_message(b''.join(data for _, data in reads))}"
    except TimeoutError:
        outcome, error = "timeout", f"no end after {timeout_s:g} s"
    except aiohttp.ClientPayloadError as problem:
        outcome, error = "truncated", f"the connection ended inside the answer: {problem}"
    except (aiohttp.ClientError, OSError) as problem:
        outcome, error = "error", f"{type(problem).__name__}: {problem}"
    except asyncio.CancelledError:
        outcome, error = "cancelled", "cancelled by the caller"
    ended = clock() - started
    answer, spec, top2 = Answer(), None, None
    if outcome != "error":
        try:
            answer = parse(reads)
            spec = _spec(answer.meta)
            top2 = _top2(answer.meta) if request.phase == "probe" else None
        except (KeyError, TypeError, ValueError) as problem:
            answer.problem = ("error", f"the answer is not in SGLang's form: {type(problem).__name__}: {problem}")
        if outcome == "ok" and answer.problem:
            outcome, error = answer.problem
    return RequestRecord(
        trial_key=request.trial_key,
        arm=request.arm,
        session_index=request.session_index,
        phase=request.phase,
        prompt_id=request.prompt_id,
        category=request.category,
        prompt_sha256=hashlib.sha256(request.text.encode()).hexdigest(),
        repeat=request.repeat,
        sent_wall_time=wall,
        sent_at=started,
        chunks=answer.chunks,
        e2e_s=(reads[-1][0] if reads else ended) if outcome == "ok" else None,
        prompt_tokens=answer.meta.get("prompt_tokens"),
        completion_tokens=answer.meta.get("completion_tokens"),
        cached_tokens=answer.meta.get("cached_tokens"),
        output_ids=answer.output_ids,
        text=answer.text,
        finish_reason=answer.finish_reason,
        top2=top2,
        spec=spec,
        outcome=outcome,
        error=error,
    )


@dataclass
class Answer:
    """What a stream said."""

    chunks: list[tuple[float, int]]
    output_ids: list[int]
    text: str
    meta: dict[str, Any]
    """``meta_info`` of the last event."""
    finish_reason: str | None
    problem: tuple[Outcome, str] | None

    def __init__(self) -> None:
        self.chunks, self.output_ids, self.text, self.meta = [], [], "", {}
        self.finish_reason, self.problem = None, None


def parse(reads: Sequence[tuple[float, bytes]]) -> Answer:
    """Make sense of a stream from its reads (seconds, bytes); an event is dated by the read that completed it.

    Cumulative streams repeat all tokens in each event, incremental ones send the new tokens only; which one it is
    shows in the token counts, which the server keeps cumulative in both.
    """
    answer = Answer()
    events: list[dict[str, Any]] = []
    done = False
    for seconds, data in _events(reads):
        if data == _DONE:
            done = True
            continue
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            answer.problem = ("error", f"an event is not JSON: {data[:200]!r}")
            break
        if "error" in event:
            answer.problem = ("error", f"error inside the stream: {_message(data)}")
            break
        events.append(event)
        tokens = event["meta_info"]["completion_tokens"]
        if tokens > (answer.chunks[-1][1] if answer.chunks else 0):
            answer.chunks.append((seconds, tokens))
    if events:
        last = events[-1]
        answer.meta = last["meta_info"]
        reason = answer.meta.get("finish_reason") or {}
        answer.finish_reason = reason.get("type")
        if answer.finish_reason == "abort" and answer.problem is None:
            answer.problem = ("error", f"aborted by the server: {reason.get('message') or 'no reason given'}")
        total = answer.meta["completion_tokens"]
        if len(last["output_ids"]) == total:
            answer.output_ids, answer.text = last["output_ids"], last["text"]
        elif sum(len(event["output_ids"]) for event in events) == total:
            answer.output_ids = [token for event in events for token in event["output_ids"]]
            answer.text = "".join(event["text"] for event in events)
        elif answer.problem is None:
            form = "neither those of a cumulative nor of an incremental stream"
            answer.problem = ("error", f"the output_ids are {form} of {total} tokens")
    if answer.problem is None and not done:
        answer.problem = ("truncated", "the stream ended without [DONE]")
    if answer.problem is None and answer.finish_reason is None:
        answer.problem = ("error", "the stream ended without a finish reason")
    return answer


def _events(reads: Sequence[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
    """Server-sent events of a stream as (seconds, data); an unfinished last event is left out."""
    events: list[tuple[float, bytes]] = []
    rest = b""
    for seconds, data in reads:
        *complete, rest = (rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for block in complete:
            lines = [line[5:].lstrip(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
            if lines:
                events.append((seconds, b"\n".join(lines)))
    return events


def _spec(meta: dict[str, Any]) -> SpecCounters | None:
    """Counters of speculation; SGLang leaves them out for a request that had no verification step."""
    if "spec_verify_ct" not in meta:
        return None
    return SpecCounters.model_validate({key: meta[key] for key in _SPEC_KEYS if key in meta})


def _top2(meta: dict[str, Any]) -> list[Any] | None:
    """``output_top_logprobs`` ([log-probability, token id, text] per candidate) as the record keeps it."""
    places = meta.get("output_top_logprobs")
    if not places or any(len(place) < 2 for place in places):
        return None
    return [
        tuple((token, logprob) for logprob, token, *_ in sorted(place, key=lambda entry: -entry[0])[:2])
        for place in places
    ]


def _message(data: bytes) -> str:
    """The text of an error body in any of the shapes SGLang and OpenAI use."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        return data.decode(errors="replace").strip()[:500] or "no text"
    if isinstance(body, dict):
        error = body.get("error", body)
        if isinstance(error, dict):
            return str(error.get("message") or error)
        return str(error)
    return str(body)
