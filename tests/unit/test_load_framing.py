"""The framing of HTTP/1.1 and of server-sent events, cut at every place."""

from __future__ import annotations

import pytest

from orchestrator.load.events import EventSplitter
from orchestrator.load.framing import Framing

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n1;name=value\r\n \r\nA\r\nworld\r\n\r\n!\r\n0\r\n"
)
ANSWERS = {
    "chunked": (CHUNKED + b"\r\n", b"hello world\r\n\r\n!", True),
    "chunked with trailers": (CHUNKED + b"Checked: yes\r\nBy: me\r\n\r\n", b"hello world\r\n\r\n!", True),
    "of known length": (b"HTTP/1.1 400 Bad Request\r\ncontent-length: 4\r\n\r\nbody", b"body", True),
    "without a body": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    "after 100 Continue": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"ok",
        True,
    ),
    "that the server does not keep open": (
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"ok",
        False,
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_the_same_wherever_it_is_cut(name: str) -> None:
    raw, body, keeps = ANSWERS[name]
    for size in range(1, len(raw) + 1):
        framing = Framing()
        pieces = [raw[start : start + size] for start in range(0, len(raw), size)]
        got = b""
        for place, piece in enumerate(pieces):
            assert not framing.ended or got == body, f"ended early in pieces of {size}"
            got += framing.feed(piece)
            assert framing.ended == (place == len(pieces) - 1), f"pieces of {size} bytes"
        assert (got, framing.keeps) == (body, keeps)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    framing = Framing()
    assert framing.feed(b"HTTP/1.0 200 OK\r\n\r\nall of") + framing.feed(b" it") == b"all of it"
    assert not framing.ended
    framing.close()
    assert framing.ended and not framing.keeps


def test_a_chunked_body_does_not_end_with_the_connection() -> None:
    framing = Framing()
    framing.feed(CHUNKED)
    framing.close()
    assert not framing.ended


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 ok\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
    ],
)
def test_what_is_not_http_is_told(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"not an answer|invalid literal|negative"):
        Framing().feed(raw)


STREAM = (
    b': ping\n\ndata: {"a":1}\n\nevent: note\ndata: one\ndata:two\n\ndata: {"b":2}\r\n\r\ndata: [DONE]\n\ndata: cut'
)


def test_events_are_the_same_wherever_the_stream_is_cut() -> None:
    for size in range(1, len(STREAM) + 1):
        events: list[tuple[float, bytes]] = []
        splitter = EventSplitter(lambda seconds, data, into=events: into.append((seconds, data)))  # type: ignore[misc]
        for start in range(0, len(STREAM), size):
            splitter.feed(float(start), STREAM[start : start + size])
        assert [data for _, data in events] == [b'{"a":1}', b"one\ntwo", b'{"b":2}', b"[DONE]"], size
        ends = [STREAM.index(mark) + len(mark) for mark in (b"1}\n\n", b"two\n\n", b"\r\n\r\n", b"DONE]\n\n")]
        assert [seconds for seconds, _ in events] == [(end - 1) // size * size for end in ends], size
