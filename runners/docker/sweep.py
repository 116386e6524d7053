"""Removes what an orchestrator of this machine that is gone has left on an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runners.docker import owner
from runners.docker.reaper import remove

if TYPE_CHECKING:
    import docker


def sweep(client: docker.DockerClient) -> list[str]:
    """Names of the containers that were removed. Raises what the client raises where the engine does not answer."""
    found = client.containers.list(all=True, ignore_removed=True, filters={"label": owner.OWNER})
    orphans = [one for one in found if owner.is_gone(one.labels[owner.OWNER])]
    for orphan in orphans:
        remove(orphan)
    return [str(orphan.name) for orphan in orphans]
