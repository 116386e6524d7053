"""One connection against a server whose every byte is known."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

import pytest
import uvloop

from orchestrator.load import http
from orchestrator.load.http import Address, Broken, Connection, Line, Response, Stalled, call
from tests.scripted_server import Step, answer, scripted


def run(work: Coroutine[Any, Any, Any], loop: str = "uvloop") -> Any:
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(asyncio.wait_for(work, 20))


async def exchange(
    line: Line, into: list[tuple[float, bytes]], timeout_s: float = 5.0, stall_s: float = 5.0
) -> Response:
    connection = await line.open()
    return await connection.exchange(
        "POST", "/path", b"{}", lambda seconds, data: into.append((seconds, data)), timeout_s, stall_s
    )


def test_an_address_is_read_from_a_url() -> None:
    assert Address.of("http://node:30000") == Address("node", 30000, False, "")
    assert Address.of("https://[::1]/v2/") == Address("::1", 443, True, "/v2")
    head = Address.of("https://[::1]:8/v2/").head("POST", "/generate", 7).split(b"\r\n")
    assert head[0] == b"POST /v2/generate HTTP/1.1" and b"Host: [::1]:8" in head and b"Content-Length: 7" in head
    for wrong in ("node:30000", "ftp://node", "http://", "http://node:port"):
        with pytest.raises(ValueError, match=r".+"):
            Address.of(wrong)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_every_read_is_stamped_when_it_arrives_and_the_connection_is_used_again(loop: str) -> None:
    waits: list[Step] = []
    for step in answer(b"one", b"two", b"three"):
        waits += [step, 0.05]

    async def go() -> None:
        async with scripted(lambda n: waits) as server:
            line = Line(Address.of(server.url))
            for _ in range(2):
                reads: list[tuple[float, bytes]] = []
                sent = http.clock()
                response = await exchange(line, reads)
                assert b"".join(data for _, data in reads) == b"onetwothree" and response.status == 200
                times = [sent, *(seconds for seconds, _ in reads), response.ended_at]
                gaps = [later - earlier for earlier, later in pairwise(times)]
                assert min(gaps) > 0.03, f"nothing is dated by when it was worked through: {gaps}"
            assert server.connections == 1
            assert server.requests[0][0].startswith(b"POST /path HTTP/1.1\r\n") and server.requests[0][1] == b"{}"
            line.close()

    run(go(), loop)


def test_a_long_answer_is_worked_through_while_it_comes() -> None:
    steps: list[Step] = []
    for step in answer(*[b"x" * 100] * 3 * http.SLICE):
        steps += [step, 0.001]  # so that each is a read of its own
    seen: list[int] = []

    async def go() -> None:
        async with scripted(lambda n: steps) as server:
            line = Line(Address.of(server.url))
            connection = await line.open()
            waiting = [0]
            task = asyncio.create_task(
                connection.exchange("POST", "/", b"", lambda seconds, data: seen.append(len(data)), 5)
            )
            while not task.done():
                await asyncio.sleep(0)
                waiting.append(len(connection._reads))
            assert sum(seen) == 300 * http.SLICE and 1 < max(waiting) <= http.SLICE
            line.close()

    run(go())


def test_an_answer_other_than_200_keeps_its_text() -> None:
    async def go() -> None:
        async with scripted(lambda n: answer(b'{"error":', b'"no"}', status="503 Unavailable")) as server:
            line, reads = Line(Address.of(server.url)), []  # type: ignore[var-annotated]
            response = await exchange(line, reads)
            assert (response.status, response.body, reads) == (503, b'{"error":"no"}', [])
            line.close()
        async with scripted(lambda n: [b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nflushed"]) as server:
            assert await call(server.url, "POST", "/flush_cache", 5) == (200, "flushed")

    run(go())


CUT = answer(b"one", b"two")[:-1]


@pytest.mark.parametrize(
    ("steps", "began", "says"),
    [
        ([*CUT, "close"], True, "inside the answer"),
        ([*CUT, "reset"], True, "inside the answer"),
        (["close"], False, "before an answer"),
        (["reset"], False, "before an answer"),
        ([b"220 mail.example.org ESMTP\r\n\r\n"], False, "not an answer of HTTP/1.1"),
    ],
)
def test_a_connection_that_breaks_says_where(steps: list[Step], began: bool, says: str) -> None:
    async def go() -> None:
        async with scripted(lambda n: steps if n == 0 else answer(b"again")) as server:
            line, reads = Line(Address.of(server.url)), []  # type: ignore[var-annotated]
            with pytest.raises(Broken, match=says) as caught:
                await exchange(line, reads)
            assert caught.value.began == began
            assert b"".join(data for _, data in reads) == (b"onetwo" if began else b""), "what had arrived counts"
            assert (await exchange(line, reads)).status == 200, "the next request gets a new connection"
            assert server.connections == 2
            line.close()

    run(go())


def test_nobody_there_is_told_with_the_place() -> None:
    async def go() -> None:
        async with scripted(lambda n: []) as server:
            url = server.url
        with pytest.raises(Broken, match=r"no connection to 127\.0\.0\.1:\d+"):
            await Connection.open(Address.of(url))

    run(go())


def test_a_stall_counts_from_the_last_byte_and_only_inside_an_answer() -> None:
    late: list[Step] = [0.4, *answer(b"one", b"two")[:3], 0.15, b"3\r\ntwo\r\n", 9.0]

    async def go() -> None:
        async with scripted(lambda n: late) as server:
            line, reads = Line(Address.of(server.url)), []  # type: ignore[var-annotated]
            sent = http.clock()
            with pytest.raises(Stalled):
                await exchange(line, reads, stall_s=0.3)
            assert http.clock() - sent > 0.8, "0.4 s before the answer, 0.15 s inside it, 0.3 s of silence"
            assert b"".join(data for _, data in reads) == b"onetwotwo"
            while not server.closed:
                await asyncio.sleep(0.01)

    run(go())


def test_a_request_that_is_cancelled_or_late_leaves_no_connection_behind() -> None:
    async def go() -> None:
        async with scripted(lambda n: [*CUT, 9.0]) as server:
            line, reads = Line(Address.of(server.url)), []  # type: ignore[var-annotated]
            with pytest.raises(TimeoutError):
                await exchange(line, reads, timeout_s=0.2)
            task = asyncio.create_task(exchange(line, reads))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert b"".join(data for _, data in reads) == b"onetwo" * 2
            while server.closed < 2:
                await asyncio.sleep(0.01)

    run(go())


def test_bytes_that_nobody_asked_for_close_the_connection() -> None:
    async def go() -> None:
        async with scripted(lambda n: [*answer(b"one"), 0.05, b"HTTP/1.1 408 Timeout\r\n\r\n", 0.05]) as server:
            line = Line(Address.of(server.url))
            for _ in range(2):
                reads: list[tuple[float, bytes]] = []
                assert (await exchange(line, reads)).status == 200
                assert [data for _, data in reads] == [b"one"]
                await asyncio.sleep(0.1)
            assert server.connections == 2
            line.close()

    run(go())
