"""Before anything is started: whether the engines of the nodes answer, and which image each arm will get."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

from orchestrator.config.names import ConfigError
from orchestrator.planning import gpu_choice, hardware, image_lock
from orchestrator.schema import ArmConfig
from orchestrator.schema.place import DockerRunner
from runners.base import ServerFailure

_TELL_S = 5.0


def refuse(arms: Iterable[ArmConfig]) -> None:
    """Raises ConfigError where an engine does not answer, or lacks an image that it may not pull."""
    for arm, image in _containers(arms):
        from runners.docker import images
        from runners.docker.connect import connect

        try:
            with connect(arm.node.model_dump(mode="json")) as connection:
                if _runner(arm).pull == "never" and images.digest(connection.client, image) is None:
                    raise ConfigError(
                        f"runner.image={image}",
                        "the container engine does not have it, and runner.pull=never",
                        hint=images.how_to_get(image, "never"),
                    )
        except ServerFailure as failure:
            raise _no_engine(arm, failure) from failure


def resolve(arms: Iterable[ArmConfig], output: Path) -> None:
    """Have every image on its node, pulled where that is asked for, and keep its digest in the lock of ``output``.

    Tells on stderr how far a pull is. Raises ConfigError where it fails: nothing was started.
    """
    for arm, image in _containers(arms):
        from runners.docker import images
        from runners.docker.connect import connect

        try:
            with connect(arm.node.model_dump(mode="json")) as connection:
                digest = images.ensure(connection.client, image, _runner(arm).pull, _print_rarely())
        except ServerFailure as failure:
            raise ConfigError(f"runner.image={image}", str(failure)) from failure
        image_lock.write(output, image, digest)


def machines(arms: Iterable[ArmConfig]) -> dict[str, hardware.Machine]:
    """Node, as it is shown -> what it is, for the arms of other machines; each is asked once, and has its image by now.

    Raises ConfigError where one cannot be asked, or has not the GPUs that an arm wants.
    """
    found: dict[str, hardware.Machine] = {}
    for arm, image in _containers(arm for arm in arms if arm.node.kind != "local"):
        from runners.docker import node_facts
        from runners.docker.connect import connect
        from runners.docker.container import gpu_ids

        if arm.node.shown not in found:
            try:
                with connect(arm.node.model_dump(mode="json")) as connection:
                    found[arm.node.shown] = node_facts.read(connection, image, bool(gpu_ids(arm.server)))
            except ServerFailure as failure:
                raise _no_engine(arm, failure) from failure
        gpu_choice.check(arm, found[arm.node.shown].gpus)
    return found


def _containers(arms: Iterable[ArmConfig]) -> list[tuple[ArmConfig, str]]:
    """One arm for each image on each node. Raises ConfigError where containers cannot be asked for at all."""
    found: dict[tuple[str, str], ArmConfig] = {}
    for arm in arms:
        # An arm without one is named as missing by another check.
        if arm.runner.kind == "docker" and arm.server["runner"]["image"] is not None:
            found.setdefault((arm.node.model_dump_json(), arm.server["runner"]["image"]), arm)
    if found and find_spec("docker") is None:
        raise ConfigError("runner=docker", "needs Docker's client for Python", hint="pip install -e '.[gpu]'")
    return [(arm, image) for (_, image), arm in found.items()]


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
