"""What a plan tells of an arm on SGLang: the command that would start it, and what keeps it from running.

The version is what the image's tag names, or the installed package's; a runner asks the image itself before a start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Any

from orchestrator.config.names import ConfigError
from orchestrator.paths import local_path
from runners.sglang.config import ServerConfig
from runners.sglang.flags import SERVE, launch
from runners.sglang.rules import violations
from runners.sglang.version import NEWEST, Version, of_image, parse

CONTAINER_PORT = 30000
FREE_PORT = "FREE_PORT"
NONCE = "NONCE"
"""Stands for the part of the served model's name that is made at each start (`ready.served_name`)."""


def told(server: Mapping[str, Any], port: int | None) -> list[str]:
    """Lines: which SGLang, environment and command for a shell, notes.

    ``server`` is a server config; ``port`` None: any free one.
    """
    config = _read(server)
    version, source = _version(config)
    host, address = listens(config.runner, port)
    command = SERVE if config.runner["kind"] == "docker" else tuple(config.runner["command"])
    try:
        made = launch(config, version, host, address, f"{config.target.name}-{NONCE}")
    except ConfigError as error:
        return [source, f"(no command: {error.problem})"]
    return [source, made.shell(command), *(f"note: {note}" for note in made.notes)]


def listens(runner: Mapping[str, Any], port: int | None) -> tuple[str, int | str]:
    """(host, port) of the server of a runner's config, as it sees them itself; ``port`` None: any free one."""
    own_network = runner["kind"] == "docker" and runner["network"] == "bridge"
    return ("0.0.0.0", CONTAINER_PORT) if own_network else ("127.0.0.1", port or FREE_PORT)


def refusals(server: Mapping[str, Any], temperature: float) -> list[str]:
    """What keeps an arm from running as its config says, one sentence each. ``temperature``: of its requests."""
    config = _read(server)
    target, draft = _model_config(config.target.path), _model_config(config.drafter.path)
    found = violations(config, _version(config)[0], temperature, target, draft)
    return [str(violation) for violation in found]


def _read(server: Mapping[str, Any]) -> ServerConfig:
    config = ServerConfig.model_validate(server)
    local = local_path(config.target.path)
    return (
        config
        if local is None
        else config.model_copy(update={"target": config.target.model_copy(update={"path": str(local)})})
    )


def _version(config: ServerConfig) -> tuple[Version, str]:
    if config.runner["kind"] == "docker":
        image = config.runner["image"]
        if (version := of_image(image)) is not None:
            return version, f"image {image}: SGLang {version} by its tag"
        named = f"image {image}, whose tag names no version" if image else "no image is named"
        return NEWEST, f"{named}: taken for SGLang {NEWEST}, asked before a start"
    try:
        version = parse(installed_version("sglang"))
    except PackageNotFoundError:
        version = None
    if version is None:
        return NEWEST, f"sglang is not installed here: taken for SGLang {NEWEST}"
    return version, f"SGLang {version} as installed here"


def _model_config(path: str | None) -> Mapping[str, Any] | None:
    """``config.json`` of a local checkpoint; None for a name that is fetched."""
    local = local_path(path) if path is not None else None
    file = local / "config.json" if local is not None else None
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file is not None and file.is_file() else None
