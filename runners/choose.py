"""The runner that an arm's config names, with the software that it starts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.config.server_config import start_options
from orchestrator.paths import local_path
from orchestrator.planning import hardware
from orchestrator.schema import ArmConfig, AttachRunner, DockerRunner, EmbeddedRunner
from runners.base import Prepare, Runner, Software
from runners.gpu_lock import LockedRunner, identifiers

_LONG_PATH = re.compile(r"""'''exec' ("[^"]+"|\S+) "\$0\"""")
"""How installers enter an interpreter whose path is too long for a script's first line, which is then /bin/sh."""


def make_runner(arm: ArmConfig) -> Runner:
    """Nothing is started or connected by it."""
    if isinstance(arm.runner, AttachRunner):
        from runners import attach

        return attach.AttachRunner(arm.runner.url, arm.runner.here)
    options = start_options(arm)
    if isinstance(arm.runner, DockerRunner):
        from runners.docker import runner

        prepare = _embedded(None, "python") if arm.engine == "embedded" else _sglang()
        client = arm.load.image if arm.load.client == "node" else None
        made = runner.DockerRunner(prepare, arm.name, arm.node.model_dump(mode="json"), options, client)
        return _alone(arm, made)
    from runners import process

    if isinstance(arm.runner, EmbeddedRunner):
        prepare = _embedded(os.getpid(), sys.executable)
        return process.ProcessRunner(prepare, options["port"], options["ready_timeout_s"])
    python = interpreter(arm.runner.command)
    prepare = _sglang(arm.runner.command, python)
    server = process.ProcessRunner(prepare, options["port"], options["ready_timeout_s"], python, _visible_gpus(arm))
    return _alone(arm, server)


def _alone(arm: ArmConfig, runner: Runner) -> Runner:
    """With its GPUs locked, where it serves on GPUs of this machine."""
    found = hardware.gpus()
    if arm.node.kind != "local" or not (found.names and arm.chosen_gpus):
        return runner
    return LockedRunner(runner, identifiers(arm.chosen_gpus, found))


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


def _sglang(*entered: Sequence[str]) -> Prepare:
    """SGLang, entered by ``command`` and ``python`` as `SglangSoftware` says, else as its images are.

    A model's folder is seen in a container where it lies here; a Hugging Face id is left to SGLang.
    """

    def prepare(config: dict[str, Any], on_status: Callable[[str], None]) -> tuple[dict[str, Any], Software]:
        from runners.sglang.software import SglangSoftware

        if (local := local_path(config["target"]["path"])) is not None:
            config = {**config, "target": {**config["target"], "path": str(local)}}
        return config, SglangSoftware(config, *entered)

    return prepare


def interpreter(command: Sequence[str]) -> tuple[str, ...]:
    """The Python that a command runs in: the command itself (``python -m ...``), else what its script names, else that
    of this program."""
    first = shutil.which(command[0])
    if first is None or Path(first).name.startswith("python"):
        return (command[0],)
    with open(first, "rb") as script:
        lines = script.read(4096).decode(errors="replace").splitlines()
    if not lines or not lines[0].startswith("#!"):
        return (sys.executable,)
    longer = _LONG_PATH.match(lines[1]) if len(lines) > 1 else None
    words = [longer[1].strip('"')] if longer else shlex.split(lines[0][2:])
    return tuple(words) or (sys.executable,)


def _visible_gpus(arm: ArmConfig) -> dict[str, str]:
    """The variables that give a process the GPUs of ``node.gpus``, in the order in which NVML numbers them."""
    if not hardware.gpus().names:
        return {}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, arm.chosen_gpus))}
