"""The engine of another machine over one OpenSSH connection, as the user's own ssh configuration makes it.

One master process (``ssh -M``) carries all: the engine's socket and the servers' ports are forwarded by it, commands of
the node share it. Docker's client speaks to a socket on this machine and knows nothing of it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import docker

from runners.base import ServerFailure
from runners.docker.connect import CALL_TIMEOUT_S, Connection, unreachable
from runners.docker.failures import of_engine
from runners.docker.ssh_failures import no_socket, refused
from runners.starting import LOOPBACK, free_port

_CONNECT_S = 10
_OPEN_S = 30.0
"""Longest wait for the master: a jump host, or a slow agent, takes its time after the connection is there."""
_ALIVE_S, _ALIVE_COUNT = 5, 3
"""A node that does not answer for their product, in seconds, is given up."""
_COMMAND_S = 20
_POLL_S = 0.02
_END_S = 5.0
_ENDING_S = 0.5
"""From when its sockets are closed to when a process is seen to have ended."""
_TRIES = 5
_LONGEST_FOLDER = 60
"""Of a socket's path, 107 bytes at most: ssh adds 17 of its own to the name while it makes one."""


class SshConnection(Connection):
    """Opened by the constructor, which raises ServerFailure with what ssh said and what to do about it."""

    remote = True

    def __init__(self, host: str, docker_socket: str) -> None:
        self.address = f"{host} (ssh)"
        self._host = host
        self._docker_socket = docker_socket
        self._folder = Path(tempfile.mkdtemp(prefix="spec-ssh-", dir=_short_folder()))
        self._control = self._folder / "ctl"
        self._socket = self._folder / "docker.sock"
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._forwarded: dict[int, int] = {}
        self._master: subprocess.Popen[bytes] | None = None
        try:
            self._open()
            self.client = self._client()
        except BaseException:
            self.close()
            raise

    def reach(self, port: int) -> str:
        if port not in self._forwarded:
            self._forwarded[port] = self._forward(port)
        return f"http://{LOOPBACK}:{self._forwarded[port]}"

    def words(self, *command: str) -> list[str]:
        return [*self._ssh("-o", "BatchMode=yes", "-T"), "--", self._host, shlex.join(command)]

    def docker_words(self, *command: str) -> list[str]:
        return self.words("docker", "--host", f"unix://{self._docker_socket}", *command)

    def check(self, timeout_s: float = 5.0) -> None:
        """As of any engine; a connection that was cut is opened anew, ports included."""
        if self._was_cut():
            self._reopen()
        try:
            try:
                super().check(timeout_s)
            except ServerFailure:
                if not self._was_cut(_ENDING_S):  # just now
                    raise
                self._reopen()
                super().check(timeout_s)
        except ServerFailure as failure:
            if failure.cause not in ("engine_gone", "engine_hung"):
                raise
            raise unreachable(self._host, failure.__cause__) from failure

    def _was_cut(self, wait_s: float = 0.0) -> bool:
        if self._master is None:
            return True
        try:
            self._master.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _reopen(self) -> None:
        self._open()
        for far, near in self._forwarded.items():
            self._forward(far, near)

    def close(self) -> None:
        if hasattr(self, "client"):
            super().close()
        self._end_master()
        self._said.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ssh(self, *options: str) -> list[str]:
        return ["ssh", "-S", str(self._control), *options]

    def _open(self) -> None:
        """Start the master and wait until it has logged in and listens. Raises ServerFailure."""
        self._end_master()
        self._said.seek(0)
        self._said.truncate()
        options = {
            "BatchMode": "yes",  # nobody is there to answer a question
            "ControlPersist": "no",
            "ExitOnForwardFailure": "yes",
            "StreamLocalBindUnlink": "yes",
            "ConnectTimeout": _CONNECT_S,
            "ServerAliveInterval": _ALIVE_S,
            "ServerAliveCountMax": _ALIVE_COUNT,
        }
        given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        forward = ["-L", f"{self._socket}:{self._docker_socket}"]
        try:
            # ``cat`` ends when this process does, however it does, and the master with it: -N would live on.
            self._master = subprocess.Popen(
                [*self._ssh("-M", "-T", *given, *forward), "--", self._host, "cat >/dev/null"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                start_new_session=True,  # Ctrl-C at the terminal is for the orchestrator
            )
        except OSError as problem:
            raise ServerFailure("ssh", f"OpenSSH's client cannot be run here ({problem}): install it") from problem
        deadline = time.monotonic() + _OPEN_S
        while not (self._control.exists() and self._socket.exists()):
            if self._master.poll() is not None:
                raise refused(self._host, self._text())
            if time.monotonic() > deadline:
                raise refused(self._host, f"{self._text()} no answer within {_OPEN_S:g} s: Connection timed out")
            time.sleep(_POLL_S)

    def _client(self) -> docker.DockerClient:
        try:
            return docker.DockerClient(base_url=f"unix://{self._socket}", timeout=CALL_TIMEOUT_S)
        except Exception as problem:
            failure = of_engine(problem, f"the engine of {self._host} at {self._docker_socket}")
            if (told := self._no_socket()) is not None:
                raise ServerFailure(told.cause, f"{told} ({self._text() or failure})") from problem
            raise failure from problem

    def _no_socket(self) -> ServerFailure | None:
        """Why its engine's socket cannot be used, which ssh itself does not tell; None where that cannot be seen."""
        path = shlex.quote(self._docker_socket)
        script = f"id -un; test -e {path} || echo absent; test -S {path} && test ! -w {path} && echo denied; true"
        with suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run(
                self.words("sh", "-c", script), capture_output=True, text=True, timeout=_COMMAND_S, check=True
            ).stdout.split()
            return no_socket(self._host, self._docker_socket, user=said[0], states=said[1:])
        return None

    def _forward(self, port: int, near: int | None = None) -> int:
        """Port of this machine that leads to a port on the node's loopback; ``near``: the one it was before."""
        said = ""
        for _ in range(_TRIES):
            local = near or free_port()  # between finding and taking it another program may take it
            words = ["-O", "forward", "-L", f"{LOOPBACK}:{local}:{LOOPBACK}:{port}", "--", self._host]
            try:
                done = subprocess.run(
                    self._ssh(*words), capture_output=True, text=True, timeout=_COMMAND_S, check=False
                )
            except subprocess.TimeoutExpired:
                said = "the connection does not answer"
                break
            if done.returncode == 0:
                return local
            said = done.stderr.strip()
        raise ServerFailure("ssh_forward", f"{self._host}: ssh does not forward its port {port}: {said}")

    def _text(self) -> str:
        self._said.seek(0)
        return " ".join(self._said.read().decode(errors="replace").split())

    def _end_master(self) -> None:
        master, self._master = self._master, None
        if master is None:
            return
        assert master.stdin is not None
        with suppress(OSError):
            master.stdin.close()
        master.terminate()
        try:
            master.wait(_END_S)
        except subprocess.TimeoutExpired:
            master.kill()
            master.wait()
        for path in (self._control, self._socket):
            path.unlink(missing_ok=True)


def _short_folder() -> str:
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= _LONGEST_FOLDER else "/tmp"
