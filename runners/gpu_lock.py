"""So that two orchestrators of this machine never serve on one GPU unawares: a locked file per GPU.

The lock is the operating system's (flock): it ends with the process, however that ends, and leaves nothing to clean up.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.planning import hardware
from orchestrator.planning.gpu_choice import position
from runners.base import Runner, ServerFailure, ServerHandle


def identifiers(chosen: Sequence[int | str], gpus: hardware.Gpus) -> list[str]:
    """What a GPU is called by all who may want it: its UUID, else its index."""
    names = []
    for one in chosen:
        index = position(one, gpus)
        names.append(gpus.uuids[index] if index is not None and index < len(gpus.uuids) else str(one))
    return names


class GpuFiles:
    """The lock of some GPUs, by their identifiers; none is held if one cannot be had."""

    def __init__(self, gpus: Sequence[str], folder: Path | None = None) -> None:
        self._gpus = gpus
        self._folder = folder or Path(tempfile.gettempdir())
        self._held: list[int] = []

    def take(self) -> None:
        """Raises ServerFailure (``gpu_busy``), which names who has one."""
        try:
            for gpu in self._gpus:
                self._held.append(self._take(gpu))
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)
        self._held = []

    def _take(self, gpu: str) -> int:
        file = self._folder / f"spec-orchestrator-gpu-{gpu}.lock"
        descriptor = _opened(file)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with os.fdopen(descriptor, "rb") as held:
                who = held.read().decode(errors="replace").strip()
            raise ServerFailure(
                "gpu_busy",
                f"GPU {gpu} of this machine is in use by another orchestrator ({who or 'unknown'}): wait until it has "
                "ended, or choose another GPU (node.gpus)",
            ) from None
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()}, user id {os.getuid()}, in {Path.cwd()}\n".encode())
        return descriptor


def _opened(file: Path) -> int:
    """Of another user's file, in a folder for all, the lock can be had by who may read it."""
    try:
        return os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    except PermissionError:
        return os.open(file, os.O_RDONLY)


class LockedRunner:
    """A runner whose servers are alone on their GPUs of this machine while they run."""

    def __init__(self, runner: Runner, gpus: Sequence[str]) -> None:
        self._runner = runner
        self._lock = GpuFiles(gpus)

    def start(self, config: dict[str, Any], directory: Path, on_status: Callable[[str], None]) -> ServerHandle:
        self._lock.take()
        try:
            return self._runner.start(config, directory, on_status)
        except BaseException:
            self._lock.release()
            raise

    def stop(self, handle: ServerHandle) -> None:
        try:
            self._runner.stop(handle)
        finally:
            self._lock.release()

    def failure(self, handle: ServerHandle) -> ServerFailure | None:
        return self._runner.failure(handle)

    def peak_memory_bytes(self, handle: ServerHandle) -> int | None:
        return self._runner.peak_memory_bytes(handle)
