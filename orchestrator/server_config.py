"""The server config of an arm: exactly what its server uses, as plain JSON data.

A value that the arm's drafter, verification mode or engine does not use is not in it. It is what a runner is handed,
what two arms are compared by, and what identity is computed from. docs/reference/server_config.md shows it.
"""

from __future__ import annotations

from typing import Any

from orchestrator.names import ConfigError, nearest
from orchestrator.paths import local_path
from orchestrator.schema.experiment import ArmConfig
from orchestrator.schema.server import Drafter, Verification

_EMBEDDED_TARGET = (
    "name", "path", "revision", "sha256", "dtype", "context_length", "max_running_requests", "tokenizer_path",
    "chat_template",
)  # fmt: skip
_EMBEDDED_KNOBS = frozenset({"block_size", "ngram_min", "ngram_max"})
_SGLANG_UNUSED_TARGET = frozenset({"plain_tok_s", "server_args", "env"})
_MODE_USES: dict[str, tuple[str, ...]] = {
    "static": (),
    "dynamic": ("confidence_threshold",),
    "relaxed": ("accept_threshold_single", "accept_threshold_acc"),
    "cap_accept": (),
    "compact": ("sps_table",),
}
_RUNNER_UNUSED = frozenset({"ready_timeout_s", "start_s", "port"})
"""How a server is waited for, not what it is."""


def server_config(arm: ArmConfig) -> dict[str, Any]:
    """Plain JSON data with the keys engine, target, drafter, attention, verification, runner, node, seed,
    server_args, env; ``verification`` is absent without a drafter, ``node`` is absent for the embedded engine."""
    embedded = arm.runner.kind == "embedded"
    config: dict[str, Any] = {
        "engine": "embedded" if embedded else "sglang",
        "target": _target(arm, embedded),
        "drafter": _drafter(arm, embedded),
        "attention": {"backend": arm.attention.backend},
        "runner": {k: v for k, v in _dump(arm.runner).items() if k not in _RUNNER_UNUSED},
        "seed": arm.seed,
    }
    if arm.drafter.speculates:
        config["verification"] = _verification(arm.verification, embedded)
        if arm.attention.draft_backend is not None and not embedded and arm.drafter.checkpoints is not None:
            config["attention"]["draft_backend"] = arm.attention.draft_backend
    if not embedded:
        config["node"] = _dump(arm.node)
        drafter = arm.drafter
        config["server_args"] = {**arm.target.server_args, **drafter.server_args, **arm.server_args}
        config["env"] = {**arm.target.env, **drafter.env, **arm.env}
        if drafter.plugin is not None and arm.runner.kind == "docker":
            config["runner"]["image"] = drafter.plugin.image
    return config


def start_options(arm: ArmConfig) -> dict[str, Any]:
    """How the server is started and waited for; part of no identity: ``port`` and ``ready_timeout_s``."""
    dumped = _dump(arm.runner)
    return {key: dumped[key] for key in ("port", "ready_timeout_s") if key in dumped}


def _target(arm: ArmConfig, embedded: bool) -> dict[str, Any]:
    dumped = _dump(arm.target)
    if embedded:
        return {key: dumped[key] for key in _EMBEDDED_TARGET}
    return {key: value for key, value in dumped.items() if key not in _SGLANG_UNUSED_TARGET}


def _drafter(arm: ArmConfig, embedded: bool) -> dict[str, Any]:
    drafter = arm.drafter
    if not drafter.speculates:
        return {"name": drafter.name, "algorithm": None, "proposed_tokens": 0, "verify_window": 1}
    knobs = set(drafter.uses) & _EMBEDDED_KNOBS if embedded else set(drafter.uses)
    config: dict[str, Any] = {
        "name": drafter.name,
        "algorithm": drafter.embedded if embedded else drafter.algorithm,
        **{knob: getattr(drafter, knob) for knob in drafter.uses if knob in knobs},
        "proposed_tokens": drafter.proposed_tokens,
        "verify_window": drafter.verify_window,
    }
    if (checkpoint := (drafter.checkpoints or {}).get(arm.target.name)) is not None and not checkpoint.built_in:
        local = local_path(checkpoint.path) if checkpoint.path is not None else None
        config["path"] = str(local) if local is not None else checkpoint.path
        config["revision"] = checkpoint.revision
    if drafter.plugin is not None and not embedded:
        config["plugin"] = _dump(drafter.plugin)
    return config


def _verification(verification: Verification, embedded: bool) -> dict[str, Any]:
    dumped = _dump(verification)
    uses = _MODE_USES[verification.mode]
    if embedded:
        uses = tuple(key for key in uses if key != "accept_threshold_acc")
    return {"mode": verification.mode, **{key: dumped[key] for key in uses}}


def check_combination(arm: ArmConfig) -> None:
    """Refuse what no engine can do by its own declaration. Raises ConfigError naming the arm."""
    where = f"arm {arm.name}"
    embedded = arm.runner.kind == "embedded"
    engine = "the embedded engine" if embedded else "SGLang"
    backends = ("sdpa",) if embedded else ("fa3", "flashinfer", "triton")
    if arm.attention.backend not in backends:
        raise ConfigError(
            f"{where}: attention={arm.attention.backend}",
            f"{engine} does not have this attention backend",
            allowed=[f"attention={name}" for name in backends],
            hint=None if embedded else "sdpa is the embedded engine's: runner=embedded",
        )
    if arm.drafter.speculates:
        _check_verification(arm, where, engine, embedded)
    load = max(arm.load.concurrency)
    if load > arm.target.max_running_requests:
        raise ConfigError(
            f"{where}: load.concurrency={load}",
            f"is above target.max_running_requests={arm.target.max_running_requests}: requests would queue",
            hint=f"target.max_running_requests={load}",
        )


def _check_verification(arm: ArmConfig, where: str, engine: str, embedded: bool) -> None:
    mode = arm.verification.mode
    modes = ("static", "dynamic", "relaxed") if embedded else ("static", "relaxed", "cap_accept", "compact")
    if arm.drafter.plugin is not None and not embedded:
        modes = ("static", "dynamic", "relaxed")
    if mode not in modes:
        near = nearest(mode, modes)
        raise ConfigError(
            f"{where}: verification={mode}",
            f"{engine} does not have this mode with drafter={arm.drafter.name}",
            allowed=[f"verification={name}" for name in modes],
            nearest=f"verification={near}" if near else None,
        )
    if mode == "dynamic" and not arm.drafter.confidence_head:
        raise ConfigError(
            f"{where}: verification=dynamic",
            f"drafter={arm.drafter.name} has no confidence head, so its window cannot be cut",
            hint="set it on the arm that has one: 'arms.dspine=[drafter=dspine,verification=dynamic]'",
        )
    if mode in ("cap_accept", "compact") and arm.drafter.algorithm != "DSPARK":
        raise ConfigError(
            f"{where}: verification={mode}",
            f"SGLang acts on this mode for DSPARK only; {arm.drafter.algorithm} would silently verify the whole block",
            allowed=["verification=static", "verification=relaxed"],
        )


def knobs(drafter: Drafter, embedded: bool) -> frozenset[str]:
    """Drafter keys that this drafter uses on this engine."""
    return frozenset(drafter.uses) & _EMBEDDED_KNOBS if embedded else frozenset(drafter.uses)


def _dump(model: Any) -> dict[str, Any]:
    return dict(model.model_dump(mode="json"))
