"""Resolves command lines as an unpacked SGLang wheel does at its start; a script of its own process.

    python sglang_real_rules.py FOLDER < command_lines.json

That is what SGLang does before it starts any process: it reads the checkpoints' configurations, fills in what was left
open, and refuses what does not go together. No GPU is needed: it is told of one H100.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import torch
from sglang_real_parser import make_importable  # the folder of a script is on its path
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

_MEMORY = 80 * 2**30


class _H100:
    total_memory, major, minor, name, multi_processor_count = _MEMORY, 9, 0, "NVIDIA H100 80GB HBM3", 132


def pretend_a_gpu() -> None:
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.get_device_properties = lambda *device: _H100
    cuda.get_device_capability = lambda *device: (_H100.major, _H100.minor)
    cuda.get_device_name = lambda *device: _H100.name
    cuda.mem_get_info = lambda *device: (_MEMORY, _MEMORY)
    torch.version.cuda = "13.0"


def refusal(words: Sequence[str], variables: dict[str, str]) -> str:
    """What SGLang says against a command line, "" if it would go on to start its processes."""
    os.environ.update(variables)
    with contextlib.suppress(ImportError):
        importlib.import_module("sglang.srt.plugins").load_plugins()
    made: Any = importlib.import_module("sglang.srt.server_args")
    try:
        arguments = made.prepare_server_args(list(words))
        if hasattr(arguments, "resolve_once"):  # before, it was done when they were made
            arguments.resolve_once()
        if hasattr(arguments, "check_server_args"):
            arguments.check_server_args()
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def in_a_process(words: Sequence[str], variables: dict[str, str]) -> str:
    """The same, with nothing left of it: SGLang keeps what it resolved in the process."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.dup2(2, 1)
        told = refusal(words, variables)
        with os.fdopen(writing, "w") as out:
            out.write(told)
            out.flush()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        told = answer.read()
    os.wait()
    return told


if __name__ == "__main__":
    compile_nothing: Any = lambda function=None, **options: function or (lambda inner: inner)  # noqa: E731
    torch.compile = compile_nothing
    mapping: Any = type(CONFIG_MAPPING)
    register = mapping.register
    mapping.register = lambda self, key, value, exist_ok=False: register(self, key, value, exist_ok=True)
    make_importable(sys.argv[1])
    importlib.import_module("sglang.srt.server_args")
    pretend_a_gpu()
    asked = json.load(sys.stdin)
    print(json.dumps({name: in_a_process(line["words"], line["env"]) for name, line in asked.items()}))
