"""A small server for tests of containers: a real process in a real container that is ready at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from runners.base import Ask, Launch, ServerFailure
from runners.docker.runner import DockerRunner
from runners.starting import answers, get_json, tail
from tests import base_image

_SERVER = """
import http.server, json, os
MODEL = "/usr/local/share/model"
os.makedirs(MODEL)
os.symlink("blob", MODEL + "/tokenizer_config.json")  # as in Hugging Face's cache
open(MODEL + "/blob", "w").write(json.dumps({"chat_template": "x"}))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/grow":  # until the kernel ends it
            kept = []
            while True: kept.append(bytearray(b"x" * 2**20))
        if self.path == "/end": os._exit(5)
        if self.path == "/say": print("said", flush=True)
        answer = json.dumps({"tokenizer_path": MODEL, "env": dict(os.environ), "pid": os.getpid()}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(answer))); self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *args): pass
print("ready", flush=True)
http.server.ThreadingHTTPServer((HOST, PORT), Handler).serve_forever()
"""


class SmallServer:
    """A ``Software`` (runners/base.py). ``program``: what it is entered with; ``first``: Python that it runs first."""

    def __init__(self, program: str = "python", first: str = "") -> None:
        self.program = program
        self.first = first
        self.asked = ""

    def launch(self, host: str, port: int, ask: Ask) -> Launch:
        self.asked = ask(["python", "--version"])
        values = f"HOST, PORT = {host!r}, {port}\n"
        return Launch([self.program, "-c", self.first + values + _SERVER], {"MARK": "m", "HF_TOKEN": "hidden"})

    def feed(self, lines: Iterable[str]) -> str:
        return ""

    def ready(self, url: str) -> bool:
        return answers(url)

    def identify(self, url: str, pids: Sequence[int] | None) -> dict[str, Any]:
        return get_json(f"{url}/server_info")

    def failure(self, code: int, log: Path, served: bool) -> ServerFailure:
        cause = "killed" if code == -signal.SIGKILL else "died"
        return ServerFailure(cause, f"the server ended ({code})", log, served, tail(log))


def config(**runner: Any) -> dict[str, Any]:
    """A server config with all that the runner itself reads."""
    chosen = {
        "image": base_image.NAME, "network": "bridge", "ipc_host": False, "shm_size": None, "ulimits": {}, "mounts": {},
    }  # fmt: skip
    return {
        "engine": "sglang",
        "target": {"path": "none", "revision": None, "tp_size": 1},
        "drafter": {},
        "runner": {"kind": "docker", **chosen, **runner},
        "node": {"kind": "local", "gpus": []},
    }


def make_runner(place: Path, software: SmallServer | None = None, **options: Any) -> DockerRunner:
    """A runner of the small server; its caches lie in ``place``."""
    chosen: dict[str, Any] = {
        "port": None, "pull": "never", "hf_cache": f"{place}/hf", "kernel_cache": f"{place}/kernels", "offline": True,
        "ready_timeout_s": 30.0,
    }  # fmt: skip
    made = software or SmallServer()

    def prepare(asked: dict[str, Any], on_status: Callable[[str], None]) -> tuple[dict[str, Any], SmallServer]:
        return asked, made

    return DockerRunner(prepare, "plain", {"kind": "local"}, chosen | options)
