"""Images: whether a node has one, how it is pulled, and what exactly a tag stands for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from runners.base import ServerFailure
from runners.docker.failures import of_engine

if TYPE_CHECKING:
    import docker

Pull = Literal["missing", "always", "never"]
_OWN = re.compile(r"^spec-orchestrator/(\w+)(?::|$)")
"""Images that this project has a Dockerfile of."""


class _Refused(Exception):
    """What the engine said in the midst of a pull."""


def ensure(client: docker.DockerClient, image: str, pull: Pull, on_status: Callable[[str], None]) -> str:
    """Digest of an image, which is pulled first where that is asked for.

    ``on_status`` is told how far the pull is, as often as the engine says so; what it raises ends the pull. Raises
    ServerFailure (``image_missing``, ``pull_refused``, ``registry_unreachable``, ``disk_full``, those of the engine).
    """
    here = None if pull == "always" else digest(client, image)
    if here is None and pull != "never":
        _pull(client, image, on_status)
        here = digest(client, image)
    if here is None:
        raise ServerFailure("image_missing", f"the engine has no image {image}; {how_to_get(image, pull)}")
    return here


def digest(client: docker.DockerClient, image: str) -> str | None:
    """Of its registry where it came from one, else the engine's own id of its content; None where it is not there."""
    from docker.errors import ImageNotFound

    try:
        attributes = client.images.get(image).attrs
    except ImageNotFound:
        return None
    except Exception as problem:
        raise of_engine(problem, image) from problem
    of_registry = [text.partition("@") for text in attributes.get("RepoDigests") or ()]
    name = _repository(image)
    return str(next((found for repository, _, found in of_registry if repository == name), attributes["Id"]))


def how_to_get(image: str, pull: Pull) -> str:
    """What to do about an image that is not there."""
    if (own := _OWN.match(image)) is not None:
        return f"build it: docker build -t {image} -f containers/{own[1]}/Dockerfile . (docs/howto/build-the-images.md)"
    if pull == "never":
        return f"docker pull {image} on the node, or runner.pull=missing"
    return "check runner.image"


def _repository(image: str) -> str:
    """Without tag and digest."""
    name = image.partition("@")[0]
    before, colon, tag = name.rpartition(":")
    return before if colon and "/" not in tag else name


def _pull(client: docker.DockerClient, image: str, on_status: Callable[[str], None]) -> None:
    from docker.errors import DockerException

    about = f"the image {image} cannot be pulled; {how_to_get(image, 'missing')}"
    repository = _repository(image)
    tag = image.removeprefix(repository).lstrip(":@") or "latest"
    layers: dict[str, tuple[int, int]] = {}
    try:
        for event in client.api.pull(repository, tag=tag, stream=True, decode=True):
            if "error" in event:
                raise _Refused(event["error"])
            detail = event.get("progressDetail") or {}
            if "total" in detail and event.get("status") == "Downloading":
                layers[event["id"]] = (detail.get("current", 0), detail["total"])
            on_status(_told(image, layers, str(event.get("status", ""))))
    except (_Refused, DockerException, OSError) as problem:  # those of requests are OSErrors
        raise of_engine(problem, about) from problem


def _told(image: str, layers: dict[str, tuple[int, int]], status: str) -> str:
    """The layers that are known to be needed grow in number while it runs."""
    done, total = (sum(column) for column in zip(*layers.values(), strict=True)) if layers else (0, 0)
    return f"pulling {image}: {done / 1e6:.0f} of {total / 1e6:.0f} MB" if total else f"pulling {image}: {status}"
