"""What the engine is asked for: one server's container, and the same as a command line that a person can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from orchestrator.config.masking import looks_secret
from runners.base import Launch

PORT = 30000
"""On which the server listens inside its container, whose network is its own."""


@dataclass(frozen=True)
class Place:
    """How a container is set up, whatever runs in it; paths are the node's, and absolute."""

    image: str
    """As configured."""
    gpus: tuple[str, ...]
    """Indices or UUIDs; empty: it gets none."""
    read_only: Mapping[str, str]
    """Folder or file of the node -> where it is seen in the container."""
    caches: tuple[str, ...]
    """Folders that are seen where they lie, and written."""
    env: Mapping[str, str]
    user: str | None
    """``uid:gid``; None: the image's own."""
    ipc_host: bool
    shm_size: str | None
    ulimits: Mapping[str, int]
    port: int | None
    """On ``publish_on``, or of the node's own network; None: any free one."""
    publish_on: str = "127.0.0.1"
    """Address of the node."""
    network: str = "bridge"
    """``bridge`` or ``host``."""


def gpu_ids(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The GPUs that a server config asks for, by name: a count would let the engine choose."""
    if config["engine"] == "embedded":
        return ()
    chosen = config["node"]["gpus"]
    return tuple(str(gpu) for gpu in (range(config["target"]["tp_size"]) if chosen is None else chosen))


def model_mounts(config: Mapping[str, Any]) -> dict[str, str]:
    """The folders and files that a server config names, each seen where it lies, so that no path is rewritten."""
    named = [
        config["target"]["path"],
        config["target"].get("tokenizer_path"),
        config["target"].get("chat_template"),
        config["drafter"].get("path"),
        config.get("verification", {}).get("sps_table"),
    ]
    paths = {_whole(PurePosixPath(path)) for path in named if path and path.startswith("/")}
    return {str(path): str(path) for path in sorted(paths)}


def cache_env(hf_cache: str, kernel_cache: str, offline: bool) -> dict[str, str]:
    """Variables that make SGLang use the caches that are mounted."""
    env = {
        "HF_HOME": hf_cache,
        "SGLANG_CACHE_DIR": kernel_cache,
        # SGLang 0.5.23 sets these itself, all but the last, which is where its own kernels are built.
        "TRITON_CACHE_DIR": f"{kernel_cache}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{kernel_cache}/inductor",
        "TILELANG_CACHE_DIR": f"{kernel_cache}/tilelang",
        "CUDA_CACHE_PATH": f"{kernel_cache}/nv",
        "FLASHINFER_WORKSPACE_BASE": kernel_cache,
        "TVM_FFI_CACHE_DIR": f"{kernel_cache}/tvm-ffi",
    }
    return env | ({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"} if offline else {})


def gpu_requests(gpus: Sequence[str]) -> list[Any] | None:
    from docker.types import DeviceRequest

    return [DeviceRequest(device_ids=list(gpus), capabilities=[["gpu"]])] if gpus else None


def read_only_mounts(folders: Mapping[str, str]) -> list[Any]:
    from docker.types import Mount

    # Not as volumes, for which an engine makes an empty folder where there is none.
    return [Mount(seen, path, type="bind", read_only=True) for path, seen in folders.items()]


def arguments(place: Place, launch: Launch, labels: Mapping[str, str]) -> dict[str, Any]:
    """Keywords of docker-py's ``containers.create``, the image excluded."""
    from docker.types import LogConfig, Mount, Ulimit

    mounts = read_only_mounts(place.read_only)
    mounts += [Mount(path, path, type="bind") for path in place.caches]
    return {
        # The image's own entry point would get these words as its arguments.
        "entrypoint": launch.words[:1],
        "command": launch.words[1:],
        "environment": {**place.env, **launch.env},
        "labels": dict(labels),
        "mounts": mounts,
        "device_requests": gpu_requests(place.gpus),
        **_network(place),
        "user": place.user,
        "init": True,  # as process 1 itself a server would ignore SIGTERM and keep its children's corpses
        "ipc_mode": "host" if place.ipc_host else None,
        "shm_size": None if place.ipc_host else place.shm_size,
        "ulimits": [Ulimit(name=name, soft=value, hard=value) for name, value in place.ulimits.items()],
        "security_opt": ["no-new-privileges"],
        "log_config": LogConfig(type=LogConfig.types.JSON),  # whatever the engine's default is, this can be read back
    }


def command_line(place: Place, launch: Launch) -> list[str]:
    """The same as ``docker run``. Values that look secret are left to the environment of who runs it."""
    words = ["docker", "run", "--rm", "--init", "--security-opt", "no-new-privileges"]
    if place.gpus:
        words += ["--gpus", f'"device={",".join(place.gpus)}"']
    if place.network == "host":
        words += ["--network", "host"]
    else:
        words += ["--publish", f"{place.publish_on}:{place.port or ''}:{PORT}"]
    if place.ipc_host:
        words += ["--ipc", "host"]
    elif place.shm_size:
        words += ["--shm-size", place.shm_size]
    for name, limit in place.ulimits.items():
        words += ["--ulimit", f"{name}={limit}"]
    if place.user:
        words += ["--user", place.user]
    for path, seen in place.read_only.items():
        words += ["--mount", f"type=bind,source={path},target={seen},readonly"]
    for path in place.caches:
        words += ["--mount", f"type=bind,source={path},target={path}"]
    for name, value in {**place.env, **launch.env}.items():
        words += ["--env", name if looks_secret(name) else f"{name}={value}"]
    return [*words, "--entrypoint", launch.words[0], place.image, *launch.words[1:]]


def _network(place: Place) -> dict[str, Any]:
    if place.network == "host":
        return {"network_mode": "host"}
    return {"ports": {f"{PORT}/tcp": (place.publish_on, place.port)}}


def _whole(path: PurePosixPath) -> PurePosixPath:
    """The folder to mount for a model: in Hugging Face's cache a snapshot's files are links to blobs beside it."""
    return path.parent.parent if path.parent.name == "snapshots" else path
