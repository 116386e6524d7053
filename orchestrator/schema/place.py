"""Where and how a server is started, and where results are shown: runner, node, tracking."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from orchestrator.schema.base import SIZE, STORES, Model, Strings

Port = Annotated[int, Field(ge=1, le=65535)] | None
Seconds = Annotated[float, Field(gt=0)]
Threads = Annotated[int, Field(ge=1, le=4096)] | None
Engine = Literal["sglang", "embedded"]


class _Runner(Model):
    ready_timeout_s: Seconds
    """Longest wait for the server to be ready."""
    start_s: Seconds
    """Rough time of a start; only the plan's estimate of cost reads it."""


class EmbeddedRunner(_Runner):
    """The engine of this project as a process on loopback."""

    kind: Literal["embedded"]
    threads: Threads
    """Threads of the engine, equal in every arm; None: the physical cores of the machine."""
    port: Port
    """None: any free port."""


class ProcessRunner(_Runner):
    """The local ``sglang`` installation as a process."""

    kind: Literal["process"]
    command: Annotated[Strings, Field(min_length=1)]
    """How the server is entered, flags excluded."""
    port: Port


class DockerRunner(_Runner):
    """A container."""

    kind: Literal["docker"]
    engine: Engine
    """What its image serves with."""
    threads: Threads
    """As ``EmbeddedRunner.threads``; SGLang has none."""
    image: Annotated[str, Field(pattern=r"^[!-~]+$")]
    """Tag or digest; a drafter with a plugin brings its own image."""
    pull: Literal["missing", "always", "never"]
    network: Literal["bridge", "host"]
    """``bridge``: a network of its own, of which one port is published; ``host``: the node's, on its loopback."""
    ipc_host: bool
    shm_size: Annotated[str, Field(pattern=SIZE)] | None
    """Shared memory of the container (``32g``); without ``ipc_host`` SGLang needs it large."""
    ulimits: dict[str, Annotated[int, Field(ge=-1)]]
    """Limits of its processes (``{memlock: -1}``); a node whose engine may not grant one refuses the start."""
    hf_cache: Annotated[str, Field(min_length=1)]
    """Folder on the node that is mounted as the Hugging Face cache."""
    kernel_cache: Annotated[str, Field(min_length=1)]
    """Folder on the node that keeps compiled kernels between starts."""
    offline: bool
    """The server may not reach the network; weights are fetched before."""
    mounts: dict[str, Annotated[str, Field(pattern="^/.")]]
    """Further mounts: folder on the node -> folder in the container (read-only)."""
    port: Port


class AttachRunner(_Runner):
    """A server that someone else started; it is measured, never stopped."""

    kind: Literal["attach"]
    engine: Engine
    """What the server is."""
    threads: Threads
    """As ``EmbeddedRunner.threads``; SGLang has none."""
    url: Annotated[str, Field(pattern=r"^https?://")]

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise ValueError("a user and password in the URL would be in every record: let a tunnel hold them")
        if not parts.hostname or parts.query or parts.fragment or not re.fullmatch(r"[!-~]+", url):
            # Not shown: what stands behind a question mark may be a key.
            raise ValueError("must be http(s)://host[:port][/path] in ASCII, without spaces, ? and #")
        if parts.port == 0:  # raises ValueError for what is no port
            raise ValueError("port 0 is no port to connect to")
        return url

    @property
    def here(self) -> bool:
        """Whether the server is on this machine, so that its processes and GPUs can be seen."""
        return urlsplit(self.url).hostname in ("localhost", "127.0.0.1", "::1")


Runner = Annotated[EmbeddedRunner | ProcessRunner | DockerRunner | AttachRunner, Field(discriminator="kind")]


class _Node(Model):
    gpus: Annotated[tuple[int | str, ...], Field(strict=False)] | None
    """Indices or UUIDs of the GPUs to serve on; None: the first ``tp_size``."""

    @field_validator("gpus")
    @classmethod
    def _are_gpus(cls, gpus: tuple[int | str, ...] | None) -> tuple[int | str, ...] | None:
        wrong = [gpu for gpu in gpus or () if gpu == "" or (isinstance(gpu, int) and gpu < 0)]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is no index (0 or more) and no UUID of a GPU")
        if len(set(gpus or ())) != len(gpus or ()):
            raise ValueError("a GPU occurs twice")
        return gpus

    expect_gpu: str | None
    """Part of the GPU's name that must be there, so that figures are not taken on another card unawares."""


class LocalNode(_Node):
    kind: Literal["local"]

    @property
    def shown(self) -> str:
        """Where it is, for a person."""
        return "this machine"


class SshNode(_Node):
    kind: Literal["ssh"]
    host: Annotated[str, Field(pattern=r"^[^-\s]\S*$")]
    """``user@machine`` as OpenSSH takes it."""
    docker_socket: str
    """The engine's socket on that machine."""

    @property
    def shown(self) -> str:
        return self.host


class TlsNode(_Node):
    kind: Literal["tls"]
    url: Annotated[str, Field(pattern=r"^tcp://[^/\s]+:\d+$")]
    """Where the engine listens (``dockerd --tlsverify``)."""
    certs: str
    """Folder on this machine with ca.pem, cert.pem and key.pem."""

    @property
    def shown(self) -> str:
        return self.url


Node = Annotated[LocalNode | SshNode | TlsNode, Field(discriminator="kind")]


class MlflowTracking(Model):
    kind: Literal["mlflow"]
    uri: Annotated[str, Field(pattern=STORES)]
    """Tracking URI of MLflow."""


class NoTracking(Model):
    kind: Literal["none"]


Tracking = Annotated[MlflowTracking | NoTracking, Field(discriminator="kind")]
