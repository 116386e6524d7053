"""The load client beside a server: a container of its own in the network of the server's, with the code from here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from runners.docker.connect import Connection
from runners.docker.sources import packed

_FOLDER = "spec-orchestrator-client"
_PACKAGES = ("load", "measuring", "analysis")
"""Of those that ``orchestrator.load.worker`` imports, each whole: a few hundred kilobytes."""
_WAIT = "import signal; signal.pause()"


def create(connection: Connection, image: str, server: Any, labels: Mapping[str, str]) -> Any:
    """Its container; ``server``: that whose loopback it shares. Raises what the engine's client raises."""
    return connection.client.containers.create(
        image,
        entrypoint=["python3"],
        command=["-c", _WAIT],
        labels=dict(labels),
        network_mode=f"container:{server.id}",
        init=True,
        security_opt=["no-new-privileges"],
    )


def start(connection: Connection, container: Any) -> tuple[str, ...]:
    """Have it run; returns the command that starts the client in it, its standard input and output passed through."""
    container.put_archive("/tmp", _archive())
    container.start()
    script = f'PYTHONPATH="/tmp/{_FOLDER}${{PYTHONPATH:+:$PYTHONPATH}}" exec python3 -m orchestrator.load.worker'
    return tuple(connection.docker_words("exec", "--interactive", str(container.id), "sh", "-c", script))


def _archive() -> bytes:
    """A tar file with the client's part of this project as it is here, so that both sides speak the same."""
    package = files("orchestrator")
    sources = {f"orchestrator/{name}": package.joinpath(name).read_bytes() for name in ("__init__.py", "frozen.py")}
    for folder in _PACKAGES:
        for file in package.joinpath(folder).iterdir():
            if file.name.endswith(".py"):
                sources[f"orchestrator/{folder}/{file.name}"] = file.read_bytes()
    return packed(_FOLDER, sources)
