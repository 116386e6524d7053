"""The runner that an arm's config names, with the software that it starts."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.config.server_config import start_options
from orchestrator.paths import local_path
from orchestrator.planning import hardware
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
    if arm.runner.kind == "process":
        from runners.process import ProcessRunner

        command = arm.runner.command
        python = interpreter(command)
        prepare = _sglang(command, python)
        return ProcessRunner(prepare, options["port"], options["ready_timeout_s"], python, _visible_gpus(arm))
    if arm.runner.kind == "docker":
        from runners.docker.runner import DockerRunner
        from runners.sglang.flags import SERVE
        from runners.sglang.software import PYTHON

        return DockerRunner(_sglang(SERVE, PYTHON), arm.name, arm.node.model_dump(mode="json"), options)
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


def _sglang(command: Sequence[str], python: Sequence[str]) -> Prepare:
    """SGLang; a model's folder is seen in a container where it lies here, a Hugging Face id is left to SGLang."""

    def prepare(config: dict[str, Any], on_status: Callable[[str], None]) -> tuple[dict[str, Any], Software]:
        from runners.sglang.software import SglangSoftware

        if (local := local_path(config["target"]["path"])) is not None:
            config = {**config, "target": {**config["target"], "path": str(local)}}
        return config, SglangSoftware(config, command, python)

    return prepare


def interpreter(command: Sequence[str]) -> tuple[str, ...]:
    """The Python that a command runs in: the command itself (``python -m ...``), else what its script names, else that
    of this program."""
    first = shutil.which(command[0])
    if first is None or Path(first).name.startswith("python"):
        return (command[0],)
    with open(first, "rb") as script:
        line = script.readline(256)
    words = shlex.split(line[2:].decode(errors="replace")) if line.startswith(b"#!") else []
    return tuple(words) or (sys.executable,)


def _visible_gpus(arm: ArmConfig) -> dict[str, str]:
    """The variables that give a process the GPUs of ``node.gpus``, in the order in which NVML numbers them."""
    if not hardware.gpus().names:
        return {}
    chosen = ",".join(map(str, arm.node.gpus or range(arm.target.tp_size)))
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": chosen}
