"""A server config as the command line of one version of SGLang, in full flag names.

Abbreviations would work today (argparse takes them) and turn ambiguous with the next version: 0.5.20 made an error of
`--cuda-graph-max-bs`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.config.names import ConfigError, nearest
from runners.sglang import known
from runners.sglang.block_size import block
from runners.sglang.config import FlagValue, ServerConfig
from runners.sglang.environment import environment
from runners.sglang.moved import name_in, newest_name
from runners.sglang.version import KNOWN, Version, treated_as

SERVE = ("sglang", "serve")
DRAFT_WEIGHTS = "DRAFT_WEIGHTS"
"""Stands in a planned command for weights that nobody has named yet."""
_PINNED: dict[str, FlagValue] = {
    # Unset, SGLang holds prompts back until two to four slots are free, for DFLASH and DSPARK only and from 8 requests
    # on: their time to first token would be told apart by that. 1 is off.
    "min-free-slots-delay": 1,
}
_LISTS = frozenset(name for version in KNOWN for name, flag in known.flags(version).items() if flag.takes == "list")


@dataclass(frozen=True)
class Launch:
    """How a server is started."""

    flags: dict[str, FlagValue]
    """Flag as this version calls it, without dashes -> value; true is the bare flag."""
    env: dict[str, str]
    notes: tuple[str, ...]
    """What was assumed or translated."""

    def words(self, command: tuple[str, ...] = SERVE) -> list[str]:
        """The command line."""
        given = [word for flag, value in self.flags.items() for word in _words(flag, value)]
        return [*command, *given]

    def shell(self, command: tuple[str, ...] = SERVE) -> str:
        """Environment and command line, ready for a shell."""
        env = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        return " ".join([*env, shlex.join(self.words(command))])


def launch(config: ServerConfig, version: Version, host: str, port: int | str, served_name: str) -> Launch:
    """The command line and environment for a version. ``served_name``: what the server calls the model; a name that no
    other server has is how `ready` knows ours. Raises ConfigError for a block size that SGLang counts otherwise, for a
    flag that is given twice, and for one that this version does not have."""
    facts, note = treated_as(version)
    notes = [note] if note else []
    flags: dict[str, FlagValue] = {}
    for flag, value in {
        "host": host,
        "port": port,
        "served-model-name": served_name,
        **settings(config),
    }.items():
        if value is None or value is False:
            continue
        name = name_in(facts, flag)
        if name is None:
            if config.drafter.plugin is None:
                raise absent(flag, facts)
            name = flag
            notes.append(f"--{flag} is no flag of stock SGLang {facts}; the vendor's code has to take it")
        elif name != flag:
            notes.append(f"--{flag} is called --{name} in SGLang {facts}")
        flags[name] = value
    drafter = config.drafter
    if drafter.algorithm is not None and (assumption := block(drafter).assumption):
        notes.append(assumption)
    if drafter.plugin is not None and drafter.dtype not in (None, config.target.dtype):
        notes.append(f"no flag asks for drafter.dtype={drafter.dtype}: the vendor's code has to do it by itself")
    return Launch(flags, environment(config), tuple(notes))


def settings(config: ServerConfig) -> dict[str, FlagValue]:
    """Every flag of a config but its address, by its newest name; None where it is left to SGLang.

    Free flags (``server_args``) come last and replace what is pinned. Raises ConfigError as ``launch`` does.
    """
    managed = {**_target(config), **_speculation(config)}
    free: dict[str, FlagValue] = {}
    for flag, value in config.server_args.items():
        name = newest_name(flag)
        if name in managed or name in ("host", "port", "served-model-name"):
            raise ConfigError(f"server_args.{flag}", f"is --{name}, which the configuration sets by a key of its own")
        if name in free:
            raise ConfigError(f"server_args.{flag}", f"is given twice: it is another name of --{name}")
        free[name] = value
    pinned = {} if _above_one(free.get("pp-size")) else _PINNED  # pipelining forbids what is pinned
    return {**managed, **pinned, **free}


def absent(flag: str, version: Version) -> ConfigError:
    """Why a flag is refused by a version."""
    key = f"server_args.{flag}"
    if versions := known.flag_versions(flag):
        told = f"SGLang {version} does not have --{flag}: {versions[0]} to {versions[-1]} do"
        return ConfigError(key, told, hint=f"leave it out, or take SGLang {versions[-1]}")
    near = nearest(flag, known.flags(version))
    return ConfigError(key, f"--{flag} is no flag of SGLang {version}", nearest=near)


def _target(config: ServerConfig) -> Mapping[str, FlagValue]:
    target = config.target
    return {
        "model-path": target.path,
        "revision": target.revision,
        "tokenizer-path": target.tokenizer_path,
        "trust-remote-code": target.trust_remote_code,
        "dtype": target.dtype,
        "quantization": target.quantization,
        "kv-cache-dtype": target.kv_cache_dtype,
        "context-length": target.context_length,
        "max-running-requests": target.max_running_requests,
        "mem-fraction-static": target.mem_fraction_static,
        "tp-size": target.tp_size,
        "chat-template": target.chat_template,
        "reasoning-parser": target.reasoning_parser,
        "tool-call-parser": target.tool_call_parser,
        "attention-backend": config.attention.backend,
        "random-seed": config.seed,
    }


def _speculation(config: ServerConfig) -> Mapping[str, FlagValue]:
    drafter, verification = config.drafter, config.verification
    if drafter.algorithm is None or verification is None:
        return {}
    return {
        "speculative-algorithm": drafter.algorithm,
        "speculative-draft-model-path": DRAFT_WEIGHTS if drafter.lacks_weights else drafter.path,
        "speculative-draft-model-revision": drafter.revision,
        "speculative-draft-model-quantization": drafter.quantization,
        "speculative-draft-attention-backend": config.attention.draft_backend,
        "speculative-draft-window-size": drafter.draft_window,
        **block(drafter).flags,
        "speculative-accept-threshold-single": verification.accept_threshold_single,
        "speculative-accept-threshold-acc": verification.accept_threshold_acc,
        "speculative-dspark-sps-table-path": verification.sps_table,
    }


def _above_one(value: FlagValue) -> bool:
    return isinstance(value, int) and value > 1


def _words(flag: str, value: FlagValue) -> list[str]:
    if value is True:
        return [f"--{flag}"]
    # A flag that takes a list is written as one text in the configuration: '1 2 4 8'.
    words = str(value).split() if flag in _LISTS else [str(value)]
    return [f"--{flag}", *words]
