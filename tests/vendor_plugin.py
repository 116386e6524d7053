"""A vendor's package with a speculative algorithm, made up for tests: as it should be, and wrong in several ways."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROJECT = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "dspine-vendor"
version = "0.1"
dependencies = ["torch==1.0", "a-package-that-does-not-exist"]
"""
_ENTRY_POINT = '\n[project.entry-points."sglang.srt.plugins"]\ndspine = "dspine_vendor:register"\n'
_INSTALLED = "[sglang.srt.plugins]\ndspine = dspine_vendor:register\n"
_REGISTERS = """
def register():
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    @SpeculativeAlgorithm.register("{name}", supports_overlap=True)
    def worker(server_args):
        return object
"""
KINDS: dict[str, tuple[str, str]] = {
    # pyproject.toml, dspine_vendor.py
    "right": (_PROJECT + _ENTRY_POINT, _REGISTERS.format(name="DSPINE")),
    "no entry point": (_PROJECT, _REGISTERS.format(name="DSPINE")),
    "another algorithm": (_PROJECT + _ENTRY_POINT, _REGISTERS.format(name="DSPINE2")),
    "import fails": (_PROJECT + _ENTRY_POINT, "import a_module_that_is_not_there\n" + _REGISTERS.format(name="DSPINE")),
}


def install(folder: Path, kind: str) -> None:
    """What pip would make of it: a folder to be put on Python's path."""
    about = folder / "dspine_vendor-0.1.dist-info"
    about.mkdir(parents=True)
    (folder / "dspine_vendor.py").write_text(KINDS[kind][1])
    (about / "METADATA").write_text("Name: dspine-vendor\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text(_INSTALLED if _ENTRY_POINT in KINDS[kind][0] else "")


def repository(folder: Path) -> dict[str, str]:
    """A git repository with one commit for each of KINDS: kind -> commit."""
    folder.mkdir()
    _git(folder, "init", "--quiet")
    commits = {}
    for kind, (project, module) in KINDS.items():
        (folder / "pyproject.toml").write_text(project)
        (folder / "dspine_vendor.py").write_text(module)
        _git(folder, "add", "--all")
        _git(folder, "commit", "--quiet", "--message", kind)
        commits[kind] = _git(folder, "rev-parse", "HEAD")
    return commits


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The repositories of a folder on loopback, as containers/dspine/README.md does it; gives the address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    daemon = subprocess.Popen(
        [
            "git", "daemon", "--listen=127.0.0.1", f"--port={port}", "--reuseaddr", "--export-all",
            f"--base-path={folder}", str(folder),
        ],
        process_group=0,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert daemon.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
        yield f"git://127.0.0.1:{port}"
    finally:
        os.killpg(daemon.pid, signal.SIGTERM)
        daemon.wait(timeout=10)


def _git(folder: Path, *words: str) -> str:
    who = {"GIT_AUTHOR_NAME": "vendor", "GIT_AUTHOR_EMAIL": "vendor@example.org"}
    who |= {name.replace("AUTHOR", "COMMITTER"): value for name, value in who.items()}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(["git", *words], cwd=folder, env=clean | who, check=True, capture_output=True, text=True)
    return done.stdout.strip()
