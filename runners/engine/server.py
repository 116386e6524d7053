"""The HTTP server: routes in SGLang's dialect, one queue per open request, and how it starts and stops."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from runners.engine import protocol
from runners.engine.arguments import EXIT_LOAD_FAILED
from runners.engine.loading import Loaded
from runners.engine.metrics_text import RequestTimes, render
from runners.engine.protocol import Ask, BadRequest, Limits, OpenAIWriter, Snapshot
from runners.engine.request import Finish, Output, Request
from runners.engine.scheduler import Scheduler
from runners.engine.tokenizer import Tokenizer
from runners.engine.worker import EngineFailed, Worker

READY_LINE = "The server is fired up and ready to roll!"
_PARENT_CHECK_S = 0.5
_STOP_GRACE_S = 2.0
_SSE = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


@dataclass(eq=False)
class _Open:
    """A request that a client waits for."""

    queue: asyncio.Queue[Snapshot] = field(default_factory=asyncio.Queue)
    last: Snapshot | None = None


class Server:
    """State shared by the routes; everything here runs on the HTTP loop."""

    def __init__(self, args: argparse.Namespace, stop: Callable[[int], None]) -> None:
        self.args = args
        self.loaded = Loaded(args)
        self.times = RequestTimes()
        self._loop = asyncio.get_running_loop()
        self._open: dict[str, _Open] = {}
        self._stop = stop
        self._stopping = False
        self._scheduler: Scheduler | None = None
        self.worker = Worker(self._load, self._on_state)

    def _load(self) -> Scheduler:
        self._scheduler = self.loaded.load()
        return self._scheduler

    def _on_state(self) -> None:  # on the engine's thread
        self._loop.call_soon_threadsafe(self._state_changed)

    def _state_changed(self) -> None:
        if self.worker.state == "ready":
            print(READY_LINE, flush=True)
        elif self._scheduler is None:
            failure = self.worker.failure
            print(f"error: cannot load: {type(failure).__name__}: {failure}", file=sys.stderr, flush=True)
            self._stop(EXIT_LOAD_FAILED)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=64 * 2**20, middlewares=[_errors])
        app.router.add_get("/health", self.health)
        app.router.add_get("/ready", self.health)
        app.router.add_get("/health_generate", self.health_generate)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/model_info", self.model_info)
        app.router.add_get("/get_model_info", self.model_info)
        app.router.add_get("/server_info", self.server_info)
        app.router.add_get("/get_server_info", self.server_info)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_route("*", "/flush_cache", self.flush_cache)
        app.router.add_post("/abort_request", self.abort_request)
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.completions)
        return app

    # Generation -------------------------------------------------------------------------------------------------

    async def generate(self, http: web.Request) -> web.StreamResponse:
        ask = protocol.parse_generate(await _json(http), *self._parts())
        rid = self._new_id(ask)
        if ask.stream:
            return await self._stream(http, ask, rid, lambda snapshot: [protocol.generate_body(snapshot)])
        return _response(protocol.generate_body(await self._whole(ask, rid)))

    async def chat(self, http: web.Request) -> web.StreamResponse:
        return await self._openai(http, protocol.parse_chat, chat=True)

    async def completions(self, http: web.Request) -> web.StreamResponse:
        return await self._openai(http, protocol.parse_completion, chat=False)

    async def _openai(
        self, http: web.Request, parse: Callable[[Any, Tokenizer, Limits], Ask], chat: bool
    ) -> web.StreamResponse:
        ask = parse(await _json(http), *self._parts())
        rid = self._new_id(ask)
        writer = OpenAIWriter(rid, ask.model or self.args.served_model_name, chat, ask)
        if ask.stream:
            return await self._stream(http, ask, rid, writer.chunks)
        return _response(writer.whole(await self._whole(ask, rid)))

    async def _whole(self, ask: Ask, rid: str) -> Snapshot:
        async for snapshot in self._updates(ask, rid):
            last = snapshot
        if last.finish is not None and last.finish.error_code:
            raise EngineFailed(last.finish.message)
        return last

    async def _stream(
        self, http: web.Request, ask: Ask, rid: str, chunks: Callable[[Snapshot], list[dict[str, Any]]]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=_SSE)
        # Headers go out with the first chunk: a request that fails before has a status of its own.
        with suppress(ConnectionResetError):
            async for snapshot in self._updates(ask, rid):
                if not response.prepared:
                    await response.prepare(http)
                finish = snapshot.finish
                if finish is not None and finish.error_code:
                    error = {"message": finish.message, "type": "InternalServerError", "code": finish.error_code}
                    parts = [{"error": error}]
                else:
                    parts = chunks(snapshot)
                await response.write(b"".join(b"data: " + orjson.dumps(part) + b"\n\n" for part in parts))
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()
        return response

    async def _updates(self, ask: Ask, rid: str) -> AsyncIterator[Snapshot]:
        """States of the output, the last with a finish. Leaving early aborts the request."""
        entry = self._open[rid] = _Open()
        start = previous = time.monotonic()
        tokens = 0

        def update(output: Output) -> None:  # on the engine's thread
            if ask.stream or output.finish is not None:
                snapshot = Snapshot.of(output)
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(entry.queue.put_nowait, snapshot)

        request = Request(
            rid, ask.prompt, ask.sampling, ask.max_new_tokens, update, ask.stop, ask.stop_token_ids, ask.top_logprobs
        )
        finished = False
        try:
            await asyncio.wrap_future(self.worker.call(lambda scheduler: scheduler.add(request)))
            while not finished:
                snapshot = entry.last = await entry.queue.get()
                now, new = time.monotonic(), len(snapshot.ids) - tokens
                if new and tokens:
                    self.times.inter_token_latency.observe((now - previous) / new, new)
                elif new and ask.stream:
                    self.times.time_to_first_token.observe(now - start)
                previous, tokens = now, tokens + new
                finished = snapshot.finish is not None
                yield snapshot
            self.times.e2e_latency.observe(time.monotonic() - start)
        finally:
            del self._open[rid]
            if not finished:
                self.worker.call(lambda scheduler: scheduler.abort(rid, Finish("abort", message="client left")))

    def _new_id(self, ask: Ask) -> str:
        if self._stopping:
            raise web.HTTPServiceUnavailable(text="the server is stopping\n")
        if ask.rid in self._open:
            raise BadRequest(f"Duplicate request ID detected: {ask.rid}")
        return ask.rid or uuid.uuid4().hex

    def _ready(self) -> Scheduler:
        if self._scheduler is None or self.worker.state != "ready":
            reason = self.worker.failure or self.worker.state
            raise web.HTTPServiceUnavailable(text=f"the engine is not ready: {reason}\n")
        return self._scheduler

    def _parts(self) -> tuple[Tokenizer, Limits]:
        scheduler, facts = self._ready(), self.loaded.facts
        return scheduler.tokenizer, Limits(facts["vocab_size"], facts["context_length"], facts["eos_token_ids"])

    # Everything else --------------------------------------------------------------------------------------------

    async def health(self, http: web.Request) -> web.Response:
        self._ready()
        return web.Response()

    async def health_generate(self, http: web.Request) -> web.Response:
        body = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        ask = protocol.parse_generate(body, *self._parts())
        await self._whole(ask, self._new_id(ask))
        return web.Response()

    async def models(self, http: web.Request) -> web.Response:
        self._ready()
        name = self.args.served_model_name
        return _response(
            {
                "object": "list",
                "data": [
                    {
                        "id": name,
                        "object": "model",
                        "created": int(self.loaded.started),
                        "owned_by": "embedded",
                        "root": name,
                        "parent": None,
                        "max_model_len": self.loaded.facts["context_length"],
                    }
                ],
            }
        )

    async def model_info(self, http: web.Request) -> web.Response:
        self._ready()
        return _response(
            {
                "model_path": self.args.model_path,
                "tokenizer_path": self.loaded.facts["folder"],
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": "llama",
                "architectures": ["LlamaForCausalLM"],
            }
        )

    async def server_info(self, http: web.Request) -> web.Response:
        self._ready()
        throughput = self.worker.gen_throughput
        info = await asyncio.wrap_future(self.worker.call(lambda s: self.loaded.server_info(s, throughput)))
        return _response(info)

    async def flush_cache(self, http: web.Request) -> web.Response:
        """Sets the totals back; there is no cache between requests. Refused while a request runs, as SGLang does."""
        self._ready()

        if await asyncio.wrap_future(self.worker.call(Scheduler.flush)):
            return web.Response(text="Cache flushed.\n")
        return web.Response(status=400, text="Flush cache failed.\n")

    async def abort_request(self, http: web.Request) -> web.Response:
        body = await _json(http)
        rid = None if body.get("abort_all") else str(body.get("rid"))
        finish = Finish("abort", message="Aborted by /abort_request")
        await asyncio.wrap_future(self.worker.call(lambda scheduler: scheduler.abort(rid, finish)))
        return web.Response()

    async def metrics(self, http: web.Request) -> web.Response:
        scheduler = self._ready()
        text = render(self.args.served_model_name, scheduler, self.worker.gen_throughput, self.times)
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def end_requests(self) -> None:
        """End what is in flight with an abort that says why, and give the answers a moment to reach their clients."""
        self._stopping = True
        finish = Finish("abort", message="the server is shutting down")
        for rid, entry in self._open.items():
            last = entry.last or Snapshot("", [], 0, {"id": rid, "completion_tokens": 0}, None)
            entry.queue.put_nowait(last.ended(finish))
        deadline = time.monotonic() + _STOP_GRACE_S
        while self._open and time.monotonic() < deadline:
            await asyncio.sleep(0.02)


def _response(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


async def _json(http: web.Request) -> dict[str, Any]:
    try:
        body = orjson.loads(await http.read())
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    return body


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    openai = request.path.startswith("/v1/")
    try:
        return await handler(request)
    except BadRequest as error:
        return _response(protocol.error_body(str(error), openai, 400), 400)
    except EngineFailed as error:
        return _response(protocol.error_body(str(error), openai, 500), 500)
    except web.HTTPNotFound:
        return _response({"detail": "Not Found"}, 404)
    except web.HTTPMethodNotAllowed:
        return _response({"detail": "Method Not Allowed"}, 405)


async def serve(args: argparse.Namespace, listener: socket.socket) -> int:
    """Serve until a signal, the end of the parent process, or a failed load; returns the exit code."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(code: int = 0) -> None:
        if not stopped.done():
            stopped.set_result(code)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    server = Server(args, stop)
    # A client that leaves cancels its handler, and with it its request.
    runner = web.AppRunner(server.application(), access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    server.worker.start()
    watch = loop.create_task(_watch_parent(args.parent_pid, stop)) if args.parent_pid else None
    code = await stopped
    if watch:
        watch.cancel()
    await server.end_requests()
    await runner.cleanup()
    return code


async def _watch_parent(pid: int, stop: Callable[[], None]) -> None:
    # Not PR_SET_PDEATHSIG: it fires when the thread that started us ends, which may be long before its process.
    while os.getppid() == pid:
        await asyncio.sleep(_PARENT_CHECK_S)
    print(f"the parent process {pid} ended; stopping", file=sys.stderr, flush=True)
    stop()
