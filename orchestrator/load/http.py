"""HTTP/1.1 as far as a stream from an inference server needs it: one request at a time on a kept connection.

While an answer arrives, nothing happens but noting (time, bytes) of each read. What the bytes mean is worked out after
the sockets that were ready at the same moment have been stamped: when the answer has ended, and for long answers also
every ``SLICE`` reads, so that neither memory nor the pause at the end grows with the length of an answer.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from orchestrator.load.framing import Framing

SLICE = 16
"""Reads that are worked through in one go: a pause below 0.1 ms, and bytes that are still in cache."""
CONNECT_TIMEOUT_S = 10.0
clock = time.perf_counter
Sink = Callable[[float, bytes], None]


class Broken(Exception):
    """The connection failed: refused, reset, closed inside an answer, or not HTTP/1.1."""

    def __init__(self, message: str, began: bool = False) -> None:
        super().__init__(message)
        self.began = began
        """A part of the answer had arrived."""


class Stalled(Exception):
    """The answer had begun, then nothing came for too long."""


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    host: str
    port: int
    tls: bool
    prefix: str
    """Path that goes before every path."""

    @classmethod
    def of(cls, url: str) -> Address:
        """Of ``http(s)://host[:port][/prefix]``. Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http:// or https:// URL")
        tls = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls, parts.path.rstrip("/"))

    def head(self, method: str, path: str, length: int) -> bytes:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (
            f"{method} {self.prefix}{path} HTTP/1.1\r\nHost: {host}:{self.port}\r\nAccept: */*\r\n"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        ).encode()


@dataclass(frozen=True)
class Response:
    """An answer that has ended."""

    status: int
    ended_at: float
    """When its last byte arrived (``time.perf_counter``, s)."""
    body: bytes
    """Of an answer that is not 200; the body of a 200 goes to the sink."""


class Connection(asyncio.Protocol):
    """One connection; ``exchange`` sends a request and waits for the end of its answer."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[Response] | None = None
        self._reads: list[tuple[float, bytes]] = []
        self._look_at_all = True
        self._looking = False
        self._framing = Framing()
        self._sink: Sink | None = None
        self._body: list[bytes] = []
        self._last = math.inf
        """When the last byte of the body so far arrived; infinite before the first."""

    @classmethod
    async def open(cls, address: Address) -> Connection:
        """Raises Broken."""
        loop = asyncio.get_running_loop()
        place = f"{address.host}:{address.port}"
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: cls(address), address.host, address.port, ssl=address.tls or None
                )
        except OSError as problem:  # TimeoutError is one, without a text
            raise Broken(f"no connection to {place}: {problem or f'none within {CONNECT_TIMEOUT_S:g} s'}") from problem
        return connection

    @property
    def usable(self) -> bool:
        """Open and idle."""
        return self._transport is not None and not self._transport.is_closing() and self._ended is None

    def close(self) -> None:
        """At once; the server sees that the client left."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    async def exchange(
        self,
        method: str,
        path: str,
        body: bytes,
        sink: Sink,
        timeout_s: float,
        stall_timeout_s: float = math.inf,
    ) -> Response:
        """Send a request at once and return when its answer has ended; ``sink`` gets (time of the read, bytes) of the
        body of a 200; it must not raise.

        Raises Broken, TimeoutError (no end ``timeout_s`` after sending) and Stalled (the body has begun and nothing
        came for ``stall_timeout_s``). The connection is then closed, as it is when this is cancelled.
        """
        if not self.usable or self._transport is None:
            raise Broken("the connection is closed")
        self._framing, self._sink, self._body = Framing(), sink, []
        self._reads, self._look_at_all, self._last = [], True, math.inf
        self._ended = self._loop.create_future()
        self._transport.write(self._address.head(method, path, len(body)) + body)
        stop_watching = self._watch(timeout_s, stall_timeout_s)
        try:
            response = await self._ended
        except BaseException:
            self._look()  # what had arrived counts
            self.close()
            raise
        finally:
            self._ended, self._look_at_all = None, True
            stop_watching()
        if not self._framing.keeps:
            self.close()
        return response

    def _watch(self, timeout_s: float, stall_timeout_s: float) -> Callable[[], None]:
        """Ends the exchange when it takes too long; returns what stops the watch. One timer, whatever arrives."""
        deadline = clock() + timeout_s
        handle: asyncio.TimerHandle

        def check() -> None:
            nonlocal handle
            if self._ended is None or self._ended.done():
                return
            now, last = clock(), self._reads[-1][0] if self._reads else self._last
            if now >= deadline:
                self._ended.set_exception(TimeoutError())
            elif now >= last + stall_timeout_s:
                self._ended.set_exception(Stalled())
            else:
                again = min(deadline, min(now, last) + stall_timeout_s)
                handle = self._loop.call_later(max(again - now, 0.001), check)

        handle = self._loop.call_later(min(timeout_s, stall_timeout_s), check)
        return lambda: handle.cancel()

    # What the loop calls ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a Transport, since this is a Protocol

    def data_received(self, data: bytes) -> None:
        # The stamp first, and little else: other sockets wait for theirs.
        reads = self._reads
        reads.append((clock(), data))
        if self._looking:
            return
        if len(reads) >= SLICE or data.endswith(b"\r\n\r\n") or self._look_at_all or len(data) < 5:
            self._looking = True
            self._loop.call_soon(self._look)

    def connection_lost(self, problem: Exception | None) -> None:
        self._transport = None
        self._look()
        if self._ended is None or self._ended.done():
            return
        self._framing.close()
        if not self._end():
            began = self._framing.status is not None
            where = "inside the answer" if began else "before an answer"
            self._ended.set_exception(
                Broken(f"the connection ended {where}" + (f": {problem}" if problem else ""), began)
            )

    def _look(self) -> None:
        """Work through what was noted."""
        self._looking = False
        reads, self._reads = self._reads, []
        if self._ended is None or self._sink is None:
            if reads:  # nobody asked: what comes next could not be told from an answer
                self.close()
            return
        try:
            self._read(reads, self._sink)
        except Exception as problem:
            if not self._ended.done():
                self._ended.set_exception(Broken(str(problem)) if isinstance(problem, ValueError) else problem)
            return
        self._look_at_all = not self._framing.chunked
        self._end()

    def _read(self, reads: list[tuple[float, bytes]], sink: Sink) -> None:
        framing = self._framing
        for seconds, data in reads:
            body = framing.feed(data)
            if body or framing.ended:
                self._last = seconds
            if body and framing.status == 200:
                sink(seconds, body)
            elif body:
                self._body.append(body)

    def _end(self) -> bool:
        if not self._framing.ended or self._framing.status is None or self._ended is None:
            return False
        if not self._ended.done():
            self._ended.set_result(Response(self._framing.status, self._last, b"".join(self._body)))
        return True


class Line:
    """A way to a server: one connection, opened again where it was lost."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Connection | None = None

    async def open(self) -> Connection:
        """The connection, ready for a request. Raises Broken."""
        if self._connection is None or not self._connection.usable:
            self._connection = await Connection.open(self._address)
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


async def call(url: str, method: str, path: str, timeout_s: float) -> tuple[int, str]:
    """Status and text of a plain request on a connection of its own. Raises Broken and TimeoutError."""
    body = bytearray()
    connection = await Connection.open(Address.of(url))
    try:
        response = await connection.exchange(method, path, b"", lambda _, data: body.extend(data), timeout_s)
    finally:
        connection.close()
    return response.status, (bytes(body) or response.body).decode(errors="replace")
