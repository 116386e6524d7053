"""A TCP server on loopback that answers with exactly the bytes of a test, in pieces and at times of its choice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Step = bytes | float | str
"""Bytes to write, seconds to wait, ``close`` or ``reset``."""


@dataclass
class Scripted:
    """What the server saw."""

    url: str = ""
    requests: list[tuple[bytes, bytes]] = field(default_factory=list)
    """(head, body) in the order of arrival."""
    connections: int = 0
    closed: int = 0
    """Connections that a client closed."""


def answer(*parts: bytes, status: str = "200 OK") -> list[Step]:
    """A chunked answer, each part one chunk and one write."""
    head = f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return [head, *(b"%x\r\n%s\r\n" % (len(part), part) for part in parts), b"0\r\n\r\n"]


@asynccontextmanager
async def scripted(script: Callable[[int], Sequence[Step]]) -> AsyncIterator[Scripted]:
    """``script(n)``: the steps that answer the n-th request (from 0)."""
    seen = Scripted()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:"))
                seen.requests.append((head, await reader.readexactly(length)))
                for step in script(len(seen.requests) - 1):
                    if isinstance(step, float):
                        await _wait(reader, step)
                    elif isinstance(step, bytes):
                        writer.write(step)
                        await asyncio.sleep(0)
                    elif step == "reset":
                        writer.transport.abort()
                    else:
                        writer.close()
        except (asyncio.IncompleteReadError, ConnectionError):
            seen.closed += 1
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    seen.url = f"http://{host}:{port}"
    try:
        yield seen
    finally:
        server.close()


async def _wait(reader: asyncio.StreamReader, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if reader.at_eof():
            raise ConnectionError("the client left")
        await asyncio.sleep(min(left, 0.01))
