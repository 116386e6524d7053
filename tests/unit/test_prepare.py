"""action=prepare: weights are looked for where the server runs; what is absent and what fits is told."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from orchestrator import cli
from tests import tiny_llama


class NoHub(BaseHTTPRequestHandler):
    """A hub that has nothing, and says so as the real one does."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    server = HTTPServer(("127.0.0.1", 0), NoHub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield
    server.shutdown()
    server.server_close()


def prepare(*overrides: str) -> int:
    process = [f"runner.command=[{sys.executable},-m,sglang.launch_server]", "runner=process", "name=one"]
    return cli.main(["preset=gpu", *process, '+arms.plain=["drafter=none"]', "action=prepare", *overrides])


def test_folders_are_looked_at_and_what_fits_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    target = tiny_llama.write(tmp_path / "target", max_position_embeddings=4096)
    draft = tiny_llama.write(tmp_path / "draft", max_position_embeddings=4096, num_hidden_layers=1)
    code = prepare(
        "target=hf_folder", f"target.path={target}", "target.mem_fraction_static=0.5", "node.expect_gpu=H100",
        "varies=[drafter]",
        f'+arms.draft=["drafter=standalone","+drafter.checkpoints.hf_folder.path={draft}"]',
    )  # fmt: skip
    said = capfd.readouterr().out
    assert code == 0, said
    assert f"target   {target}: 0.00 GiB in {target}" in said and f"drafter  {draft}: 0.00 GiB in {draft}" in said
    assert said.count("memory   H100, by estimate: weights 0.0") == 2 and "of 39.1 GiB; room for about" in said
    assert "GPU-hours)" in said and said.endswith("Every arm can run.\n")
    assert not (tmp_path / "runs").exists()


def test_what_cannot_be_fetched_is_told_arm_by_arm_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], hub: None
) -> None:
    monkeypatch.chdir(tmp_path)
    draft = tiny_llama.write(tmp_path / "draft")
    code = prepare(
        "target=qwen3_8b", "varies=[drafter]", "node.expect_gpu=H100",
        f'+arms.draft=["drafter=eagle3","drafter.checkpoints.qwen3_8b.path={draft}"]',
    )  # fmt: skip
    said, errors = capfd.readouterr()
    assert code == 1 and said.count("MISSING target: Qwen/Qwen3-8B: it cannot be fetched: see the error above") == 2
    assert f"drafter  {draft}: 0.00 GiB" in said and "memory   unknown until the weights are here" in said
    assert errors.count("RepositoryNotFoundError: ") == 1, "it was asked for once, and the error is one line"
    assert "Traceback" not in errors and "hf_secret" not in said + errors
