"""A container engine of the tests' own: Debian's dockerd, its folders, socket and bridge apart from any other's."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import docker
import psutil

_PACKAGES = ("docker.io", "iptables", "iproute2")
_START_S = 60
_END_S = 20


@dataclass(frozen=True)
class NoEngine:
    """Where none is."""

    address: str


class DockerEngine:
    """A running engine; a context manager, and closed nothing of it is left.

    ``flags``: further ones of dockerd. ``first_on_path``: a folder with programs that it finds before others.
    """

    def __init__(self, *flags: str, first_on_path: Path | None = None, folder: Path | None = None) -> None:
        assert os.geteuid() == 0, "an engine of the tests' own takes root"
        install()
        name = secrets.token_hex(3)
        self.folder = folder or Path(tempfile.mkdtemp(prefix="spec-docker-", dir="/tmp"))  # sockets' paths are short
        self.address = f"unix://{self.folder}/docker.sock"
        self._bridge = f"spec{name}"
        self._group = f"spec-{name}"
        self._flags = flags
        self._environment = dict(os.environ)
        if first_on_path is not None:
            self._environment["PATH"] = f"{first_on_path}:{self._environment['PATH']}"
        self._process: subprocess.Popen[bytes] | None = None
        self._make_bridge(name)
        self.start()

    def start(self) -> None:
        """Again after it was ended, too: with the same folders, so with the same containers."""
        self._forget_containerd()
        with (self.folder / "dockerd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "dockerd", "--host", self.address, "--data-root", f"{self.folder}/data",
                    "--exec-root", f"{self.folder}/exec", "--pidfile", f"{self.folder}/pid",
                    # Ports are published by its own proxy: no rule of this machine's firewall is touched.
                    "--iptables=false", "--ip6tables=false", "--ip-masq=false", "--bridge", self._bridge,
                    "--cgroup-parent", f"/{self._group}", "--shutdown-timeout", "3", *self._flags,
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment, start_new_session=True,
            )  # fmt: skip
        wait_for(self._process, self.client, self.log)

    def client(self) -> Any:
        return docker.DockerClient(base_url=self.address, timeout=30)

    def containers(self) -> list[str]:
        """Names of all containers, ended ones included."""
        return container_names(self.client())

    def log(self) -> str:
        return (self.folder / "dockerd.log").read_text(errors="replace")[-3000:]

    def signal(self, signum: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(signum)
        if signum in (signal.SIGKILL, signal.SIGTERM):
            self._process.wait(_END_S)

    def processes(self) -> list[psutil.Process]:
        """All that the engine has started: containerd, its shims, and what runs in containers."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                named = any(str(self.folder) in word for word in process.cmdline())
                inside = f"/{self._group}/" in Path(f"/proc/{process.pid}/cgroup").read_text()
                if (named or inside) and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            with suppress(docker.errors.DockerException, OSError):
                remove_containers(self.client())
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
            self._process.kill()
            self._process.wait()
        left = self.processes()  # of an engine that was killed
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=_END_S)
        subprocess.run(["ip", "link", "delete", self._bridge], capture_output=True, check=False)
        unmount_below(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        remove_groups(self._group)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _forget_containerd(self) -> None:
        """It ends with a killed engine; where nobody buries it, the next engine would wait for an answer of it."""
        file = self.folder / "exec/containerd/containerd.pid"
        with suppress(OSError, psutil.Error):
            if psutil.Process(int(file.read_text())).status() == psutil.STATUS_ZOMBIE:
                file.unlink()

    def _make_bridge(self, name: str) -> None:
        third, fourth = int(name[:2], 16), int(name[2:4], 16) & 0xF0
        for words in (
            ("link", "add", self._bridge, "type", "bridge"),
            ("address", "add", f"10.213.{third}.{fourth + 1}/28", "dev", self._bridge),
            ("link", "set", self._bridge, "up"),
        ):
            subprocess.run(["ip", *words], check=True)


def install() -> None:
    """Debian's engine where none is there."""
    if shutil.which("dockerd") and shutil.which("iptables") and shutil.which("ip"):
        return
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=120"]
    subprocess.run([*apt, "update", "-qq"], check=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([*apt, "install", "-y", "-qq", "--no-install-recommends", *_PACKAGES], check=True, env=environment)


def wait_for(engine: subprocess.Popen[bytes], client: Callable[[], Any], log: Callable[[], str]) -> None:
    """Until an engine answers."""
    deadline = time.monotonic() + _START_S
    while True:
        assert engine.poll() is None and time.monotonic() < deadline, log()
        with suppress(docker.errors.DockerException):
            client().close()
            return
        time.sleep(0.1)


def container_names(client: Any) -> list[str]:
    """Names of all containers, ended ones included; closes the client."""
    with closing(client):
        return [str(one.name) for one in client.containers.list(all=True, ignore_removed=True)]


def remove_containers(client: Any) -> None:
    """All of them; closes the client."""
    with closing(client):
        for container in client.containers.list(all=True, ignore_removed=True):
            with suppress(docker.errors.APIError):
                container.remove(force=True, v=True)


def unmount_below(folder: Path) -> None:
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in reversed([point for point in points if point.startswith(f"{folder}/")]):
        subprocess.run(["umount", "-l", point], capture_output=True, check=False)


def remove_groups(name: str) -> None:
    """The control groups of an engine's containers."""
    for folder in [*Path("/sys/fs/cgroup").glob(f"*/{name}"), Path("/sys/fs/cgroup") / name]:
        for inner in [*folder.glob("*"), folder]:
            with suppress(OSError):
                inner.rmdir()
