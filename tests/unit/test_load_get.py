"""Questions to a server beside the load, over real sockets: whatever answers, it ends, and in an OSError."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from orchestrator.load.get import get
from runners.starting import answers, get_json

OK = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def listening(say: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that reads a request, then does ``say``; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = server.accept()
                    threading.Thread(target=one, args=(client,), daemon=True).start()

        def one(client: socket.socket) -> None:
            with suppress(OSError), client:
                client.recv(65536)
                say(client)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def always(piece: bytes, pause_s: float = 0.0, first: bytes = b"") -> Callable[[socket.socket], None]:
    def say(client: socket.socket) -> None:
        client.sendall(first)
        while True:
            client.sendall(piece)
            time.sleep(pause_s)

    return say


@pytest.mark.parametrize(
    ("say", "told"),
    [
        (lambda client: client.sendall(b"\x00\xffgarbage\r\n\r\n"), "no HTTP server"),
        (lambda client: None, "RemoteDisconnected|without response"),
        (lambda client: client.sendall(OK + b"Content-Length: 9\r\n\r\n{}"), "IncompleteRead"),
        (lambda client: client.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), "HTTP 404"),
        (lambda client: client.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://a b:x/\r\n\r\n"), "HTTP 302"),
        (always(b"X-A: b\r\n", first=OK), "no HTTP server"),
        (always(b" " * 65536, first=OK + b"\r\n"), "larger than"),
    ],
)
def test_what_is_no_server_of_ours_ends_in_an_os_error(say: Callable[[socket.socket], None], told: str) -> None:
    with listening(say) as url, pytest.raises(OSError, match=told):
        get(url, 10.0)


@pytest.mark.parametrize("first", [b"", OK + b"X: ", OK + b"\r\n", OK + b"Content-Length: 100000\r\n\r\n"])
def test_an_answer_that_trickles_in_is_given_up_as_a_whole(first: bytes) -> None:
    began = time.monotonic()
    with listening(always(b"1", 0.05, first)) as url, pytest.raises(TimeoutError, match=r"within 0\.4 s"):
        get(url, 0.4)
    assert time.monotonic() - began < 3


def test_a_server_of_another_protocol_is_told() -> None:
    with listening(lambda client: None) as url, pytest.raises(ssl.SSLError):
        get(url.replace("http:", "https:"), 5.0)


def test_a_proxy_of_the_environment_is_not_asked_for_a_server_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with listening(lambda client: client.sendall(OK + b"Content-Length: 8\r\n\r\n" + b'{"a": 1}')) as url:
        assert answers(f"{url}/ready") and get_json(f"{url}/prefix/server_info") == {"a": 1}


@pytest.mark.parametrize("body", [b"[1, 2, 3]", b"null", b"\xff\xfe{}", b"[" * 100_000, b""])
def test_an_answer_that_is_no_json_object_is_a_value_error(body: bytes) -> None:
    with (
        listening(lambda client: client.sendall(OK + b"\r\n" + body)) as url,
        pytest.raises(ValueError, match=r"JSON|Expect|codec"),
    ):
        get_json(url)


@pytest.mark.parametrize("url", ["http://x:abc/", "http://a b:80/", "http:///", "http://x:99999/", "ftp://x/"])
def test_what_is_no_address_is_told(url: str) -> None:
    with pytest.raises(OSError, match=url.partition(":")[2]):
        get(url, 1.0)
