"""Debian's PostgreSQL, a cluster of its own for the time of a test: on loopback, in a temporary folder, by password."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2

_INSTALLED = Path("/usr/lib/postgresql")


@dataclass(frozen=True)
class Cluster:
    port: int
    user: str
    password: str

    def query(self, database: str, text: str) -> list[tuple[Any, ...]]:
        """Rows of a statement, [] where it gives none."""
        connection = psycopg2.connect(
            host="127.0.0.1", port=self.port, user=self.user, password=self.password, dbname=database
        )
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(text)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()


@contextmanager
def cluster(user: str) -> Iterator[Cluster]:
    """A running cluster with one superuser; stopped and removed on the way out."""
    found = sorted(_INSTALLED.glob("*/bin"), key=lambda folder: int(folder.parent.name))
    assert found, "Debian's package postgresql is not installed (.ci/common.sh installs it)"
    place = Path(tempfile.mkdtemp(prefix="orchestrator-postgres-"))
    owner = pwd.getpwnam("postgres") if os.getuid() == 0 else None  # it refuses to run as root
    identity: dict[str, Any] = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []} if owner else {}
    try:
        made = Cluster(_free_port(), user, secrets.token_hex(16))
        (place / "password").write_text(made.password)
        if owner:
            for path in (place, place / "password"):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        data = place / "data"
        options = [f"--pgdata={data}", f"--username={user}", "--auth=scram-sha-256", f"--pwfile={place / 'password'}"]
        subprocess.run(
            [found[-1] / "initdb", "--no-sync", *options], cwd=place, check=True, capture_output=True, **identity
        )
        settings = {
            "listen_addresses": "127.0.0.1", "port": made.port, "unix_socket_directories": str(place), "fsync": "off",
        }  # fmt: skip
        given = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (place / "log").open("w") as log:
            server = subprocess.Popen(
                [found[-1] / "postgres", "-D", data, *given], cwd=place, stdout=log, stderr=log, **identity
            )
        try:
            _wait(server, made, place / "log")
            yield made
        finally:
            server.send_signal(signal.SIGINT)  # ends its connections at once
            server.wait(timeout=60)
    finally:
        shutil.rmtree(place)


def _wait(server: subprocess.Popen[bytes], made: Cluster, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            made.query("postgres", "select 1")
            return
        except psycopg2.OperationalError:
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
