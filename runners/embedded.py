"""Starts the embedded engine as a process on loopback, proves that it is the one asked for, and stops it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from orchestrator.planning import hardware
from runners.base import ServerFailure, ServerHandle

HOST = "127.0.0.1"
_POLL_S = 0.1
_GRACE_S = 10.0
_TAIL_LINES = 12
_PORT_ATTEMPTS = 3

_CAUSES: tuple[tuple[str, str, str], ...] = (
    # (cause, pattern in the log, what to do); the first that matches counts
    ("memory", r"MemoryError|can't allocate memory|out of memory", "free memory or take a smaller target"),
    ("weights", r"ModelUnavailable|No such file or directory|safetensors", "check the path it names"),
    ("argument", r"ValueError", "it refuses a setting"),
)
_EXIT_CAUSES = {
    # Exit codes of the engine (python -m runners.engine --help).
    2: ("argument", "it refuses a setting"),
    3: ("port_in_use", "another program took the port: leave runner.port=null"),
}


def threads(config: dict[str, Any]) -> int:
    """Threads of the engine: what the config says, else the physical cores of this machine."""
    return int(config["runner"]["threads"] or hardware.cpu().cores)


def command(config: dict[str, Any], port: int) -> list[str]:
    """Command line of the server for a server config (docs/reference/server_config.md); pure."""
    target, drafter, verification = config["target"], config["drafter"], config.get("verification", {})
    flags: dict[str, Any] = {
        "--model-path": target["path"],
        "--served-model-name": target["name"],
        "--host": HOST,
        "--port": port,
        "--dtype": target["dtype"],
        "--context-length": target["context_length"],
        "--max-running-requests": target["max_running_requests"],
        "--attention-backend": config["attention"]["backend"],
        "--threads": threads(config),
        "--random-seed": config["seed"],
        "--drafter": drafter["algorithm"] or "none",
        "--drafter-path": drafter.get("path"),
        "--block-size": drafter.get("block_size"),
        "--ngram-min": drafter.get("ngram_min"),
        "--ngram-max": drafter.get("ngram_max"),
        "--verification-mode": verification.get("mode"),
        "--confidence-threshold": verification.get("confidence_threshold"),
        "--accept-threshold-single": verification.get("accept_threshold_single"),
    }
    given = [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
    return [sys.executable, "-m", "runners.engine", *given]


class EmbeddedRunner:
    """One server process at a time, in a process group of its own: Ctrl-C at the terminal does not reach it."""

    def __init__(self, port: int | None, ready_timeout_s: float) -> None:
        self._port = port
        self._ready_timeout_s = ready_timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, config: dict[str, Any], directory: Path, on_status: Callable[[str], None]) -> ServerHandle:
        """Start and wait until the server is ready.

        ``on_status`` is called several times a second with what the server is doing; what it raises stops the start.
        Raises ServerFailure (causes: model_fetch, port_in_use, weights, memory, argument, ready_timeout, identity,
        died).
        """
        folder = _fetch(config["target"]["path"], on_status)
        config = {**config, "target": {**config["target"], "path": str(folder)}}
        for attempt in range(_PORT_ATTEMPTS):
            port = _free_port(self._port)
            try:
                return self._start(config, port, directory / "server.log", on_status)
            except ServerFailure as failure:
                # Between finding a free port and listening on it another program may have taken it.
                if failure.cause != "port_in_use" or self._port is not None or attempt == _PORT_ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def stop(self, handle: ServerHandle) -> None:
        self._end()

    def failure(self, handle: ServerHandle) -> ServerFailure | None:
        if self._process is None or self._process.poll() is None:
            return None
        return _diagnose(self._process.returncode, handle.log, served=True)

    def peak_memory_bytes(self, handle: ServerHandle) -> int | None:
        """Sum of the processes' peak resident sizes (VmHWM), bytes."""
        peaks = [peak for pid in self._tree() if (peak := _peak_bytes(pid)) is not None]
        return sum(peaks) if peaks else None

    def _start(self, config: dict[str, Any], port: int, log: Path, on_status: Callable[[str], None]) -> ServerHandle:
        # The engine ends by itself when this process is gone, however it went.
        arguments = [*command(config, port), "--parent-pid", str(os.getpid())]
        count = str(threads(config))
        environment = os.environ | {
            "OMP_NUM_THREADS": count,
            "MKL_NUM_THREADS": count,
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        log.with_name("command.txt").write_text(shlex.join(arguments) + "\n")
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        try:
            self._wait_until_ready(port, log, on_status)
            identity = _get(port, "/server_info")
            _check_identity(config, identity, self._tree(), log)
            return ServerHandle(f"http://{HOST}:{port}", log, arguments, identity, tuple(self._tree()))
        except BaseException:
            self._end()
            raise

    def _wait_until_ready(self, port: int, log: Path, on_status: Callable[[str], None]) -> None:
        assert self._process is not None
        deadline = time.monotonic() + self._ready_timeout_s
        while True:
            on_status("starting the server")  # its log is for a failure; its lines would say nothing here
            if self._process.poll() is not None:
                raise _diagnose(self._process.returncode, log, served=False)
            if self._listens(port) and _is_ready(port):
                return
            if time.monotonic() > deadline:
                raise ServerFailure(
                    "ready_timeout",
                    f"the server was not ready within {self._ready_timeout_s:g} s (runner.ready_timeout_s)",
                    log,
                    detail=_tail(log),
                )
            time.sleep(_POLL_S)

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

    def _end(self) -> None:
        """SIGTERM, some seconds of grace, SIGKILL to the whole group."""
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
            psutil.wait_procs(children, timeout=2)


def _fetch(model: str, on_status: Callable[[str], None]) -> Path:
    """Bring the target here before the server starts: its time does not count as the server's, and it shows how far
    it is."""
    from runners.engine.fetch import ModelUnavailable, ensure_model

    def report(text: str, share: float | None) -> None:
        on_status(text if share is None else f"{text} {share:.0%}")

    try:
        return ensure_model(model, report)
    except ModelUnavailable as problem:
        raise ServerFailure("model_fetch", str(problem)) from problem


def _check_identity(config: dict[str, Any], identity: dict[str, Any], pids: list[int], log: Path) -> None:
    """Compare what the server says of itself with what was asked for. Raises ServerFailure (``identity``)."""
    target, drafter = config["target"], config["drafter"]
    speculates = drafter["algorithm"] is not None
    asked = {
        "drafter": drafter["algorithm"] or "none",
        "speculative_num_draft_tokens": drafter["verify_window"] if speculates else None,
        "drafter_weights_sha256": _weights_sha256(drafter.get("path")),
        "verification_mode": config["verification"]["mode"] if speculates else "static",
        "dtype": target["dtype"],
        "context_length": target["context_length"],
        "max_running_requests": target["max_running_requests"],
        "attention_backend": config["attention"]["backend"],
        "threads": threads(config),
        "random_seed": config["seed"],
        "model_path": target["path"],
    }
    wrong = [
        f"{key}: asked {value!r}, serves {identity.get(key)!r}"
        for key, value in asked.items()
        if identity.get(key) != value
    ]
    if identity.get("pid") not in pids:
        wrong.append(f"pid: started {pids}, answers {identity.get('pid')!r}")
    if wrong:
        raise ServerFailure("identity", "the server is not the one that was asked for: " + "; ".join(wrong), log)


def _weights_sha256(folder: str | None) -> str | None:
    """sha256 of a drafter's one weights file; None for a drafter without weights."""
    if folder is None:
        return None
    (file,) = Path(folder).glob("*.safetensors")
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _children(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def _signal_group(group: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signum)


def _free_port(wanted: int | None) -> int:
    """``wanted`` if nothing listens there (ServerFailure otherwise), else any free port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted or 0))
        except OSError as problem:
            raise ServerFailure(
                "port_in_use",
                f"runner.port={wanted} cannot be used ({problem.strerror}): stop what listens there, choose another, "
                "or leave runner.port=null for any free port",
            ) from problem
        return int(probe.getsockname()[1])


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _get(port: int, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=30) as answer:
        return dict(json.load(answer))


def _peak_bytes(pid: int) -> int | None:
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _lines(log: Path) -> list[str]:
    return [line for line in log.read_text(errors="replace").replace("\r", "\n").splitlines() if line.strip()]


def _tail(log: Path) -> str:
    return "\n".join(_lines(log)[-_TAIL_LINES:])


def _diagnose(code: int, log: Path, served: bool) -> ServerFailure:
    """Why the process ended, from its exit code and from what it said last."""
    lines = _lines(log)[-60:]
    text = "\n".join(lines)
    cause, advice = "died", "see its log"
    if code == -signal.SIGKILL:
        # What the kernel does when memory is short cannot be told from what anyone may do by hand.
        cause, advice = "killed", "it was killed (signal 9): by the kernel when memory is short, or by someone"
    elif code in _EXIT_CAUSES:
        cause, advice = _EXIT_CAUSES[code]
    else:
        for name, pattern, what in _CAUSES:
            if re.search(pattern, text, re.IGNORECASE):
                cause, advice = name, what
                break
    ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    when = "while it served" if served else "before it was ready"
    said = next((f": {line.strip()}" for line in reversed(lines) if "error" in line.lower()), "")
    message = f"the server ended {when} ({ended}{said}); {advice}"
    return ServerFailure(cause, message, log, served, _tail(log))
