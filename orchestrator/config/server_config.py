"""The server config of an arm: exactly what its server uses, as plain JSON data.

A value that the arm's drafter, verification mode or engine does not use is not in it. It is what a runner is handed,
what two arms are compared by, and what identity is computed from. docs/reference/server_config.md shows it.
"""

from __future__ import annotations

from typing import Any

from orchestrator.config.masking import looks_secret
from orchestrator.config.names import ConfigError, nearest
from orchestrator.paths import local_path
from orchestrator.schema.base import Env, Flags
from orchestrator.schema.experiment import ArmConfig
from orchestrator.schema.server import KNOBS, Drafter, Verification

_EMBEDDED_TARGET = (
    "name", "path", "revision", "sha256", "dtype", "context_length", "max_running_requests", "tokenizer_path",
    "chat_template",
)  # fmt: skip
_EMBEDDED_DTYPES = ("float32", "bfloat16")
_EMBEDDED_KNOBS = frozenset({"block_size", "ngram_min", "ngram_max"})
_SGLANG_KNOBS = KNOBS - {"ngram_min", "ngram_max"}
_SGLANG_UNUSED_TARGET = frozenset({"plain_tok_s", "server_args", "env"})
_MODE_USES: dict[str, tuple[str, ...]] = {
    "static": (),
    "dynamic": ("confidence_threshold",),
    "relaxed": ("accept_threshold_single", "accept_threshold_acc"),
    "cap_accept": (),
    "compact": ("sps_table",),
}
_MANAGED_FLAGS = {
    "attention-backend": "attention.backend",
    "chat-template": "target.chat_template",
    "context-length": "target.context_length",
    "dtype": "target.dtype",
    "host": "runner",
    "kv-cache-dtype": "target.kv_cache_dtype",
    "max-running-requests": "target.max_running_requests",
    "mem-fraction-static": "target.mem_fraction_static",
    "model-path": "target.path",
    "port": "runner.port",
    "quantization": "target.quantization",
    "random-seed": "seed",
    "reasoning-parser": "target.reasoning_parser",
    "revision": "target.revision",
    "speculative-accept-threshold-acc": "verification.accept_threshold_acc",
    "speculative-accept-threshold-single": "verification.accept_threshold_single",
    "speculative-algorithm": "drafter.algorithm",
    "speculative-dflash-block-size": "drafter.block_size",
    "speculative-draft-attention-backend": "attention.draft_backend",
    "speculative-draft-model-path": "drafter.checkpoints",
    "speculative-draft-model-quantization": "drafter.quantization",
    "speculative-draft-window-size": "drafter.draft_window",
    "speculative-dspark-block-size": "drafter.block_size",
    "speculative-dspark-sps-table-path": "verification.sps_table",
    "speculative-eagle-topk": "drafter.topk",
    "speculative-num-draft-tokens": "drafter.draft_tokens",
    "speculative-num-steps": "drafter.block_size",
    "tokenizer-path": "target.tokenizer_path",
    "tool-call-parser": "target.tool_call_parser",
    "tp-size": "target.tp_size",
    "trust-remote-code": "target.trust_remote_code",
}
"""Flags that have a key of their own: given twice, one of them would silently lose."""
_LEAST_PROMPT = 16
"""Tokens of a short question in a chat template. How long prompts really are is known once there is a tokenizer."""
_START_OPTIONS = frozenset({"ready_timeout_s", "port", "pull", "hf_cache", "kernel_cache", "offline"})
"""Keys of a runner that say how a server is brought up, not what it is."""


def server_config(arm: ArmConfig) -> dict[str, Any]:
    """Plain JSON data with the keys engine, target, drafter, attention, verification, runner, node, seed,
    server_args, env; ``verification`` is absent without a drafter, ``node`` is absent for the embedded engine."""
    embedded = arm.engine == "embedded"
    config: dict[str, Any] = {
        "engine": arm.engine,
        "target": _target(arm, embedded),
        "drafter": _drafter(arm, embedded),
        "attention": {"backend": arm.attention.backend},
        "runner": {k: v for k, v in _dump(arm.runner).items() if k not in {*_START_OPTIONS, "start_s"}},
        "seed": arm.seed,
    }
    if arm.drafter.speculates:
        config["verification"] = _verification(arm.verification, embedded)
        if arm.attention.draft_backend is not None and not embedded and arm.drafter.checkpoints is not None:
            config["attention"]["draft_backend"] = arm.attention.draft_backend
    if not embedded:
        config["node"] = _dump(arm.node)
        args, env = drafter_extras(arm)
        config["server_args"] = {**arm.target.server_args, **args, **arm.server_args}
        config["env"] = {**arm.target.env, **env, **arm.env}
        if arm.drafter.plugin is not None and arm.drafter.speculates and arm.runner.kind == "docker":
            config["runner"]["image"] = arm.drafter.plugin.image
    return config


def drafter_extras(arm: ArmConfig) -> tuple[Flags, Env]:
    """Server flags and environment that the drafter brings along; nothing where there is none."""
    return (arm.drafter.server_args, arm.drafter.env) if arm.drafter.speculates else ({}, {})


def start_options(arm: ArmConfig) -> dict[str, Any]:
    """How the server is brought up and waited for; part of no identity. ``port`` (null: any free port) and
    ``ready_timeout_s``, and for containers where caches lie and when to pull."""
    return {key: value for key, value in _dump(arm.runner).items() if key in _START_OPTIONS}


def _target(arm: ArmConfig, embedded: bool) -> dict[str, Any]:
    dumped = _dump(arm.target)
    if embedded:
        return {key: dumped[key] for key in _EMBEDDED_TARGET}
    return {key: value for key, value in dumped.items() if key not in _SGLANG_UNUSED_TARGET}


def _drafter(arm: ArmConfig, embedded: bool) -> dict[str, Any]:
    drafter = arm.drafter
    if not drafter.speculates:
        return {"name": drafter.name, "algorithm": None, "proposed_tokens": 0, "verify_window": 1}
    knobs = _knobs(drafter, embedded)
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
    """Refuse what no engine can do by its own declaration. Raises ConfigError."""
    embedded = arm.engine == "embedded"
    backends = ("sdpa",) if embedded else ("fa3", "flashinfer", "triton", "intel_amx")
    if arm.attention.backend not in backends:
        raise ConfigError(
            f"attention={arm.attention.backend}",
            f"{engine_name(arm)} does not have this attention backend",
            allowed=[f"attention={name}" for name in backends],
            hint=None if embedded else "sdpa is the embedded engine's: runner=embedded",
        )
    if embedded and arm.target.dtype not in _EMBEDDED_DTYPES:
        raise ConfigError(
            f"target.dtype={arm.target.dtype}", "the embedded engine cannot compute in it", allowed=_EMBEDDED_DTYPES
        )
    if embedded and (arm.node.gpus or arm.node.expect_gpu):
        raise ConfigError("node", "the embedded engine uses no GPU", allowed=["node.gpus=null node.expect_gpu=null"])
    if arm.node.kind != "local" and arm.runner.kind != "docker":
        raise ConfigError(
            f"node={arm.node.kind}", f"runner={arm.runner.kind} serves on this machine only", allowed=["runner=docker"]
        )
    if arm.drafter.speculates:
        _check_verification(arm, embedded)
    _check_flags(arm)
    if (least := arm.suite.token_limit(arm.target.name) + _LEAST_PROMPT) > arm.target.context_length:
        raise ConfigError(
            "target.context_length",
            f"{arm.target.context_length} leaves no room for a prompt beside {least - _LEAST_PROMPT} new tokens",
            hint=f"{least} or more, or a lower suite.max_new_tokens.{arm.target.name}",
        )
    load = max(arm.load.concurrency or (0,))
    if load > arm.target.max_running_requests:
        raise ConfigError(
            f"load.concurrency={load}",
            f"is above target.max_running_requests={arm.target.max_running_requests}: requests would queue",
            hint=f"target.max_running_requests={load}",
        )


def engine_name(arm: ArmConfig) -> str:
    return "the embedded engine" if arm.engine == "embedded" else "SGLang"


def _check_flags(arm: ArmConfig) -> None:
    for source, flags in (
        ("server_args", arm.server_args),
        ("target.server_args", arm.target.server_args),
        ("drafter.server_args", arm.drafter.server_args),
    ):
        for flag in flags:
            if looks_secret(flag):
                raise ConfigError(
                    f"{source}.{flag}",
                    "is a secret, which every user of the machine would see in the list of processes, and the requests "
                    "of a measurement carry none",
                    hint="leave it out: a server that is started here listens on loopback only",
                )
            if flag in _MANAGED_FLAGS:
                raise ConfigError(
                    f"{source}.{flag}", "has a key of its own", hint=f"set {_MANAGED_FLAGS[flag]} instead"
                )


def _check_verification(arm: ArmConfig, embedded: bool) -> None:
    mode = arm.verification.mode
    modes = ("static", "dynamic", "relaxed") if embedded else ("static", "relaxed", "cap_accept", "compact")
    if arm.drafter.plugin is not None and not embedded:
        modes = ("static", "dynamic", "relaxed")
    if mode not in modes:
        near = nearest(mode, modes)
        raise ConfigError(
            f"verification={mode}",
            f"{engine_name(arm)} does not have this mode with drafter={arm.drafter.name}",
            allowed=[f"verification={name}" for name in modes],
            nearest=f"verification={near}" if near else None,
        )
    if mode == "dynamic" and not arm.drafter.confidence_head:
        raise ConfigError(
            "verification=dynamic",
            f"drafter={arm.drafter.name} has no confidence head that could cut its window",
            hint='choose it in the arms that have one: \'arms.dspine=["drafter=dspine","verification=dynamic"]\'',
        )
    if mode in ("cap_accept", "compact") and arm.drafter.algorithm != "DSPARK":
        raise ConfigError(
            f"verification={mode}",
            f"SGLang acts on this mode for DSPARK only; {arm.drafter.algorithm} would silently verify the whole block",
            allowed=["verification=static", "verification=relaxed"],
        )


def uses(arm: ArmConfig, key: str) -> bool:
    """Whether a dotted config key has any influence on what this arm serves, or on how it is served."""
    top, _, rest = key.partition(".")
    name, _, inner = rest.partition(".")
    embedded, speculates = arm.engine == "embedded", arm.drafter.speculates
    if top in ("suite", "load", "runner", "seed"):
        return True
    if top == "node":  # where it is, matters to all; GPUs to those that use them
        return not embedded or name not in ("gpus", "expect_gpu")
    if top in ("server_args", "env"):
        return not embedded
    if top == "target":
        return not embedded or name in (*_EMBEDDED_TARGET, "plain_tok_s")
    if top == "attention":
        return name == "backend" or (not embedded and speculates)
    if not speculates:
        return False
    if top == "verification":
        return name == "mode" or name in _MODE_USES[arm.verification.mode]
    if name == "checkpoints":
        return inner.partition(".")[0] in ("", arm.target.name)
    if name in ("plugin", "server_args", "env"):
        return not embedded
    return name in _knobs(arm.drafter, embedded) or name not in KNOBS


def _knobs(drafter: Drafter, embedded: bool) -> frozenset[str]:
    """Drafter keys that this drafter uses on this engine."""
    return frozenset(drafter.uses) & (_EMBEDDED_KNOBS if embedded else _SGLANG_KNOBS)


def _dump(model: Any) -> dict[str, Any]:
    return dict(model.model_dump(mode="json"))
