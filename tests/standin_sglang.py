"""A stand-in for the published SGLang image, which cannot be had where these tests run: Python, git, and a tiny package
that finds plugins and resolves algorithms as SGLang's own does. It serves nothing.

That the build's check works with SGLang itself is shown by the nightly test of its wheels (test_sglang_parser.py).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

NAME = "standin/sglang:v0.5.23"
_PROGRAMS = ("git", "basename", "sed", "uname")
"""Beside git, what its shell scripts call."""
_FILES = {
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/speculative/__init__.py": "",
    "sglang/srt/plugins/__init__.py": """
import logging
import os
from importlib.metadata import entry_points

logger = logging.getLogger(__name__)


def load_plugins():
    allowed = os.environ.get("SGLANG_PLUGINS", "").split(",")
    for one in entry_points(group="sglang.srt.plugins"):
        if one.name not in allowed:
            continue
        try:
            function = one.load()
            logger.info("Loaded plugin %s from group sglang.srt.plugins", one.name)
        except Exception:
            logger.exception("Failed to load plugin %s from group sglang.srt.plugins", one.name)
            continue
        try:
            function()
            logger.info("Executed general plugin: %s", one.name)
        except Exception:
            logger.exception("Failed to execute general plugin: %s", one.name)
""",
    "sglang/srt/speculative/spec_info.py": """
class SpeculativeAlgorithm:
    known = {"DFLASH": None, "DSPARK": None}

    @classmethod
    def from_string(cls, name):
        if name.upper() not in cls.known:
            raise ValueError(f"Unknown speculative algorithm name: {name}")
        return cls.known[name.upper()]

    @classmethod
    def register(cls, name, **options):
        def keep(factory):
            cls.known[name.upper()] = factory
            return factory

        return keep
""",
    "sglang-0.5.23+standin.dist-info/METADATA": (
        "Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23+standin\nSummary: A stand-in; serves nothing\n"
    ),
    "sglang-0.5.23+standin.dist-info/INSTALLER": "stand-in\n",
}


def write(folder: Path, base: str) -> None:
    """What the stand-in's image is built from: a Dockerfile and the files that it adds to ``base``."""
    root = folder / "root"
    packages = root / "usr/local/lib/python3.11/site-packages"
    for name, content in _FILES.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(content, encoding="utf-8")
    shutil.copytree("/usr/lib/git-core", root / "usr/lib/git-core", symlinks=True)
    programs = [Path(found) for name in _PROGRAMS if (found := shutil.which(name, path="/usr/bin:/bin"))]
    assert len(programs) == len(_PROGRAMS), "Debian's package git is not installed"
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    for path in {*programs, *map(Path, re.findall(r"(/\S+\.so\S*) \(0x", said))}:
        inner = path if path.is_relative_to("/usr") else Path("/usr") / path.relative_to("/")
        target = root / inner.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    (folder / "Dockerfile").write_text(f"FROM {base}\nCOPY root/ /\n", encoding="utf-8")
