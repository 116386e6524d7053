"""Runs a command in an image with the node's Hugging Face cache, to look for weights there or to fetch them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from runners.base import ServerFailure
from runners.docker import node_files, owner
from runners.docker.ask import started
from runners.docker.connect import Connection
from runners.docker.container import read_only_mounts
from runners.docker.places import hub_token
from runners.docker.reaper import Reaper


def run(
    connection: Connection,
    node: Mapping[str, object],
    image: str,
    words: Sequence[str],
    hf_cache: str,
    folders: Sequence[str],
    on_line: Callable[[str], None],
    network: str = "bridge",
) -> str:
    """What the command printed. ``folders`` of the node are seen where they lie; the cache is written.

    ``on_line`` is told each line of its standard error, which is progress. ``network``: as ``runner.network``; an
    engine without a bridge reaches nothing but through the node's own. Raises ServerFailure
    (``weights``, those of the engine).
    """
    from docker.types import Mount

    cache = node_files.absolute(connection, hf_cache)
    node_files.make_folders(connection, [cache])
    lease = owner.new_lease()
    settings = {
        "labels": owner.labels(lease),
        "environment": {"HF_HOME": cache, **hub_token()},
        "mounts": [*read_only_mounts({path: path for path in folders}), Mount(cache, cache, type="bind")],
        "init": True,
        **({"network_mode": "host"} if network == "host" else {}),
    }
    about = f"weights cannot be looked for in the image {image}"
    with (
        Reaper(dict(node), f"{owner.LEASE}={lease}"),
        started(connection.client, image, words, about, settings) as container,
    ):
        for line in container.logs(stdout=False, stderr=True, stream=True, follow=True):
            on_line(line.decode(errors="replace").rstrip())
        code = container.wait()["StatusCode"]
        if code != 0:
            said = container.logs(stdout=False, stderr=True).decode(errors="replace").strip().splitlines()
            raise ServerFailure("weights", said[-1] if said else f"it ended with exit code {code}")
        return str(container.logs(stdout=True, stderr=False).decode(errors="replace"))
