"""Labels of the containers that an orchestrator made, and whether it still lives."""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path

PREFIX = "spec-orchestrator"
OWNER = f"{PREFIX}.owner"
LEASE = f"{PREFIX}.lease"
_MACHINE_ID = Path("/etc/machine-id")


def new_lease() -> str:
    """Names the containers of one start of a server."""
    return uuid.uuid4().hex


def labels(lease: str, **facts: str) -> dict[str, str]:
    """``facts``: what a person who lists containers wants to know (arm, directory, server)."""
    return {OWNER: me(), LEASE: lease, **{f"{PREFIX}.{name}": value for name, value in facts.items()}}


def me() -> str:
    """``machine:pid namespace:pid:start time``: a number alone is used again by another process later."""
    return f"{_where()}:{os.getpid()}:{_started(os.getpid())}"


def told(owner: str) -> str:
    """The same for a person."""
    where, _, process = owner.rpartition(":")
    place, _, pid = where.rpartition(":")
    return f"process {pid} on {place.partition('/')[0]}" if process and pid else "unknown"


def is_gone(owner: str) -> bool:
    """Whether it is a process of this machine that has ended. Of other machines nothing is known, so False."""
    where, _, process = owner.rpartition(":")
    where, _, pid = where.rpartition(":")
    return where == _where() and pid.isdecimal() and process != _started(int(pid))


def _where() -> str:
    try:
        machine = _MACHINE_ID.read_text().strip()[:12]
    except OSError:
        machine = ""
    return f"{socket.gethostname()}/{machine}:{os.stat('/proc/self/ns/pid').st_ino}"


def _started(pid: int) -> str:
    """Clock ticks since boot; "" for a process that is not there or is a zombie."""
    try:
        # The name, in parentheses, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
