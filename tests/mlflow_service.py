"""MLflow's server as containers/mlflow/compose.yaml starts it, at addresses of this machine."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.postgres import Cluster

COMPOSE = Path(__file__).resolve().parents[1] / "containers/mlflow/compose.yaml"
_PASSWORD = "${MLFLOW_DB_PASSWORD:?write MLFLOW_DB_PASSWORD=... into containers/mlflow/.env}"


def service() -> dict[str, Any]:
    return dict(yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]["mlflow"])


def command(port: int, artifacts: str) -> list[str]:
    here = {"0.0.0.0": "127.0.0.1", "5000": str(port), "/artifacts": artifacts}
    return [here.get(word, word) for word in service()["command"]]


def environment(database: Cluster) -> dict[str, str]:
    variables = dict(service()["environment"])
    assert variables["PGPASSWORD"] == _PASSWORD
    store = variables["MLFLOW_BACKEND_STORE_URI"]
    at = store.replace("@postgres:5432/", f"@127.0.0.1:{database.port}/")
    assert at != store
    return variables | {"PGPASSWORD": database.password, "MLFLOW_BACKEND_STORE_URI": at}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait(uri: str, alive: Callable[[], bool], log: Callable[[], str]) -> None:
    """Until the server answers; fails with its log where it ended."""
    deadline = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(f"{uri}/health", timeout=4).close()
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            assert alive() and time.monotonic() < deadline, log()
            time.sleep(0.2)
