"""The process runner against small servers that behave badly in one way each; real ones are in tests/integration."""

from __future__ import annotations

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

from runners import process
from runners.base import Launch, ServerFailure, ServerHandle
from runners.embedded import EmbeddedSoftware
from runners.starting import answers, get_json

CONFIG: dict[str, Any] = {
    "target": {
        "name": "small", "path": "unused", "dtype": "float32", "context_length": 2048, "max_running_requests": 8,
    },
    "drafter": {"algorithm": None},
    "attention": {"backend": "sdpa"},
    "runner": {"threads": 1},
    "seed": 5,
}  # fmt: skip

SERVER = """
    import http.server, json, os, sys, time
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            said = {"pid": os.getpid(), "threads": os.environ["OMP_NUM_THREADS"], "tokenizer_path": "."}
            body = json.dumps(said).encode()
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
    monkeypatch.setattr(process, "_GRACE_S", 0.5)
    runners: list[process.ProcessRunner] = []

    def start(script: str, port: int | None = None, timeout_s: float = 20.0, on_status: Any = None) -> Any:
        class Script(EmbeddedSoftware):
            def launch(self, host: str, port: int, ask: Any) -> Launch:
                code = textwrap.dedent(SERVER).replace("PORT", str(port)) + textwrap.dedent(script)
                return Launch([sys.executable, "-c", code], super().launch(host, port, ask).env)

            def identify(self, url: str, pids: Any) -> dict[str, Any]:
                return get_json(url)

        runner = process.ProcessRunner(lambda config, on_status: (config, Script(config)), port, timeout_s)
        runners.append(runner)
        return runner, runner.start(CONFIG, tmp_path, on_status or (lambda text: None))

    yield start
    for runner in runners:
        runner._end()


def test_a_ready_server_is_ours_and_is_gone_after_the_stop(start: Any, tmp_path: Path) -> None:
    runner, handle = start("serve()")
    assert handle.identity == {"pid": handle.pids[0], "threads": "1", "tokenizer_path": "."}
    assert (
        f"OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false {sys.executable}"
        in (tmp_path / "command.txt").read_text()
    )
    assert runner.failure(handle) is None
    peak = runner.peak_memory_bytes(handle)
    assert peak is not None and 2**20 < peak < 2**30
    runner.stop(handle)
    assert not psutil.pid_exists(handle.pids[0])
    runner.stop(handle)  # a second stop does nothing


def test_a_tokenizer_that_is_not_in_the_cache_ends_the_start(start: Any, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    fetched_by_its_id = """
        tell = json.dumps
        json.dumps = lambda said: tell(said | {"tokenizer_path": "org/model"})
        serve()
    """
    with pytest.raises(ServerFailure, match="tokenizer of org/model is not in the cache") as caught:
        start(fetched_by_its_id)
    assert caught.value.cause == "tokenizer" and not psutil.Process().children()
    model = tmp_path / "hub/models--org--model"
    (model / "snapshots/0123").mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs/main").write_text("0123")
    _, handle = start(fetched_by_its_id)
    assert handle.tokenizer == model / "snapshots/0123"


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
        while not answers(f"http://127.0.0.1:{port}"):
            time.sleep(0.05)
        monkeypatch.setattr(process, "free_port", lambda wanted: port)
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


@pytest.mark.parametrize("own_session", [False, True])
def test_a_server_that_ignores_sigterm_is_killed_with_its_children(start: Any, own_session: bool) -> None:
    runner, handle = start(
        f"""
        import signal, subprocess
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        code = "import time; time.sleep(60)"
        subprocess.Popen([sys.executable, "-c", code], start_new_session={own_session})
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
    assert runner.peak_memory_bytes(ServerHandle("", handle.log, [], {}, tokenizer=handle.tokenizer)) is None


def test_the_lines_of_the_server_are_no_status(start: Any) -> None:
    told: list[str] = []
    with pytest.raises(ServerFailure):
        start("print('Load weight begin. /a/folder', flush=True); time.sleep(1)", on_status=told.append)
    assert set(told) == {"starting the server"} and len(told) > 1
