"""Whether a machine has the GPUs that an arm wants: told before a server is started there. Pure."""

from __future__ import annotations

from orchestrator.config.names import ConfigError
from orchestrator.planning.hardware import Gpus
from orchestrator.schema import ArmConfig


def check(arm: ArmConfig, gpus: Gpus) -> None:
    """``gpus``: all of the machine that serves. Raises ConfigError for one that is not there, or is another kind."""
    node = arm.node
    asked = bool(node.gpus) or node.expect_gpu is not None  # node.gpus=[]: on the processor
    if arm.engine == "embedded" or not (gpus.names or asked):  # without a GPU, SGLang serves on the processor
        return
    if not gpus.names:
        key = "node.expect_gpu" if node.expect_gpu is not None else "node.gpus"
        raise ConfigError(
            key, f"{node.shown} has no NVIDIA GPU that nvidia-smi shows", hint="does nvidia-smi -L work there?"
        )
    shown = [f"{index}: {name}" for index, name in enumerate(gpus.names)]
    for one in arm.chosen_gpus:
        if (index := position(one, gpus)) is None:
            known = [*(str(index) for index in range(len(gpus.names))), *gpus.uuids]
            key = f"node.gpus=[{one}]" if node.gpus is not None else f"target.tp_size={arm.target.tp_size}"
            raise ConfigError(key, f"{node.shown} has {'; '.join(shown)}", allowed=known)
        if node.expect_gpu is not None and node.expect_gpu.lower() not in gpus.names[index].lower():
            raise ConfigError(
                f"node.expect_gpu={node.expect_gpu}",
                f"GPU {one} of {node.shown} is {gpus.names[index]}",
                hint="node.gpus=[...] names another, node.expect_gpu=null takes any",
            )


def position(gpu: int | str, gpus: Gpus) -> int | None:
    """Place of a GPU given by index or UUID (or its beginning, as nvidia-smi takes it) among all; None: not there."""
    if isinstance(gpu, int) or gpu.isdecimal():
        return int(gpu) if int(gpu) < len(gpus.names) else None
    found = [index for index, uuid in enumerate(gpus.uuids) if uuid.startswith(gpu)]
    return found[0] if len(found) == 1 else None
