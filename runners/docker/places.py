"""How a server's container is set up on its node: caches, mounts, user, what its engine can do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from runners.base import ServerFailure
from runners.docker import container as containers
from runners.docker import node_files
from runners.docker.connect import Connection
from runners.starting import free_port

_TOKEN = "HF_TOKEN"
_PODMAN = "Podman"


def make(
    config: Mapping[str, Any], options: Mapping[str, Any], connection: Connection, engine: str
) -> containers.Place:
    """Where and with what the container of a server config runs; the folders that it writes are made.

    ``options``: as ``DockerRunner``; ``engine``: as ``engine_of``. Raises ServerFailure for what the node lacks.
    """
    runner, gpus = config["runner"], containers.gpu_ids(config)
    if gpus and engine.startswith(_PODMAN):
        raise ServerFailure(
            "gpu_runtime", "podman ignores the GPUs that are asked of it through Docker's API: use Docker's engine"
        )
    embedded, on_host = config["engine"] == "embedded", runner["network"] == "host"
    caches: tuple[str, ...] = ()
    env: dict[str, str] = {}
    if not embedded:  # which has neither cache
        hf_cache = node_files.absolute(connection, options["hf_cache"])
        kernel_cache = node_files.absolute(connection, options["kernel_cache"])
        caches = (hf_cache, kernel_cache)
        node_files.make_folders(connection, caches)
        env = containers.cache_env(hf_cache, kernel_cache, options["offline"])
        if not options["offline"]:
            env |= hub_token()
    read_only = {**containers.model_mounts(config), **further_mounts(config, connection)}
    if engine.startswith(_PODMAN) and not connection.remote:  # which makes what is not there
        node_files.refuse_missing(read_only)
    return containers.Place(
        image=runner["image"],
        gpus=gpus,
        read_only=read_only,
        caches=caches,
        env=env,
        # The engine of this project only reads, and what a user may read here is then what it may read.
        user=f"{os.getuid()}:{os.getgid()}" if embedded and not connection.remote else None,
        ipc_host=runner["ipc_host"],
        shm_size=runner["shm_size"],
        ulimits=runner["ulimits"],
        # In the node's own network it has to be known beforehand; of another machine it was asked for.
        port=free_port(options["port"]) if on_host and not connection.remote else options["port"],
        publish_on=connection.publish_on,
        network=runner["network"],
    )


def hub_token() -> dict[str, str]:
    """The user's token of Hugging Face, which gated weights need; empty where there is none."""
    return {_TOKEN: token} if (token := os.environ.get(_TOKEN)) else {}


def further_mounts(config: Mapping[str, Any], connection: Connection) -> dict[str, str]:
    """What ``runner.mounts`` asks for."""
    return {node_files.absolute(connection, path): seen for path, seen in config["runner"]["mounts"].items()}


def engine_of(connection: Connection) -> str:
    """Name and version."""
    version = connection.client.version()
    names = [component.get("Name", "") for component in version.get("Components") or ()]
    return f"{_PODMAN if 'Podman Engine' in names else 'Docker'} {version['Version']}"
