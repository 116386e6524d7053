"""The runner against small servers that behave badly in one way each; the real engine is in tests/integration."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from runners import embedded
from runners.base import ServerFailure, ServerHandle

CONFIG: dict[str, Any] = {"target": {"path": "unused"}, "runner": {"threads": 1}}

SERVER = """
    import http.server, json, os, sys, time
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({"pid": os.getpid(), "threads": os.environ["OMP_NUM_THREADS"]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        def log_message(self, *_): pass
    def serve():
        print("ready to serve", flush=True)
        try:
            server = http.server.HTTPServer(("127.0.0.1", PORT), Handler)
        except OSError as problem:
            print(problem, flush=True)
            sys.exit(3)  # as the engine does
        server.serve_forever()
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Starts a script as the server; whatever is left running is killed at the end."""
    monkeypatch.setattr(embedded, "_fetch", lambda model, on_status: Path(model))
    monkeypatch.setattr(embedded, "_check_identity", lambda config, identity, pids, log: None)
    monkeypatch.setattr(embedded, "_GRACE_S", 0.5)
    runners: list[embedded.EmbeddedRunner] = []

    def start(script: str, port: int | None = None, timeout_s: float = 20.0, on_status: Any = None) -> Any:
        def command(config: dict[str, Any], chosen: int) -> list[str]:
            code = textwrap.dedent(SERVER).replace("PORT", str(chosen)) + textwrap.dedent(script)
            return [sys.executable, "-c", code]

        monkeypatch.setattr(embedded, "command", command)
        runner = embedded.EmbeddedRunner(port, timeout_s)
        runners.append(runner)
        return runner, runner.start(CONFIG, tmp_path, on_status or (lambda text: None))

    yield start
    for runner in runners:
        runner._end()


def test_a_ready_server_is_ours_and_is_gone_after_the_stop(start: Any, tmp_path: Path) -> None:
    runner, handle = start("serve()")
    assert handle.identity == {"pid": handle.pids[0], "threads": "1"}
    assert (tmp_path / "command.txt").read_text().startswith(sys.executable)
    assert runner.failure(handle) is None
    peak = runner.peak_memory_bytes(handle)
    assert peak is not None and 2**20 < peak < 2**30
    runner.stop(handle)
    assert not psutil.pid_exists(handle.pids[0])
    runner.stop(handle)  # a second stop does nothing


def test_a_fixed_port_that_is_taken_is_refused_before_anything_starts(start: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerFailure, match=rf"runner.port={port} cannot be used") as caught:
            start("serve()", port=port)
    assert caught.value.cause == "port_in_use"


def test_another_program_on_the_port_is_never_taken_for_the_server(start: Any, monkeypatch: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = textwrap.dedent(SERVER).replace("PORT", str(port)) + "serve()"
    other = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        while not embedded._is_ready(port):
            time.sleep(0.05)
        monkeypatch.setattr(embedded, "_free_port", lambda wanted: port)
        with pytest.raises(ServerFailure) as caught:
            start("time.sleep(60)", timeout_s=0.6)
        assert caught.value.cause == "ready_timeout"
        with pytest.raises(ServerFailure) as caught:
            start("serve()", port=port)
        assert caught.value.cause == "port_in_use" and "Address already in use" in caught.value.detail
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize(
    ("script", "cause", "says"),
    [
        ("print('error: unknown argument --dtypo'); sys.exit(2)", "argument", "--dtypo"),
        ("raise ValueError('no such layer')", "argument", "no such layer"),
        ("open('/nowhere/model.safetensors')", "weights", "No such file or directory"),
        ("raise MemoryError()", "memory", "free memory"),
        ("os.kill(os.getpid(), 9)", "killed", "killed (signal 9): by the kernel when memory is short, or by someone"),
        ("os.kill(os.getpid(), 11)", "died", "SIGSEGV"),
        ("print('what I said last'); sys.exit(7)", "died", "what I said last"),
    ],
)
def test_a_failed_start_says_why(start: Any, script: str, cause: str, says: str) -> None:
    with pytest.raises(ServerFailure) as caught:
        start(script)
    assert (caught.value.cause, caught.value.served) == (cause, False)
    assert says in f"{caught.value}\n{caught.value.detail}" and "before it was ready" in str(caught.value)
    assert caught.value.log is not None and caught.value.log.exists()


def test_a_server_that_is_never_ready_is_stopped(start: Any) -> None:
    with pytest.raises(ServerFailure, match=r"not ready within 0\.5 s") as caught:
        start("print('loading', flush=True); time.sleep(60)", timeout_s=0.5)
    assert caught.value.cause == "ready_timeout" and caught.value.detail == "loading"


def test_a_status_callback_that_raises_stops_the_start(start: Any) -> None:
    seen: list[str] = []

    def on_status(text: str) -> None:
        seen.append(text)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start("time.sleep(60)", on_status=on_status)
    assert len(seen) == 3
    assert not psutil.Process().children(recursive=True)


def test_a_server_that_ignores_sigterm_is_killed_with_its_children(start: Any) -> None:
    runner, handle = start(
        """
        import signal, subprocess
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        serve()
        """
    )
    deadline = time.monotonic() + 5
    while len(runner._tree()) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    pids = runner._tree()
    assert len(pids) == 2
    runner.stop(handle)
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)


def test_a_server_that_died_while_it_served_is_told_apart(start: Any) -> None:
    runner, handle = start("serve()")
    os.kill(handle.pids[0], signal.SIGKILL)
    while (failure := runner.failure(handle)) is None:
        time.sleep(0.02)
    assert failure.served and failure.cause == "killed" and "while it served" in str(failure)
    assert runner.peak_memory_bytes(ServerHandle("", handle.log, [], {})) is None


def test_threads_are_those_of_the_config_or_the_physical_cores() -> None:
    assert embedded.threads({"runner": {"threads": 3}}) == 3
    assert embedded.threads({"runner": {"threads": None}}) >= 1


PLAIN: dict[str, Any] = {
    "target": {
        "name": "small", "path": "/models/small", "dtype": "float32", "context_length": 2048, "max_running_requests": 8,
    },
    "drafter": {"name": "none", "algorithm": None, "proposed_tokens": 0, "verify_window": 1},
    "attention": {"backend": "sdpa"},
    "runner": {"kind": "embedded", "threads": 2},
    "seed": 5,
}  # fmt: skip
DSPINE = PLAIN | {
    "drafter": {
        "name": "dspine", "algorithm": "dspine", "block_size": 16, "proposed_tokens": 15, "verify_window": 16,
        "path": "/weights/dspine", "revision": None,
    },
    "verification": {"mode": "dynamic", "confidence_threshold": 0.3},
}  # fmt: skip


def flags(command: list[str]) -> dict[str, str]:
    assert command[1:3] == ["-m", "runners.engine"]
    return dict(zip(command[3::2], command[4::2], strict=True))


def test_the_command_holds_what_the_arm_uses_and_nothing_else() -> None:
    plain = flags(embedded.command(PLAIN, 1234))
    assert plain["--drafter"] == "none" and plain["--port"] == "1234" and plain["--threads"] == "2"
    assert not {"--block-size", "--drafter-path", "--verification-mode", "--ngram-min"} & set(plain)
    dspine = flags(embedded.command(DSPINE, 1))
    assert dspine["--drafter"] == "dspine" and dspine["--block-size"] == "16"
    assert (dspine["--verification-mode"], dspine["--confidence-threshold"]) == ("dynamic", "0.3")
    differ = {flag for flag in dspine if dspine[flag] != plain.get(flag)}
    assert differ == {
        "--port", "--drafter", "--drafter-path", "--block-size", "--verification-mode", "--confidence-threshold",
    }  # fmt: skip


def identity(**changes: Any) -> dict[str, Any]:
    return {
        "drafter": "none", "speculative_num_draft_tokens": None, "drafter_weights_sha256": None,
        "verification_mode": "static", "dtype": "float32", "context_length": 2048, "max_running_requests": 8,
        "attention_backend": "sdpa", "threads": 2, "random_seed": 5, "model_path": "/models/small", "pid": 77,
    } | changes  # fmt: skip


def test_the_server_that_was_asked_for_passes(tmp_path: Path) -> None:
    embedded._check_identity(PLAIN, identity(), [76, 77], tmp_path)
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    config = DSPINE | {"drafter": DSPINE["drafter"] | {"path": str(folder)}}
    good = identity(
        drafter="dspine", speculative_num_draft_tokens=16, verification_mode="dynamic",
        drafter_weights_sha256=hashlib.sha256(b"weights").hexdigest(),
    )  # fmt: skip
    embedded._check_identity(config, good, [77], tmp_path)
    (folder / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(ServerFailure, match="drafter_weights_sha256: asked"):
        embedded._check_identity(config, good, [77], tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"drafter": "ngram"}, {"speculative_num_draft_tokens": 8}, {"dtype": "bfloat16"}, {"threads": 1}, {"pid": 78}],
)
def test_another_server_is_refused_by_what_differs(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ServerFailure, match=f"{next(iter(change))}: ") as caught:
        embedded._check_identity(PLAIN, identity(**change), [77], tmp_path)
    assert caught.value.cause == "identity"


def test_the_lines_of_the_server_are_no_status(start: Any) -> None:
    told: list[str] = []
    with pytest.raises(ServerFailure):
        start("print('Load weight begin. /a/folder', flush=True); time.sleep(1)", on_status=told.append)
    assert set(told) == {"starting the server"} and len(told) > 1
