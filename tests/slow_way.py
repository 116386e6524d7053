"""OpenSSH's ProxyCommand over a way that takes a while: ``python slow_way.py HOST PORT SECONDS``, each way."""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable


def carry(read: Callable[[], bytes], write: Callable[[bytes], object], seconds: float) -> None:
    """Every piece arrives so many seconds after it was read; many are under way at once."""
    under_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def arrive() -> None:
        while True:
            due, piece = under_way.get()
            time.sleep(max(0.0, due - time.monotonic()))
            if not piece:
                os._exit(0)  # either side has ended the connection
            try:
                write(piece)
            except OSError:
                os._exit(0)

    threading.Thread(target=arrive, daemon=True).start()
    piece = b"-"
    while piece:
        try:
            piece = read()
        except OSError:
            piece = b""
        under_way.put((time.monotonic() + seconds, piece))


if __name__ == "__main__":
    host, port, seconds = sys.argv[1:]
    there = socket.create_connection((host, int(port)), 10)
    there.settimeout(None)
    back = threading.Thread(
        target=carry, args=(lambda: there.recv(65536), lambda piece: os.write(1, piece), float(seconds)), daemon=True
    )
    back.start()
    carry(lambda: os.read(0, 65536), there.sendall, float(seconds))
    back.join()
