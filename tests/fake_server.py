"""A server that speaks SGLang's ``/generate`` stream in a thread of the test, with faults that cannot be provoked in a
real one. Its outputs are a function of the prompt; its counters are those of a drafter that is always right."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Fault = str | None
"""``http``, ``error_event``, ``abort``, ``no_done``, ``drop``, ``stall``, ``not_json``, ``no_meta`` or ``no_ids``."""


@dataclass
class Fake:
    """What the server does and what it saw."""

    incremental: bool = False
    drafts: int = 0
    """Drafts per step, all correct; 0: no speculation."""
    delay_s: float = 0.0
    """Between events."""
    fault: Callable[[dict[str, Any]], Fault] = lambda body: None
    change: Callable[[list[int], dict[str, Any]], list[int]] = lambda ids, body: ids
    """Changes the output of a request."""
    runner_up: float = -3.0
    """Log-probability of the second token; the first has -0.5."""
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    flushed: int = 0


FAKE: web.AppKey[Fake] = web.AppKey("fake")


def output(body: dict[str, Any]) -> list[int]:
    """Token ids of the answer: as many as asked for, starting at the prompt's length."""
    start = len(body["text"])
    return [start + place for place in range(body["sampling_params"]["max_new_tokens"])]


@contextmanager
def serve(fake: Fake) -> Iterator[Fake]:
    """Run the server on a free loopback port; ``fake.url`` is set inside."""
    started = threading.Event()
    loop = asyncio.new_event_loop()

    async def start() -> web.AppRunner:
        app = web.Application()
        app[FAKE] = fake
        app.router.add_post("/generate", _generate)
        app.router.add_post("/flush_cache", _flush)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    def run() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        started.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield fake
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


async def _flush(request: web.Request) -> web.Response:
    request.app[FAKE].flushed += 1
    return web.Response(text="Cache flushed.")


async def _generate(request: web.Request) -> web.StreamResponse:
    fake = request.app[FAKE]
    body = await request.json()
    fake.bodies.append(body)
    fault = fake.fault(body)
    if fault == "http":
        return web.json_response({"error": {"message": "too long"}}, status=400)
    fake.in_flight += 1
    fake.most_in_flight = max(fake.most_in_flight, fake.in_flight)
    try:
        return await _stream(fake, request, body, fault)
    finally:
        fake.in_flight -= 1


async def _stream(fake: Fake, request: web.Request, body: dict[str, Any], fault: Fault) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    ids = fake.change(output(body), body)
    ends = [1, *range(2 + fake.drafts, len(ids), 1 + fake.drafts), len(ids)] if len(ids) > 1 else [len(ids)]
    before = 0
    for step, end in enumerate(ends):
        if fault and step == len(ends) // 2:
            if fault == "stall":
                await asyncio.sleep(60)
            if fault == "drop":
                assert request.transport is not None
                request.transport.abort()
                return response
            if fault in ("error_event", "not_json"):
                text = '{"error": {"message": "out of memory"}}' if fault == "error_event" else "<html>"
                await response.write(f"data: {text}\n\n".encode())
                break
        event = _event(fake, ids, before, end, step, last=end == len(ids), fault=fault)
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        before = end
        await asyncio.sleep(fake.delay_s)
    if fault != "no_done":
        await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _event(fake: Fake, ids: list[int], before: int, end: int, step: int, last: bool, fault: Fault) -> dict[str, Any]:
    shown = ids[before:end] if fake.incremental else ids[:end]
    reason: dict[str, Any] | None = {"type": "length", "length": len(ids)} if last else None
    if last and fault == "abort":
        reason = {"type": "abort", "message": "the request was aborted", "status_code": 500}
    meta: dict[str, Any] = {"finish_reason": reason, "prompt_tokens": 5, "completion_tokens": end, "cached_tokens": 2}
    if last and fake.drafts and step:
        histogram = [0] * fake.drafts + [step]
        meta |= {
            "spec_verify_ct": step,
            "spec_num_correct_drafts": fake.drafts * step,
            "spec_num_proposed_drafts": fake.drafts * step,
            "spec_correct_drafts_histogram": histogram,
            "spec_accept_length": end / step,
        }
    if last:
        meta["output_top_logprobs"] = [[[fake.runner_up, token + 1, None], [-0.5, token, None]] for token in ids]
    event = {"text": "".join(f" {token}" for token in shown), "output_ids": shown, "meta_info": meta}
    if fault == "no_meta":
        del event["meta_info"]
    if fault == "no_ids":
        event["output_ids"] = []
    return event
