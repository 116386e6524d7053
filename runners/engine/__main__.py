"""``python -m runners.engine``: bind first, then import and load the heavy parts, then serve."""

from __future__ import annotations

import os
import socket
import sys

from runners.engine import arguments

# Before torch is imported, since OpenMP reads it when it is loaded: threads that wait spin for microseconds, enough
# from one layer to the next, then sleep. OpenMP's own default spins for milliseconds, and where cores are few or shared
# that takes the time of the thread it waits for. Two cores, plain decoding, tok/s by spin count: 0: 32, 2000: 44,
# 20000: 46; with another program on one of the cores 0: 26, 2000: 22, 20000: 7.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")


def main() -> None:
    args = arguments.parse()
    listener = listen(args.host, args.port)
    import uvloop

    from runners.engine.server import serve

    code = uvloop.run(serve(args, listener))
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: the engine's thread may be inside a forward, which nothing can interrupt.
    os._exit(code)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; exits with EXIT_PORT_IN_USE and a message where the address cannot be bound."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        print(
            f"error: cannot listen on {host}:{port}: {error.strerror or error}. Another server may run there; stop it "
            f"or choose another --port. Nothing was loaded.",
            file=sys.stderr,
            flush=True,
        )
        raise SystemExit(arguments.EXIT_PORT_IN_USE) from error
    return listener


if __name__ == "__main__":
    main()
