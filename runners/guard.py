"""Ends a server whose orchestrator died, however it died.

A shell in a session of its own (Ctrl-C at the terminal does not reach it) reads from a pipe of which only the
orchestrator holds the other end; that closes with the orchestrator.
"""

from __future__ import annotations

import subprocess

_SCRIPT = 'read -r _; kill -s KILL -- "-$1"'


class Guard:
    """Watches over a process group until it is closed."""

    def __init__(self, group: int) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "guard-of-a-server", str(group)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def close(self) -> None:
        """The group is gone, and its number may be another's from now on."""
        self._shell.kill()
        self._shell.wait()
        if self._shell.stdin is not None:
            self._shell.stdin.close()
