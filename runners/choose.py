"""The runner that an arm's config names, with the software that it starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from orchestrator.config.server_config import start_options
from orchestrator.schema import ArmConfig
from runners.base import Prepare, Runner, ServerFailure, Software


def make_runner(arm: ArmConfig) -> Runner:
    """Raises ServerFailure for one that this version does not have."""
    options = start_options(arm)
    if arm.runner.kind == "embedded":
        from runners.process import ProcessRunner

        return ProcessRunner(_embedded(os.getpid(), sys.executable), options["port"], options["ready_timeout_s"])
    if arm.runner.kind == "docker" and arm.engine == "embedded":
        from runners.docker.runner import DockerRunner

        return DockerRunner(_embedded(None, "python"), arm.name, arm.node.model_dump(mode="json"), options)
    raise ServerFailure("no_runner", f"runner={arm.runner.kind} is not there yet; runner=embedded is")


def _embedded(parent: int | None, python: str) -> Prepare:
    """The embedded engine, whose model lies on this machine; in a container it is mounted where it lies.

    ``parent``: as ``EmbeddedSoftware``; ``python``: the interpreter that has the engine.
    """

    def prepare(config: dict[str, Any], on_status: Callable[[str], None]) -> tuple[dict[str, Any], Software]:
        from runners.embedded import EmbeddedSoftware, fetch

        folder = fetch(config["target"]["path"], on_status)
        config = {**config, "target": {**config["target"], "path": str(folder)}}
        return config, EmbeddedSoftware(config, parent, python)

    return prepare
