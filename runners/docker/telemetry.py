"""The sampler beside a server on another machine: its sources are put into the server's container and started there."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from runners.docker.connect import Connection
from runners.docker.sources import packed

_FOLDER = "spec-orchestrator-telemetry"
_IMAGES_OWN = "/opt/spec-orchestrator"
"""Where this project's images keep psutil and NVML's binding, on no path of what they serve with."""
FIRST_PROCESS = 1
"""The container's, of which the server is a child."""


def command(connection: Connection, container: Any, gpus: bool) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """(the command that starts the sampler in a running container, the processes it has to watch there).

    ``gpus``: the container has some. Raises what the client raises. Where the image lacks Python or a package, the
    sampler's file says so, and the run goes on.
    """
    container.put_archive("/tmp", _archive())
    # A container sees its own GPUs only, and numbers them from 0: whatever it is asked for, it watches all of them.
    last = " --gpus all" if gpus else ""
    path = f"/tmp/{_FOLDER}${{PYTHONPATH:+:$PYTHONPATH}}:{_IMAGES_OWN}"
    script = f'PYTHONPATH="{path}" PYTHONDONTWRITEBYTECODE=1 exec python3 -m runners.telemetry "$@"{last}'
    words = connection.docker_words("exec", "--interactive", str(container.id), "sh", "-c", script, "sh")
    return tuple(words), (FIRST_PROCESS,)


def _archive() -> bytes:
    """A tar file with ``runners/__init__.py`` and ``runners/telemetry``."""
    package = files("runners")
    sources = {"runners/__init__.py": b""}
    for file in package.joinpath("telemetry").iterdir():
        if file.name.endswith(".py"):
            sources[f"runners/telemetry/{file.name}"] = file.read_bytes()
    return packed(_FOLDER, sources)
