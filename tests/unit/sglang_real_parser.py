"""Builds the argument parser of an unpacked SGLang wheel and feeds it command lines; a script of its own process.

    python sglang_real_parser.py FOLDER < command_lines.json

SGLang's parser is made of its modules' constants, and those import kernels, drivers and a hundred packages. What
SGLang itself imports and does not find is replaced by a module that has every name, so that no GPU and no dependency is
needed; what other packages fail to import stays missing, as they expect.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import json
import sys
import types
from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from typing import Any

# Imported before anything is replaced: they look for optional packages by themselves.
import torch._dynamo  # noqa: F401
import transformers.image_utils  # noqa: F401
from pydantic_core import core_schema
from transformers.models.auto.configuration_auto import CONFIG_MAPPING


class _Everything(type):
    """A class that has every attribute, is called with anything, and decorates without a trace."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return "cpu" if name == "backend" else _anything(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args and callable(args[0]) else type.__call__(cls)


def _anything(name: str) -> Any:
    return _Everything(
        name,
        (),
        {
            "__class_getitem__": classmethod(lambda cls, key: cls),
            "__init_subclass__": classmethod(lambda cls, **kwargs: None),
            "__getattr__": lambda self, name: "cpu" if name == "backend" else _anything(name),
            "__call__": lambda self, *args, **kwargs: args[0] if args else self,
            "__or__": lambda self, other: self,
            "__get_pydantic_core_schema__": classmethod(lambda cls, source, handler: core_schema.any_schema()),
        },
    )


class _Missing(types.ModuleType):
    __path__: Sequence[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _anything(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked last: what it is asked for is not installed."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] == "sglang":
            return None
        if not isinstance(sys.modules.get(name.rpartition(".")[0]), _Missing):
            frame = sys._getframe(1)
            while "importlib" in frame.f_globals.get("__name__", "") and frame.f_back is not None:
                frame = frame.f_back
            if not frame.f_globals.get("__name__", "").startswith("sglang"):
                return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Missing(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def make_importable(folder: str) -> None:
    """Let the unpacked wheel be imported."""
    sys.path.insert(0, folder)
    sys.meta_path.append(_Finder())


def parser(folder: str) -> argparse.ArgumentParser:
    # A newer transformers has some of the models that an older SGLang registers.
    register = type(CONFIG_MAPPING).register
    type(CONFIG_MAPPING).register = lambda self, key, value, exist_ok=False: register(self, key, value, exist_ok=True)
    make_importable(folder)
    from sglang.srt.server_args import ServerArgs

    made = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(made)
    return made


def refusal(made: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """What the parser says against a command line, "" if it takes it."""
    said = StringIO()
    try:
        with redirect_stderr(said):
            made.parse_args(list(words))
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    return ""


if __name__ == "__main__":
    built = parser(sys.argv[1])
    spellings = {
        name.removeprefix("--"): "switch"
        if action.nargs == 0
        else "list"
        if action.nargs in ("+", "*", "?")
        else "value"
        for action in built._actions
        for name in action.option_strings
        if name.startswith("--") and action.dest != "help" and action.help != argparse.SUPPRESS
    }
    refused = {name: refusal(built, words) for name, words in json.load(sys.stdin).items()}
    print(json.dumps({"spellings": spellings, "refused": refused}))
