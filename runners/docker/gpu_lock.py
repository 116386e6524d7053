"""So that two orchestrators, wherever they run, never serve on one GPU of a node unawares.

The lock of a GPU is a container that is never started, named after it: an engine gives a name once. It carries the
labels of its owner, so what removes the containers of an orchestrator that died removes its locks as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from docker.errors import APIError, NotFound

from runners.base import ServerFailure
from runners.docker import owner
from runners.docker.failures import of_engine
from runners.docker.reaper import remove, remove_by_label

_NAME = "spec-orchestrator-gpu-{gpu}"
_TRIES = 3
_NEVER_RUN = ["true"]


class NodeLock:
    """The lock of some GPUs of one engine, by UUID or index."""

    def __init__(self, client: Any, image: str, labels: Mapping[str, str]) -> None:
        """``image``: one that is there; ``labels``: of the owner."""
        self._client = client
        self._image = image
        self._labels = dict(labels)
        self._held: list[Any] = []

    def take(self, gpus: Sequence[str], node: str) -> None:
        """Raises ServerFailure (``gpu_busy``), which names who has one; what was taken stays until ``release``."""
        for gpu in gpus:
            self._held.append(self._take(gpu, node))

    def release(self) -> None:
        """Raises what the client raises where the engine does not answer."""
        while self._held:
            remove(self._held[-1])
            self._held.pop()

    def _take(self, gpu: str, node: str) -> Any:
        name = _NAME.format(gpu=gpu)
        for _ in range(_TRIES):
            try:
                return self._client.containers.create(
                    self._image, entrypoint=_NEVER_RUN, name=name, labels=self._labels, network_mode="none"
                )
            except APIError as problem:
                if "already in use" not in str(problem):  # 409 of Docker, 500 of podman
                    raise of_engine(problem, f"the lock of GPU {gpu} cannot be taken") from problem
            try:
                holder = self._client.containers.get(name)
            except NotFound:  # released just now
                continue
            who = holder.labels.get(owner.OWNER, "")
            if owner.is_gone(who) or who == owner.me():  # of an earlier start of this process, which lost its node
                # With the server that it stood for, which may still be there: both have one lease.
                remove_by_label(self._client, f"{owner.LEASE}={holder.labels.get(owner.LEASE)}")
                continue
            raise ServerFailure("gpu_busy", _busy(gpu, node, name, who, holder.labels))
        raise ServerFailure("gpu_busy", f"GPU {gpu} of {node} is taken and released again all the time: try once more")


def _busy(gpu: str, node: str, name: str, who: str, labels: Mapping[str, str]) -> str:
    where = labels.get(f"{owner.PREFIX}.directory")
    told = f"{owner.told(who)}{f', for {where}' if where else ''}"
    return (
        f"GPU {gpu} of {node} is in use by another orchestrator ({told}): wait until it has ended, or choose another "
        f"GPU (node.gpus). Where it is known to be gone: docker rm {name} on the node"
    )
