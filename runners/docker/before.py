"""Before anything is started: whether the engines of the nodes answer, and which image each arm will get."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config.names import ConfigError
from orchestrator.planning import gpu_choice, hardware, image_lock
from orchestrator.schema import ArmConfig
from orchestrator.schema.place import DockerRunner
from runners.base import ServerFailure

if TYPE_CHECKING:
    from runners.docker import images

_TELL_S = 5.0


def refuse(arms: Iterable[ArmConfig]) -> None:
    """Raises ConfigError where an engine does not answer, or lacks an image that it may not pull."""
    for arm, key, image in _containers(arms):
        from runners.docker import images
        from runners.docker.connect import connect

        try:
            with connect(arm.node.model_dump(mode="json")) as connection:
                if _runner(arm).pull == "never" and images.digest(connection.client, image) is None:
                    raise ConfigError(
                        f"{key}={image}",
                        "the container engine does not have it, and runner.pull=never",
                        hint=images.how_to_get(image, "never"),
                    )
        except ServerFailure as failure:
            raise _no_engine(arm, failure) from failure


def settle(arms: Iterable[ArmConfig], output: Path) -> dict[str, hardware.Machine]:
    """Have every image on its node, and know the nodes: node, as it is shown -> what it is, for other machines.

    Tells on stderr how far a pull is. Raises ConfigError where a pull fails, or a node cannot be asked or has not the
    GPUs that an arm wants: nothing was started.
    """
    found: dict[str, hardware.Machine] = {}
    for arm, key, image in _containers(arms):
        from runners.docker import node_facts
        from runners.docker.connect import connect
        from runners.docker.container import gpu_ids

        try:
            with connect(arm.node.model_dump(mode="json")) as connection:
                try:
                    lock_image(connection.client, image, _runner(arm).pull, output, _print_rarely())
                except ServerFailure as failure:
                    raise ConfigError(f"{key}={image}", str(failure)) from failure
                if arm.node.kind != "local" and arm.node.shown not in found:
                    found[arm.node.shown] = node_facts.read(connection, image, bool(gpu_ids(arm.server)))
        except ServerFailure as failure:
            raise _no_engine(arm, failure) from failure
        if arm.node.kind != "local":
            gpu_choice.check(arm, found[arm.node.shown].gpus)
    return found


def lock_image(client: Any, image: str, pull: images.Pull, output: Path, on_status: Callable[[str], None]) -> str:
    """Digest of an image, which is pulled where that is asked for, kept in the lock of ``output``. Raises
    ServerFailure."""
    from runners.docker import images

    digest = images.ensure(client, image, pull, on_status)
    image_lock.write(output, image, digest)
    return digest


def _containers(arms: Iterable[ArmConfig]) -> list[tuple[ArmConfig, str, str]]:
    """(arm, config key, image): one arm for each image on each node, those of servers first. Raises ConfigError where
    containers cannot be asked for at all."""
    found: dict[tuple[str, str, str], ArmConfig] = {}
    arms = [arm for arm in arms if arm.runner.kind == "docker"]
    for arm in arms:
        # An arm without one is named as missing by another check.
        if (image := arm.server["runner"]["image"]) is not None:
            found.setdefault((arm.node.model_dump_json(), "runner.image", image), arm)
    for arm in arms:
        if arm.load.client == "node":
            found.setdefault((arm.node.model_dump_json(), "load.image", arm.load.image), arm)
    if found and find_spec("docker") is None:
        raise ConfigError("runner=docker", "needs Docker's client for Python", hint="pip install -e '.[gpu]'")
    return [(arm, key, image) for (_, key, image), arm in found.items()]


def _runner(arm: ArmConfig) -> DockerRunner:
    assert isinstance(arm.runner, DockerRunner)
    return arm.runner


def _no_engine(arm: ArmConfig, failure: ServerFailure) -> ConfigError:
    if arm.node.kind != "local":
        return ConfigError(f"node={arm.node.kind}", f"no server can be started there: {failure}")
    seen = ", ".join(dict.fromkeys(hardware.gpus().names))
    return ConfigError(
        "runner=docker",
        (f"a GPU is visible here ({seen}), so servers run in containers, but " if seen else "")
        + f"no container engine can be used: {failure}",
        hint="without one, runner=process serves with the sglang that is installed here, and runner=embedded measures "
        "the small target without a GPU",
    )


def _print_rarely() -> Callable[[str], None]:
    last = -_TELL_S

    def tell(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _TELL_S:
            last = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    return tell
