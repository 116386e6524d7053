"""Identity is content: a trial's key is a hash of all that can change its result.

Names of files and folders, descriptions and where results are shown are not part of it; weights, engine sources,
prompts, sampling, load, order and hardware are. A changed anything is another key, and is measured again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from orchestrator.measuring.records import RECORD_SCHEMA
from orchestrator.paths import local_path, package_root
from orchestrator.planning import hardware
from orchestrator.schema import ArmConfig, LoadPoint, ProcessRunner, Suite

KEY_LENGTH = 20
_LOADED = frozenset({".safetensors", ".json", ".bin", ".gguf", ".model", ".txt", ".jinja"})
_ENGINE_PACKAGES = ("torch", "llvmlite", "tokenizers")
_SGLANG_PACKAGES = ("sglang", "torch", "triton", "flashinfer-python", "sglang-kernel", "sgl-kernel", "transformers")


def content_hash(value: Any) -> str:
    """sha256 of the canonical JSON of plain data; equal for equal content whatever the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def arm_content(arm: ArmConfig, facts: Mapping[str, Any]) -> dict[str, Any]:
    """All of an arm that can change what is measured on it: its server with weights and engine, and what is sent.

    Two arms with equal content are the same arm under two names.
    """
    server = dict(arm.server)
    for part in ("target", "drafter"):
        # Weights are known by their content; where the folder lies does not matter then.
        if (weights := facts["weights"].get(server[part].get("path"))) is not None:
            server[part] = {**server[part], "path": weights}
    engine = facts["engine"][server["engine"]]
    if server["runner"]["kind"] == "process":
        engine = engine.get(shlex.join(server["runner"]["command"]))
    if server["runner"]["kind"] == "docker":
        # The engine is what the image holds, whatever its tag; an image that was never seen here is known by its tag.
        image = server["runner"]["image"]
        server["runner"] = {**server["runner"], "image": facts["images"].get(image, image)}
        engine = {}
    return {
        "server": server,
        "engine": engine,
        "suite": suite_content(arm.suite, arm.target.name),
    }


def suite_content(suite: Suite, target: str) -> dict[str, Any]:
    """What is sent of a suite. The number of repeats is not in it: each repeat is a trial of its own."""
    content = {key: value for key, value in suite.sent.items() if key != "repeats"}
    return {**content, "max_new_tokens": suite.token_limit(target)}


def comparison_key(arms: Mapping[str, ArmConfig], order: str, facts: Mapping[str, Any]) -> str:
    """Key of a comparison. It is part of its trials' keys: the plain arm of one comparison never stands in for that of
    another, since ratios are formed inside a comparison only."""
    content = {name: [arm_content(arm, facts), arm.load.model_dump(mode="json")] for name, arm in arms.items()}
    return content_hash(
        {
            "arms": list(content.items()),
            "order": order,
            "hardware": facts["hardware"],
            "record_schema": facts["record_schema"],
        }
    )


def trial_key(comparison: str, arm: str, session: int, repeat: int, load: LoadPoint, position: int) -> str:
    """Key of a trial: its comparison (which holds every arm's content) and its place in it."""
    return content_hash([comparison, arm, session, repeat, load.model_dump(mode="json"), position])


def gather(
    arms: Collection[ArmConfig], images: Mapping[str, str], machines: Mapping[str, hardware.Machine] | None = None
) -> dict[str, Any]:
    """What identity needs besides the config: hardware, engines, hashes of local weights, record schema.

    ``images``: image -> digest (``image_lock``), for servers in containers. ``machines``: node (as it is shown) -> what
    it is, for those that were asked; of another node nothing is known.
    """
    paths = {path for arm in arms for path in (arm.server["target"]["path"], arm.server["drafter"].get("path")) if path}
    return {
        "hardware": _hardware(arms, machines or {}),
        "engine": {"embedded": embedded_engine(), "sglang": _installed(arms)},
        "images": dict(images),
        "weights": {path: digest for path in sorted(paths) if (digest := weights_hash(path)) is not None},
        "record_schema": RECORD_SCHEMA,
    }


def _installed(arms: Iterable[ArmConfig]) -> dict[str, dict[str, str] | None]:
    """Command of SGLang on this machine -> the packages that compute, by version; None where it cannot be asked."""
    return {
        shlex.join(arm.runner.command): _installed_sglang(arm, arm.runner.command)
        for arm in arms
        if isinstance(arm.runner, ProcessRunner)
    }


def _installed_sglang(arm: ArmConfig, command: tuple[str, ...]) -> dict[str, str] | None:
    try:
        return installed_sglang(command, tuple(sorted(arm.server["env"].items())))
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        return None


@cache
def installed_sglang(command: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Versions of what an installed SGLang computes with, of the packages that its interpreter has. A source tree has
    one version whatever is changed in it.

    Raises OSError, SubprocessError, IndexError or ValueError where the interpreter cannot be asked.
    """
    from runners.choose import interpreter

    script = (
        "import importlib.metadata as packages, json, sys; "
        # Of a package that is there twice, the first is imported: the later ones are written first here.
        "found = [(one.metadata['Name'], one.version) for one in packages.distributions()][::-1]; "
        "have = {name.lower(): version for name, version in found if name}; "
        "print(json.dumps({name: have[name] for name in sys.argv[1:] if name in have}))"
    )
    words = [*interpreter(command), "-c", script, *_SGLANG_PACKAGES]
    done = subprocess.run(words, capture_output=True, env={**os.environ, **dict(env)}, timeout=60, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _hardware(arms: Iterable[ArmConfig], machines: Mapping[str, hardware.Machine]) -> Any:
    """Of the one node that serves all arms, or of each of them."""
    found: dict[str, dict[str, Any]] = {}
    for arm in arms:
        if arm.node.kind == "local":
            found[arm.node.shown] = hardware.here().content
        else:
            # Two machines of one kind are not one machine: a ratio is formed on one only.
            known = machines.get(arm.node.shown)
            found[arm.node.shown] = {"node": arm.node.shown, **(known.content if known else {})}
    return next(iter(found.values())) if len(found) == 1 else found


@cache
def embedded_engine() -> dict[str, str | None]:
    """Version of the embedded engine: a hash of the sources that serve, and of the packages that compute."""
    root = package_root() / "runners"
    # What starts it and what serves; neither what trains its drafters nor what other servers are started with.
    sources = [path for path in sorted((root / "engine").rglob("*.py")) if not _trains(path.relative_to(root))]
    sources.append(root / "embedded.py")
    digest = hashlib.sha256()
    for path in sources:
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(path.read_bytes())
    return {"sources": digest.hexdigest()[:KEY_LENGTH], **{name: package_version(name) for name in _ENGINE_PACKAGES}}


def _trains(path: Path) -> bool:
    return path.parts[:2] == ("engine", "training") or path.parts == ("engine", "train.py")


def package_version(package: str) -> str | None:
    """None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def weights_hash(path: str) -> str | None:
    """Content of a local model folder or file; None for a name that is fetched, which its revision identifies.

    Only files that a model is loaded from count, not its card. Files up to 64 MB are hashed whole, larger ones count by
    name, size and time of change: hashing 54 GB for a plan would take minutes.
    """
    local = local_path(path)
    if local is None or not local.exists():
        return None
    # A folder that holds no model may be a whole disk: it is refused later, and only its own files count.
    pattern = "**/*" if (local / "config.json").is_file() else "*"
    files = sorted(file for file in local.glob(pattern) if file.suffix in _LOADED) if local.is_dir() else [local]
    entries: list[list[str | int]] = []
    for file in files:
        if not file.is_file():  # a folder, a link to nothing, a pipe that would be waited for
            continue
        status = file.stat()
        name = str(file.relative_to(local)) if local.is_dir() else ""
        if status.st_size <= 64 * 2**20 and os.access(file, os.R_OK):
            entries.append([name, hashlib.sha256(file.read_bytes()).hexdigest()])
        else:
            entries.append([name, status.st_size, status.st_mtime_ns])
    return content_hash(entries)
