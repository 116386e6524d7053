"""Short commands in an image, each in a container of its own; what one says is kept, since an image does not change."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from runners.base import ServerFailure
from runners.docker.container import gpu_requests, read_only_mounts
from runners.docker.failures import of_engine
from runners.docker.reaper import remove
from runners.remembered import remembered

if TYPE_CHECKING:
    import docker

_LONGEST_S = 180
_SAID = 500


class ImageAsker:
    """An ``Ask`` (runners/base.py) for one image.

    ``gpus`` and ``mounts`` (folder of the node -> where it is seen): as the server gets them. Some of what SGLang
    imports to tell its flags needs the driver's libraries.
    """

    def __init__(
        self,
        client: docker.DockerClient,
        image: str,
        digest: str,
        gpus: Sequence[str],
        mounts: Mapping[str, str],
        labels: Mapping[str, str],
    ) -> None:
        self._client = client
        self._image = image
        self._digest = digest
        self._gpus = gpus
        self._mounts = dict(mounts)
        self._labels = labels

    def __call__(self, words: Sequence[str]) -> str:
        """Raises ServerFailure where the command cannot be run there or fails."""
        return remembered("images", [self._digest, self._mounts, *words], lambda: self._run(words))

    def _run(self, words: Sequence[str]) -> str:
        return run_once(self._client, self._image, words, self._gpus, self._mounts, self._labels)


def run_once(
    client: docker.DockerClient,
    image: str,
    words: Sequence[str],
    gpus: Sequence[str],
    mounts: Mapping[str, str],
    labels: Mapping[str, str],
) -> str:
    """What a command prints in a container of its own, which has no network. Raises ServerFailure."""
    about = f"{shlex.join(words)} in the image {image}"
    settings = {
        "labels": dict(labels),
        "device_requests": gpu_requests(gpus),
        "mounts": read_only_mounts(mounts),
        "network_mode": "none",
    }
    with started(client, image, words, about, settings) as container:
        code = container.wait(timeout=_LONGEST_S)["StatusCode"]
        said = container.logs(stdout=True, stderr=False).decode(errors="replace")
        if code != 0:
            errors = container.logs(stdout=False, stderr=True).decode(errors="replace").strip()
            raise ServerFailure("argument", f"{about} failed ({code}): {(errors or said)[-_SAID:]}")
        return str(said)


@contextmanager
def started(
    client: docker.DockerClient, image: str, words: Sequence[str], about: str, settings: Mapping[str, Any]
) -> Iterator[Any]:
    """A container that runs one command, removed at the end. ``settings``: further keywords of its creation.

    What the client raises, inside too, becomes a ServerFailure that begins with ``about``.
    """
    container = None
    try:
        container = client.containers.create(image, list(words[1:]), entrypoint=list(words[:1]), **settings)
        container.start()
        yield container
    except ServerFailure:
        raise
    except Exception as problem:
        raise of_engine(problem, about) from problem
    finally:
        if container is not None:
            with suppress(Exception):  # of the engine, which was told or comes again; the sweep removes it
                remove(container)
