"""What a node is made of: asked of itself, since it serves and this machine only asks."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence

from orchestrator.planning import hardware
from runners.base import ServerFailure
from runners.docker import owner
from runners.docker.ask import run_once
from runners.docker.connect import Connection

_LONGEST_S = 60
_BETWEEN = "====="
_SCRIPT = f"{shlex.join(hardware.QUERY)} 2>/dev/null; echo {_BETWEEN}; cat /proc/cpuinfo"


def read(connection: Connection, image: str, gpus: bool) -> hardware.Machine:
    """Processor and GPUs of the machine behind a connection. Raises ServerFailure.

    Over TLS there is no shell, so a container of ``image``, which has to be there, looks; ``gpus``: it is given all.
    """
    if not connection.remote:
        return hardware.here()
    words = ["sh", "-c", _SCRIPT]
    if connection.shell:
        said = _by_shell(connection, words)
    else:
        labels = owner.labels(owner.new_lease(), asks="hardware")
        said = run_once(connection.client, image, words, ["all"] if gpus else [], {}, labels)
    gpu_rows, _, cpu_rows = said.partition(_BETWEEN)
    return hardware.Machine(hardware.parse_cpu(cpu_rows), hardware.parse_gpus(gpu_rows) or hardware.Gpus())


def _by_shell(connection: Connection, words: Sequence[str]) -> str:
    command = connection.words(*words)
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S, check=True).stdout
    except (OSError, subprocess.SubprocessError) as problem:
        said = getattr(problem, "stderr", None) or problem
        told = f"{connection.address} does not say what it is made of ({said}): does it run a shell for this user?"
        raise ServerFailure("node_unreachable", told) from problem
