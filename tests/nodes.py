"""Machines with a Docker engine each, on this one: a network namespace with its own engine (a socket, and TCP with TLS)
and sshd. They share this machine's files, and have no network but the one between them and here."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import docker
import psutil
import trustme

from tests.docker_engine import container_names, remove_containers, remove_groups, unmount_below, wait_for

_PACKAGES = ("docker.io", "iptables", "iproute2", "openssh-server", "openssh-client")
_PROGRAMS = ("dockerd", "iptables", "ip", "sshd", "ssh", "nsenter")
_NETWORK = "198.51.100"
_END_S = 20
_SSHD = """Port 22
ListenAddress {address}
HostKey {folder}/hostkey
PidFile {folder}/sshd.pid
AuthorizedKeysFile {keys}
StrictModes no
PasswordAuthentication no
UsePAM no
PermitRootLogin prohibit-password
"""
SLOW_S = 0.25
"""Each way, to the first node by the name ``slow-node``."""
_SSH = """Host slow-node
  HostName {network}.11
  ProxyCommand {python} {slow} %h %p {seconds}
Host {network}.* slow-node
  User root
  IdentityFile {folder}/id
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
"""


class Node:
    """One of them; ``address`` is its IP address, ``socket`` its engine's."""

    def __init__(self, number: int, folder: Path, name: str, keys: Path, bridge: str) -> None:
        self.number = number
        self.folder = folder
        self.address = f"{_NETWORK}.{10 + number}"
        self.url = f"tcp://{self.address}:2376"
        self.socket = folder / "docker.sock"
        self._keys = keys
        self._name = f"{name}-{number}"
        self._bridge = bridge
        self._engine: subprocess.Popen[bytes] | None = None
        self._sshd: subprocess.Popen[bytes] | None = None
        folder.mkdir()

    def start(self, authority: trustme.CA) -> None:
        """Namespace, engine, sshd."""
        name, address = self._name, self.address
        _ip("netns", "add", name)
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", name, "master", self._bridge, "up")
        _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", name, "link", "set", device, "up")
        _ip("-n", name, "route", "add", "default", "via", f"{_NETWORK}.1")
        certificate = authority.issue_cert(address)
        certificate.private_key_pem.write_to_path(self.folder / "key.pem")
        chain = b"".join(part.bytes() for part in certificate.cert_chain_pems)
        (self.folder / "cert.pem").write_bytes(chain)
        authority.cert_pem.write_to_path(self.folder / "ca.pem")
        self._engine = self._inside(
            "dockerd", "--host", f"unix://{self.socket}", "--host", self.url, "--tlsverify",
            "--tlscacert", f"{self.folder}/ca.pem", "--tlscert", f"{self.folder}/cert.pem",
            "--tlskey", f"{self.folder}/key.pem", "--data-root", f"{self.folder}/data",
            "--exec-root", f"{self.folder}/exec", "--pidfile", f"{self.folder}/dockerd.pid",
            "--bip", f"172.30.{self.number}.1/24", "--cgroup-parent", f"/{name}", "--shutdown-timeout", "3",
        )  # fmt: skip
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{self.folder}/hostkey"], check=True)
        config = self.folder / "sshd_config"
        config.write_text(_SSHD.format(address=address, folder=self.folder, keys=self._keys))
        Path("/run/sshd").mkdir(exist_ok=True)
        self._sshd = self._inside(str(shutil.which("sshd", path="/usr/sbin:/usr/bin")), "-D", "-f", str(config))

    def wait(self) -> None:
        """Until the engine answers."""
        assert self._engine is not None
        wait_for(self._engine, self.client, self.log)

    @property
    def host_key(self) -> str:
        """Its line of a known_hosts file."""
        return f"{self.address} {' '.join((self.folder / 'hostkey.pub').read_text().split()[:2])}\n"

    def client(self) -> Any:
        """By its socket, which no cut reaches."""
        return docker.DockerClient(base_url=f"unix://{self.socket}", timeout=60)

    def containers(self) -> list[str]:
        """Names of all containers, ended ones included."""
        return container_names(self.client())

    def cut(self) -> None:
        """Take its network away."""
        _ip("link", "set", self._name, "down")

    def heal(self) -> None:
        _ip("link", "set", self._name, "up")

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-3000:]

    def close(self) -> None:
        with suppress(docker.errors.DockerException, OSError):
            remove_containers(self.client())
        for process in (self._sshd, self._engine):
            if process is not None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)
                process.kill()
                process.wait()
        listed = subprocess.run(["ip", "netns", "pids", self._name], capture_output=True, text=True, check=False).stdout
        left = []
        for pid in map(int, listed.split()):  # what was logged in, and what a dead engine left
            with suppress(psutil.Error):
                left.append(psutil.Process(pid))
                left[-1].send_signal(signal.SIGKILL)
        psutil.wait_procs(left, timeout=_END_S)
        for words in (("link", "delete", self._name), ("netns", "delete", self._name)):
            subprocess.run(["ip", *words], capture_output=True, check=False)
        unmount_below(self.folder)
        remove_groups(self._name)

    def _inside(self, *words: str) -> subprocess.Popen[bytes]:
        # Not ``ip netns exec``, which mounts /sys anew: an engine would not see its control groups.
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self._name}", *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip


class Nodes:
    """So many nodes; a context manager, and closed nothing of them is left.

    ``path``: of a folder to put before PATH: its ssh knows the nodes' keys. ``certs``: a client's certificates.
    """

    def __init__(self, count: int) -> None:
        _install()
        name = f"sn{secrets.token_hex(2)}"
        self.folder = Path(tempfile.mkdtemp(prefix="spec-nodes-", dir="/tmp"))  # sockets' paths are short
        self.path, self.certs = self.folder / "path", self.folder / "certs"
        self._bridge = f"{name}-br"
        keys = self.folder / "id.pub"
        self.nodes = [
            Node(number + 1, self.folder / str(number + 1), name, keys, self._bridge) for number in range(count)
        ]
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def _start(self) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("address", "add", f"{_NETWORK}.1/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        authority = trustme.CA()
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{self.folder}/id"], check=True)
        for node in self.nodes:
            node.start(authority)
        self.known_hosts.write_text("".join(node.host_key for node in self.nodes))
        self.certs.mkdir()
        client = authority.issue_cert("orchestrator@client.test")
        authority.cert_pem.write_to_path(self.certs / "ca.pem")
        client.private_key_pem.write_to_path(self.certs / "key.pem")
        (self.certs / "cert.pem").write_bytes(b"".join(part.bytes() for part in client.cert_chain_pems))
        self._write_ssh()
        for node in self.nodes:
            node.wait()

    def _write_ssh(self) -> None:
        """OpenSSH takes the user's folder from the password file, so no variable leads it to another configuration."""
        self.path.mkdir()
        config, program = self.folder / "ssh_config", self.path / "ssh"
        slow = Path(__file__).with_name("slow_way.py")
        words = {"python": sys.executable, "slow": slow, "seconds": SLOW_S}
        config.write_text(_SSH.format(network=_NETWORK, folder=self.folder, **words))
        program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh", path="/usr/bin:/bin")} -F {config} "$@"\n')
        program.chmod(0o755)

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        subprocess.run(["ip", "link", "delete", self._bridge], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _install() -> None:
    """Debian's packages where they are not there."""
    places = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    if all(shutil.which(program, path=places) for program in _PROGRAMS):
        return
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=120"]
    subprocess.run([*apt, "update", "-qq"], check=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([*apt, "install", "-y", "-qq", "--no-install-recommends", *_PACKAGES], check=True, env=environment)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
