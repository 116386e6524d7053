"""Server-sent events, taken out of a body that comes in pieces of any size."""

from __future__ import annotations

from collections.abc import Callable

DONE = b"[DONE]"


class EventSplitter:
    """Hands ``on_event`` (time, data) of each event; an event is dated by the piece that completed it.

    Comments and fields other than ``data`` are passed over, and so is an unfinished last event.
    """

    def __init__(self, on_event: Callable[[float, bytes], None]) -> None:
        self._on_event = on_event
        self._rest = b""

    def feed(self, seconds: float, piece: bytes) -> None:
        # The rule is one event of one line per piece.
        if not self._rest and piece.startswith(b"data: ") and piece.find(b"\n") == len(piece) - 2 and piece[-1] == 10:
            self._on_event(seconds, piece[6:-2])
            return
        if self._rest:
            piece, self._rest = self._rest + piece, b""
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n")
        place = 0
        while (end := piece.find(b"\n\n", place)) >= 0:
            if piece.startswith(b"data: ", place) and piece.find(b"\n", place, end) < 0:
                self._on_event(seconds, piece[place + 6 : end])  # one line of data: the rule
            else:
                lines = piece[place:end].split(b"\n")
                data = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
                if data:
                    self._on_event(seconds, b"\n".join(data))
            place = end + 2
        self._rest = piece[place:]
