"""What HTTP/1.1 puts around the body of an answer, taken off while the bytes come in pieces of any size."""

from __future__ import annotations

import math


class Framing:
    """Takes the framing off one answer: head, then a body that is chunked, of known length, or ends with the
    connection. ``feed`` raises ValueError for what is not HTTP/1.1."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.chunked = False
        self.ended = False
        self.keeps = True
        """The server keeps the connection after this answer."""
        self._rest = b""
        self._left: float = 0
        """Bytes of the body (chunked: of the chunk) that are still to come; infinite where the connection ends it."""
        self._trailers = False

    def feed(self, data: bytes) -> bytes:
        """The part of the body that ``data`` brings."""
        if self.chunked and not self._left and not self._rest:  # the rule is one whole chunk per read
            end = data.find(b"\r\n", 1, 9)
            size = data[:end] if end > 0 else b"0"
            if size.isalnum() and size[0] != 48 and len(data) == end + 4 + int(size, 16):
                return data[end + 2 : -2]
        if self._rest:
            data, self._rest = self._rest + data, b""
        if self.status is None:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._rest = data
                return b""
            self._head(data[:end].decode("latin-1"))
            data = data[end + 4 :]
            if self.status is None:  # 100 Continue: the answer itself comes after it
                return self.feed(data)
        return self._chunks(data) if self.chunked else self._plain(data)

    def close(self) -> None:
        """The connection is closed: that ends a body without a length, and no other."""
        self.keeps = False
        self.ended = self.ended or (self.status is not None and self._left == math.inf)

    def _head(self, text: str) -> None:
        first, *lines = text.split("\r\n")
        version, _, status = first.partition(" ")
        if not version.startswith("HTTP/1.") or not status[:3].isdigit():
            raise ValueError(f"not an answer of HTTP/1.1: {first[:60]!r}")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        code = int(status[:3])
        if code < 200:
            return
        self.status = code
        self.keeps = version != "HTTP/1.0" and headers.get("connection", "").lower() != "close"
        self.chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = "0" if code in (204, 304) else headers.get("content-length")
        if not self.chunked:
            self._left = int(length) if length is not None else math.inf
            self.ended = self._left == 0

    def _plain(self, data: bytes) -> bytes:
        if self._left != math.inf:
            data = data[: int(self._left)]
            self._left -= len(data)
            self.ended = self._left == 0
        return data

    def _chunks(self, data: bytes) -> bytes:
        parts = []
        place, size = 0, len(data)
        while place < size and not self.ended:
            if self._left:
                piece = data[place : place + int(self._left)]
                parts.append(piece)
                place += len(piece)
                self._left -= len(piece)
                continue
            if self._trailers:  # lines up to an empty one
                end = data.find(b"\r\n", place)
                if end < 0:
                    self._rest = data[place:]
                    break
                self.ended = end == place
                place = end + 2
                continue
            start = place + 2 if data.startswith(b"\r\n", place) else place  # the line end after the chunk before
            end = data.find(b"\r\n", start)
            if end < 0:
                self._rest = data[place:]
                break
            self._left = int(data[start:end].partition(b";")[0], 16)
            if self._left < 0:
                raise ValueError("a chunk of negative size")
            self._trailers = self._left == 0
            place = end + 2
        return b"".join(parts) if len(parts) != 1 else parts[0]
