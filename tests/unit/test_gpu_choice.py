"""Whether the machine that serves has the GPUs that an arm wants."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.config.names import ConfigError
from orchestrator.planning import gpu_choice, hardware
from orchestrator.planning.hardware import Gpus
from orchestrator.schema.place import ProcessRunner, SshNode
from tests import plan_factory

TWO = Gpus(("NVIDIA H100 80GB HBM3", "NVIDIA L4"), "580", ("GPU-aa11", "GPU-bb22"))


def arm(**node: Any) -> Any:
    wanted: dict[str, Any] = {"gpus": None, "expect_gpu": None} | node
    place = SshNode(kind="ssh", host="me@gpu-3", docker_socket="/var/run/docker.sock", **wanted)
    runner = ProcessRunner(kind="process", command=("sglang", "serve"), port=None, ready_timeout_s=1.0, start_s=1.0)
    plain = plan_factory.arm("plain", plan_factory.suite(), plan_factory.load())
    return plain.model_copy(update={"node": place, "runner": runner})


@pytest.mark.parametrize(
    "node",
    [{}, {"gpus": (1,)}, {"gpus": ("GPU-bb22",)}, {"gpus": ("GPU-a",), "expect_gpu": "h100"}, {"expect_gpu": "H100"}],
)
def test_what_is_there_is_taken(node: dict[str, Any]) -> None:
    gpu_choice.check(arm(**node), TWO)


@pytest.mark.parametrize(
    ("node", "gpus", "told"),
    [
        ({"gpus": (2,)}, TWO, "node.gpus=[2]: me@gpu-3 has 0: NVIDIA H100 80GB HBM3; 1: NVIDIA L4"),
        ({"gpus": ("GPU-cc",)}, TWO, "node.gpus=[GPU-cc]"),
        ({"gpus": ("GPU-",)}, TWO, "node.gpus=[GPU-]"),
        ({"expect_gpu": "H200"}, TWO, "GPU 0 of me@gpu-3 is NVIDIA H100 80GB HBM3"),
        ({"gpus": (0, 1), "expect_gpu": "H100"}, TWO, "GPU 1 of me@gpu-3 is NVIDIA L4"),
        ({"expect_gpu": "H100"}, Gpus(), "me@gpu-3 has no NVIDIA GPU that nvidia-smi shows"),
    ],
)
def test_what_is_not_there_is_refused(node: dict[str, Any], gpus: Gpus, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        gpu_choice.check(arm(**node), gpus)
    assert told in str(refused.value)


def test_without_a_gpu_and_without_a_wish_sglang_serves_on_the_processor() -> None:
    gpu_choice.check(arm(), Gpus())


def test_what_a_node_prints_is_read() -> None:
    found = hardware.parse_gpus("NVIDIA H100, 580.1, GPU-1\nNVIDIA H100, 580.1, GPU-2\n")
    assert found is not None and found.names == ("NVIDIA H100",) * 2
    assert (found.driver, found.uuids) == ("580.1", ("GPU-1", "GPU-2"))
    assert hardware.parse_gpus("\nNVIDIA-SMI has failed\n") is None
    rows = [f"processor\t: {n}\nmodel name\t: Xeon\nphysical id\t: 0\ncore id\t: {n // 2}\n" for n in range(4)]
    cpu = hardware.parse_cpu("\n".join(rows))
    assert (cpu.model, cpu.cores, cpu.threads) == ("Xeon", 2, 4)
    assert hardware.Machine(cpu, found).shown == "2x NVIDIA H100"
    assert hardware.Machine(cpu, Gpus()).shown == "Xeon, 2 cores"
