"""Starts a server as a process of this machine, on loopback, and stops it."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from orchestrator.config.masking import mask_command
from runners.base import Prepare, ServerFailure, ServerHandle, Software
from runners.guard import Guard
from runners.hugging_face import found, looking
from runners.starting import LOOPBACK, free_port, wait_until_ready

_GRACE_S = 10.0
_ASK_S = 120.0
_PORT_ATTEMPTS = 3


class ProcessRunner:
    """One server at a time, in a process group of its own: Ctrl-C at the terminal does not reach it."""

    def __init__(
        self,
        prepare: Prepare,
        port: int | None,
        ready_timeout_s: float,
        python: Sequence[str] = (sys.executable,),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """``python``: the interpreter that has the software. ``env``: variables of this place, beside its own."""
        self._prepare = prepare
        self._python = python
        self._env = env or {}
        self._port = port
        self._ready_timeout_s = ready_timeout_s
        self._environment: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None
        self._software: Software | None = None

    def start(self, config: dict[str, Any], directory: Path, on_status: Callable[[str], None]) -> ServerHandle:
        """Start and wait until the server is ready.

        ``on_status`` is called several times a second with what the server is doing; what it raises stops the start.
        Raises ServerFailure (causes: port_in_use, ready_timeout, identity, and those of its software).
        """
        for attempt in range(_PORT_ATTEMPTS):
            local, self._software = self._prepare(config, on_status)
            port = free_port(self._port)
            try:
                return self._start(local, self._software, port, directory / "server.log", on_status)
            except ServerFailure as failure:
                # Between finding a free port and listening on it another program may have taken it.
                if failure.cause != "port_in_use" or self._port is not None or attempt == _PORT_ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def stop(self, handle: ServerHandle) -> None:
        self._end()

    def failure(self, handle: ServerHandle) -> ServerFailure | None:
        return self._ended(handle.log, served=True)

    def peak_memory_bytes(self, handle: ServerHandle) -> int | None:
        """Sum of the processes' peak resident sizes (VmHWM), bytes."""
        peaks = [peak for pid in self._tree() if (peak := _peak_bytes(pid)) is not None]
        return sum(peaks) if peaks else None

    def _start(
        self, config: dict[str, Any], software: Software, port: int, log: Path, on_status: Callable[[str], None]
    ) -> ServerHandle:
        self._environment = {**os.environ, **self._env, **config.get("env", {})}
        launch = software.launch(LOOPBACK, port, self._ask)
        # What it takes from variables is part of how it was started: env(1) makes one command of both.
        variables = sorted({**self._env, **launch.env}.items())
        command = mask_command(["env", *(f"{name}={value}" for name, value in variables), *launch.words])
        log.with_name("command.txt").write_text(shlex.join(command) + "\n")
        with log.open("wb") as output:
            try:
                self._process = subprocess.Popen(
                    launch.words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self._environment | launch.env,
                    start_new_session=True,
                )
            except OSError as problem:
                told = f"{launch.words[0]} cannot be run: {problem.strerror}"
                raise ServerFailure("argument", told, log) from problem
        url = f"http://{LOOPBACK}:{port}"
        try:
            self._guard = Guard(self._process.pid)
            wait_until_ready(
                software,
                url,
                log,
                ended=lambda: self._ended(log, served=False),
                on_status=on_status,
                timeout_s=self._ready_timeout_s,
                listens=lambda: self._listens(port),
            )
            try:
                identity = software.identify(url, self._tree())
            except ServerFailure as failure:
                failure.log = log
                raise
            tokenizer = self._tokenizer(identity["tokenizer_path"], config["target"].get("revision"), log)
            return ServerHandle(url, log, command, identity, tokenizer, tuple(self._tree()))
        except BaseException:
            self._end()
            raise

    def _tokenizer(self, path: str, revision: str | None, log: Path) -> Path:
        """Its folder: as the server names it, or that of the Hugging Face id that it names."""
        if Path(path).is_dir():
            return Path(path)
        try:
            return Path(found(self._ask(looking(self._python, path, revision, online=False))).folder)
        except ServerFailure as failure:
            raise ServerFailure(
                "tokenizer", f"the tokenizer of {path} is not in the cache: {failure}", log
            ) from failure

    def _ended(self, log: Path, served: bool) -> ServerFailure | None:
        if self._process is None or self._software is None or self._process.poll() is None:
            return None
        return self._software.failure(self._process.returncode, log, served)

    def _listens(self, port: int) -> bool:
        """Whether the process on the port is ours: whatever else answers there is not the server that was started."""
        for pid in self._tree():
            try:
                connections = psutil.Process(pid).net_connections("tcp")
            except psutil.Error:
                continue
            if any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections):
                return True
        return False

    def _tree(self) -> list[int]:
        """The server's process and those it started."""
        if self._process is None or self._process.poll() is not None:
            return []
        return [self._process.pid, *(child.pid for child in _children(self._process.pid))]

    def _ask(self, words: Sequence[str]) -> str:
        """What a short command prints, in the environment of the server. Raises ServerFailure."""
        return _answer(tuple(words), tuple(sorted(self._environment.items())))

    def _end(self) -> None:
        """SIGTERM, some seconds of grace, SIGKILL to the whole group and to what left it."""
        if self._process is None:
            return
        children = _children(self._process.pid)
        process, self._process = self._process, None
        _signal_group(process.pid, signal.SIGTERM)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
        finally:
            _signal_group(process.pid, signal.SIGKILL)  # what the process itself left behind, too
            process.wait()
            _, elsewhere = psutil.wait_procs(children, timeout=2)
            for child in elsewhere:  # in a session of its own, or hung in the kernel
                with contextlib.suppress(psutil.Error):
                    child.kill()
            psutil.wait_procs(elsewhere, timeout=2)
            if self._guard is not None:
                self._guard.close()
                self._guard = None


@cache  # SGLang takes many seconds to tell its help
def _answer(words: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_ASK_S, check=True, env=dict(env))
    except subprocess.CalledProcessError as problem:
        raise ServerFailure("argument", f"{shlex.join(words)} failed: {problem.stderr.strip()[-500:]}") from problem
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise ServerFailure("argument", f"{shlex.join(words)} cannot be run: {problem}") from problem
    return done.stdout


def _children(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def _signal_group(group: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signum)


def _peak_bytes(pid: int) -> int | None:
    try:
        return peak_bytes(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return None


def peak_bytes(status: str) -> int | None:
    """Peak resident size by a process's ``/proc/<pid>/status``, bytes."""
    peak = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(peak[1]) * 1024 if peak else None
