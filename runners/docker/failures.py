"""Why an engine refused, and why a container ended, from what the engine says; pure.

Docker's API has few types and statuses for many reasons, so it is mostly the text that tells. Podman's texts, where it
answers another way, are in the same table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners.base import ServerFailure


@dataclass(frozen=True)
class _Signature:
    cause: str
    pattern: str
    advice: str
    """What to do; ``{1}`` stands for what the pattern's first group holds."""


_REFUSALS = (
    # The first that the text matches counts, so what tells most comes first.
    _Signature(
        "gpu_runtime",
        r"could not select device driver|unresolvable CDI devices",
        "the node's engine cannot give GPUs to containers: install the NVIDIA Container Toolkit there "
        "(nvidia-ctk runtime configure --runtime=docker) and restart the engine",
    ),
    _Signature(
        "gpu_missing",
        r"nvidia-container-cli: device error: (\S+?): unknown device",
        "the node has no GPU {1}: correct node.gpus (nvidia-smi -L lists them)",
    ),
    _Signature(
        "gpu_driver",
        r"nvidia-container-cli|error running hook #\d",
        "the node's NVIDIA driver does not answer the container toolkit: see whether nvidia-smi works there",
    ),
    _Signature(
        "runtime_unknown",
        r"unknown (?:or invalid )?runtime(?: name| specified)?:? (\S+)",
        "the engine has no runtime {1}: correct the engine's daemon.json",
    ),
    _Signature(
        "device_missing",
        r'custom device "([^"]+)"',
        "the node has no {1}: its driver is not loaded",
    ),
    _Signature(
        "port_in_use",
        r"port is already allocated|address already in use|ports are not available",
        "leave runner.port=null for any free port, or stop what has it",
    ),
    _Signature(
        "mount_missing",
        r"bind source path does not exist: (\S+)|statfs (\S+): no such file or directory",
        "the node has no {1}: a folder that is mounted has to be there",
    ),
    _Signature(
        "limits",
        r"error setting rlimit type|setrlimit|ulimit option",
        "the node does not allow such a limit: lower runner.ulimits, or raise those of its engine",
    ),
    _Signature(
        "privileges",
        r"unable to apply caps|apparmor|seccomp.*not (?:supported|permitted)",
        "the node's engine may not give a container these rights",
    ),
    _Signature("disk_full", r"no space left on device|disk quota exceeded", "make room on the node's disk"),
    _Signature(
        "registry_unreachable",
        r"dial tcp|no such host|TLS handshake timeout|Client\.Timeout|i/o timeout|proxyconnect",
        "its registry cannot be reached from the node: load the image there (docker load) and set runner.pull=never",
    ),
    _Signature(
        "pull_refused",
        r"pull access denied|unauthorized|denied:|manifest .*(?:unknown|not found)|manifest unknown|invalid reference",
        "its registry does not give it: check the name and tag (runner.image), and docker login on the node",
    ),
    _Signature(
        "image_missing",
        r"no such image|image not known|no match for platform",
        "the node does not have it: pull or build it there first",
    ),
    _Signature(
        "command",
        r'exec: "([^"]+)"|executable file `?([^ `]+)`? not found|exec format error',
        "the image cannot run {1}: is it the image of this engine (runner.engine)?",
    ),
    _Signature("name_taken", r"container name .* is already in use", "remove that container"),
    _Signature(
        "container_gone",
        r"no such container|no container with name|dead or marked for removal|removal of container .* in progress",
        "someone removed it",
    ),
    _Signature(
        "engine_version",
        r"client version .* is too (?:new|old)",
        "engine and Docker client do not fit: update the older one",
    ),
    _Signature(
        "engine_denied",
        r"permission ?denied.*(?:sock|connect)|PermissionError\(13",
        "this user may not use it: add the user to the group docker, or set DOCKER_HOST to a rootless engine",
    ),
    _Signature(
        "engine_hung",
        r"read timed out|ReadTimeout|ConnectTimeout|context deadline exceeded|timed out",
        "it accepts connections but does not answer: restart it (systemctl restart docker)",
    ),
    _Signature(
        "engine_gone",
        r"Connection aborted|Connection refused|ConnectionRefused|FileNotFoundError|NewConnectionError|"
        r"RemoteDisconnected|Broken ?Pipe|Connection reset|ConnectionReset|IncompleteRead|Connection broken",
        "no engine answers there: start it (systemctl start docker), or set DOCKER_HOST",
    ),
)
ENGINE_LOST = frozenset({"engine_gone", "engine_hung", "engine_denied"})
"""Causes that are the engine's own, whatever was asked of it."""
_VAGUE = frozenset({"killed", "stopped"})
"""What a server's software says where its log has no error; the container's state then knows more. ``died`` is vague,
too, unless it was SIGKILL, with which SGLang ends itself after an error."""
_SIGKILL, _SIGTERM = 9, 15
_NO_PROGRAM = (126, 127)
"""Not executable, not found."""
_PODMAN_INIT = re.compile(r"^ERROR \(catatonit:\d+\): failed to exec", re.MULTILINE)
"""Which ends with 1 then."""


def of_engine(problem: Exception, about: str) -> ServerFailure:
    """What a failed call of the engine means. ``about``: what was wanted of it, in a few words."""
    return refused(type(problem).__name__, getattr(problem, "status_code", None), _text(problem), about)


def refused(kind: str, status: int | None, text: str, about: str) -> ServerFailure:
    """``kind``: name of the exception's class; ``status``: HTTP status, None where no answer came."""
    said = " ".join(text.split())
    if kind in ("ImageNotFound", "NotFound") and not re.search("container", said, re.IGNORECASE):
        return ServerFailure("image_missing", f"{about}: {_advice('image_missing', said)} ({said})")
    for signature in _REFUSALS:
        if signature.cause in ENGINE_LOST and status is not None and status < 500:
            continue
        if (found := re.search(signature.pattern, said, re.IGNORECASE)) is not None:
            group = next((text for text in found.groups() if text), "")
            return ServerFailure(signature.cause, f"{about}: {signature.advice.replace('{1}', group)} ({said})")
    answered = f"the engine answered {status}" if status is not None else kind
    return ServerFailure("engine", f"{about}: {answered}: {said}")


def code_of(state: Mapping[str, Any]) -> int:
    """Exit code of a container that ended, or minus the signal: an engine shows 128 + signal."""
    code = int(state.get("ExitCode") or 0)
    return 128 - code if 128 < code <= 128 + 64 else code


def ended(state: Mapping[str, Any], software: ServerFailure, log: Path) -> ServerFailure:
    """Why a container that nobody here stopped has ended.

    ``state``: ``State`` of its inspection. ``software``: what the server's own log says; it is right where it names a
    cause, and the state where the log ends in silence.
    """
    code, when = code_of(state), "while it served" if software.served else "before it was ready"

    def failure(cause: str, message: str) -> ServerFailure:
        return ServerFailure(cause, f"the server ended {when}: {message}", log, software.served, software.detail)

    if state.get("OOMKilled"):
        # A child may have been killed: then the exit code is the server's own.
        return failure("memory", "the kernel killed one of its processes, at the memory limit of its container")
    if state.get("Error"):
        told = refused("State", None, str(state["Error"]), "its container did not start")
        return ServerFailure(told.cause, str(told), log, software.served, software.detail)
    if software.cause not in _VAGUE and (software.cause != "died" or code == -_SIGKILL):
        return software
    # Said by the container's first process, so that the engine itself had nothing to object.
    if code in _NO_PROGRAM or _PODMAN_INIT.search(software.detail):
        return failure("command", "the image cannot run its program; is it the image of this engine (runner.engine)?")
    if code == -_SIGKILL:
        return failure(
            "killed", "its container was killed (137): by someone, or by the kernel when the node ran short of memory"
        )
    if code == -_SIGTERM:
        return failure("stopped", "its container was stopped from outside (143): by someone, or with its engine")
    return software


def removed(log: Path, served: bool, said: str) -> ServerFailure:
    """Its container is not there any more, and nobody here removed it."""
    when = "while it served" if served else "before it was ready"
    return ServerFailure("container_gone", f"its container was removed by someone {when}", log, served, said)


def _advice(cause: str, said: str) -> str:
    return next(signature.advice for signature in _REFUSALS if signature.cause == cause)


def _text(problem: Exception) -> str:
    """What it says, with the reason that requests and urllib3 hide inside."""
    explanation = getattr(problem, "explanation", None)
    text = explanation.decode(errors="replace") if isinstance(explanation, bytes) else explanation
    return str(text or problem) or repr(problem)
