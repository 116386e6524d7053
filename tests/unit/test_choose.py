"""Where an installed SGLang's interpreter is, and which GPUs its process sees."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.planning import hardware
from orchestrator.schema import ProcessRunner
from orchestrator.schema.place import LocalNode
from runners import choose
from tests import plan_factory


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("#!/opt/sglang/bin/python3.11\nimport sys\n", ("/opt/sglang/bin/python3.11",)),
        ("#!/usr/bin/env python3\nimport sys\n", ("/usr/bin/env", "python3")),
        ("#!/bin/sh\n'''exec' /a/long/path/bin/python \"$0\" \"$@\"\n' '''\n", ("/a/long/path/bin/python",)),
        ("#!/bin/sh\n'''exec' \"/with a space/bin/python\" \"$0\" \"$@\"\n' '''\n", ("/with a space/bin/python",)),
        ("#!/bin/sh\n# don't\nexec sglang\n", ("/bin/sh",)),
        ("\x7fELF", (sys.executable,)),
        ("", (sys.executable,)),
    ],
)
def test_the_interpreter_is_the_one_that_a_script_names(tmp_path: Path, script: str, found: tuple[str, ...]) -> None:
    path = tmp_path / "sglang"
    path.write_text(script)
    path.chmod(0o755)
    assert choose.interpreter([str(path), "serve"]) == found


def test_a_command_that_is_an_interpreter_is_its_own() -> None:
    assert choose.interpreter([sys.executable, "-m", "sglang.launch_server"]) == (sys.executable,)
    assert choose.interpreter(["no-such-program"]) == ("no-such-program",)


@pytest.mark.parametrize(
    ("gpus", "tp_size", "seen"),
    [(None, 1, "0"), (None, 2, "0,1"), ([1], 1, "1"), (["GPU-1b", "GPU-1a"], 2, "GPU-1b,GPU-1a")],
)
def test_a_process_sees_the_gpus_of_its_node_only(
    monkeypatch: pytest.MonkeyPatch, gpus: list[Any] | None, tp_size: int, seen: str
) -> None:
    runner = ProcessRunner(kind="process", command=("sglang", "serve"), port=None, ready_timeout_s=1.0, start_s=1.0)
    node = LocalNode.model_validate({"kind": "local", "gpus": gpus, "expect_gpu": None})
    plain = plan_factory.arm("plain", plan_factory.suite(), plan_factory.load(), runner=runner, node=node)
    arm = plain.model_copy(update={"target": plain.target.model_copy(update={"tp_size": tp_size})})
    monkeypatch.setattr(hardware, "gpus", lambda: hardware.Gpus(("H100", "H100"), "580"))
    assert choose._visible_gpus(arm) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": seen}
    monkeypatch.setattr(hardware, "gpus", lambda: hardware.Gpus((), None))
    assert choose._visible_gpus(arm) == {}
