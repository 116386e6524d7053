"""A question to a server beside the load: a plain GET, by the way that the load takes.

That is without the proxies of the environment, which a server on loopback or behind a tunnel is not behind, and
without redirects. The time is that of the whole answer, whatever comes how slowly, and its size is bounded: what
answers at an address that someone typed may be anything.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from contextlib import suppress

from orchestrator.load.http import Address

_LARGEST = 64 * 2**20
"""Bytes; `/server_info` and `/metrics` of SGLang have some ten thousand."""


def get(url: str, timeout_s: float) -> bytes:
    """Body of a 200. Raises OSError for whatever goes wrong."""
    try:
        address, path = _parts(url)
        connection = _connection(address, timeout_s)
    except (ValueError, http.client.InvalidURL) as problem:
        raise OSError(f"{url!r}: {problem}") from problem
    late = threading.Event()

    def cut() -> None:
        late.set()
        with suppress(OSError):
            ours.shutdown(socket.SHUT_RDWR)  # wakes who reads

    try:
        connection.connect()
        ours = connection.sock
        watch = threading.Timer(timeout_s, cut)
        watch.daemon = True
        watch.start()
        try:
            connection.request("GET", address.prefix + path)
            body = _body(connection.getresponse())
        finally:
            watch.cancel()
        if late.is_set():  # the end of a connection also ends a head, and a body without a length
            raise TimeoutError
        return body
    except TimeoutError as problem:
        raise TimeoutError(f"no whole answer within {timeout_s:g} s") from problem
    except (http.client.HTTPException, OSError, ValueError) as problem:
        if late.is_set():
            raise TimeoutError(f"no whole answer within {timeout_s:g} s") from problem
        if isinstance(problem, OSError):
            raise
        raise OSError(f"what answers is no HTTP server, or breaks off: {type(problem).__name__}") from problem
    finally:
        connection.close()


def _parts(url: str) -> tuple[Address, str]:
    _, slash, path = url.partition("://")[2].partition("/")
    return Address.of(url.removesuffix(slash + path)), f"/{path}"


def _connection(address: Address, timeout_s: float) -> http.client.HTTPConnection:
    if address.tls:
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(address.host, address.port, timeout=timeout_s, context=context)
    return http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)


def _body(answer: http.client.HTTPResponse) -> bytes:
    if answer.status != 200:
        raise OSError(f"HTTP {answer.status}")
    body = answer.read(_LARGEST + 1)
    if len(body) > _LARGEST:
        raise OSError(f"the answer is larger than {_LARGEST >> 20} MiB")
    if answer.length:  # which a read of so many bytes does not tell
        raise http.client.IncompleteRead(body, answer.length)
    return body
