"""What SGLang refuses, or silently does not do, told before anything is started.

Some of it SGLang says at once, some only minutes later, when the weights are loaded and its scheduler allocates memory,
and some never: the setting has no effect, and the arm measures something else than its name says. Read from
`arg_groups/{speculative,attention,mamba,validation}_hook.py`, `mem_cache/kv_cache_configurator.py` and
`mem_cache/memory_pool.py` of 0.5.16 to 0.5.23.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.config.names import ConfigError
from runners.sglang import capabilities
from runners.sglang.block_size import EAGLE_FAMILY
from runners.sglang.checkpoint_rules import checkpoint_rules
from runners.sglang.config import ServerConfig
from runners.sglang.environment import RAGGED_VERIFY_MODE, SIMULATED_ACCEPTANCE, unknown_variables
from runners.sglang.facts import Facts, Violation, gather, other_release
from runners.sglang.flags import launch
from runners.sglang.state_rules import state_rules
from runners.sglang.version import NEWEST, OLDEST, Version


def violations(
    config: ServerConfig,
    version: Version,
    temperature: float,
    target_config: Mapping[str, Any] | None = None,
    draft_config: Mapping[str, Any] | None = None,
) -> list[Violation]:
    """Everything that keeps a server config from running as it says, [] when it may be started.

    ``temperature``: of the requests that will be sent. ``target_config``, ``draft_config``: the ``config.json`` of the
    checkpoints where they are at hand; what follows from them is not checked without.
    """
    if version < OLDEST:
        reason = f"SGLang {version} is older than {OLDEST}, the oldest that is known here"
        return [other_release(config, reason, NEWEST)]
    try:
        launch(config, version, "127.0.0.1", 0, config.target.name)
        facts = gather(config, version, temperature, target_config)
    except ConfigError as error:
        return [Violation(error.key, error.problem, error.hint or error.nearest or "leave it out")]
    found = [*_versions(facts), *_environment(facts), *state_rules(facts), *_parallel(facts), *_kernels(facts)]
    if facts.algorithm is not None:
        found += [*_verification(facts), *_drafter(facts), *_simulated(facts)]
        found += checkpoint_rules(facts, target_config, draft_config)
    return found


def _versions(facts: Facts) -> Iterator[Violation]:
    if facts.is_dflash2 and facts.version < capabilities.DFLASH2:
        reason = (
            f"SGLang {facts.version} does not have the architecture of DFlash2 (DFlash2DraftModel), "
            f"{capabilities.DFLASH2} and newer do"
        )
        yield other_release(facts.config, reason, NEWEST)


def _environment(facts: Facts) -> Iterator[Violation]:
    if facts.config.drafter.plugin is not None:
        return  # a vendor's code may read any name
    for name, near in unknown_variables(facts.config.env, facts.version).items():
        reason = f"SGLang {facts.version} reads no such variable and would ignore it silently"
        yield Violation(f"env.{name}", reason, near or "leave it out")


def _parallel(facts: Facts) -> Iterator[Violation]:
    pipeline = facts.number("pp-size", 1)
    if pipeline > 1 and facts.in_tree and facts.algorithm in ("DFLASH", "DSPARK"):
        yield Violation("server_args.pp-size", f"{facts.algorithm} cannot run in {pipeline} pipeline stages", "1")
    attention_dp = facts.number("attn-dp-size", 1) > 1 or bool(facts.flags.get("enable-dp-attention"))
    if not attention_dp or not facts.in_tree:
        return
    key = "server_args.attn-dp-size" if "attn-dp-size" in facts.flags else "server_args.enable-dp-attention"
    never = facts.algorithm in ("NGRAM", "STANDALONE")
    if never or (facts.algorithm == "DFLASH" and facts.version < capabilities.DFLASH_ATTENTION_DP):
        told = f"{facts.algorithm} cannot run with attention data parallelism"
        yield Violation(key, told if never else f"{told} in SGLang {facts.version}", "leave it out")
    elif facts.algorithm in ("DFLASH", "DSPARK") and not facts.flags.get("enable-dp-lm-head"):
        reason = f"{facts.algorithm} with attention data parallelism needs enable-dp-lm-head"
        yield Violation(key, reason, "+server_args.enable-dp-lm-head=true")


def _kernels(facts: Facts) -> Iterator[Violation]:
    backend, cache, page = (
        facts.config.attention.backend,
        facts.config.target.kv_cache_dtype,
        facts.number("page-size", 1),
    )
    if backend == "fa3" and cache == "fp8_e5m2":
        yield Violation(
            "target.kv_cache_dtype", "SGLang would silently change attention from fa3 to triton for it", "fp8_e4m3"
        )
    if facts.algorithm == "NGRAM" and page > 1 and backend != "flashinfer":
        yield Violation(
            "server_args.page-size", f"NGRAM proposes a tree, which {backend} cannot verify in pages of {page}", "1"
        )


def _verification(facts: Facts) -> Iterator[Violation]:
    verification, key = facts.config.verification, "verification"
    if verification is None:
        return
    mode = verification.mode
    if mode == "relaxed" and facts.temperature == 0:
        reason = "SGLang verifies greedy requests greedily whatever the thresholds: at temperature 0 it changes nothing"
        yield Violation(f"{key}=relaxed", reason, "verification=static, or suite.temperature above 0")
    elif mode == "relaxed" and facts.in_tree and (ignores := _ignores_thresholds(facts)):
        reason = f"{ignores} verifies by rejection sampling and ignores the thresholds"
        yield Violation(f"{key}=relaxed", reason, "verification=static")
    if mode == "dynamic" and not _switches_dynamic(facts):
        yield Violation(
            f"{key}=dynamic",
            f"nothing in env switches it on: it is {facts.config.drafter.name}'s own, and no flag of SGLang",
            "drafter.env.<the vendor's variable>=<value>",
        )
    if facts.algorithm in EAGLE_FAMILY and mode == "relaxed" and facts.flags.get("speculative-use-rejection-sampling"):
        reason = "speculative-use-rejection-sampling ignores the thresholds, and SGLang refuses both together"
        yield Violation(f"{key}=relaxed", reason, "verification=static")


def _ignores_thresholds(facts: Facts) -> str | None:
    if facts.algorithm == "DSPARK":
        return "DSPARK"
    return "DFlash2" if facts.is_dflash2 else None


def _switches_dynamic(facts: Facts) -> bool:
    """By SGLang's own mode, or by a variable that is not SGLang's: the vendor's."""
    own = facts.config.env
    return own.get(RAGGED_VERIFY_MODE, "static") != "static" or any(not name.startswith("SGLANG_") for name in own)


def _drafter(facts: Facts) -> Iterator[Violation]:
    drafter, target = facts.config.drafter, facts.config.target
    if facts.in_tree and drafter.dtype is not None and drafter.dtype != target.dtype:
        yield Violation(
            "drafter.dtype",
            f"SGLang loads a drafter in the target's precision ({target.dtype}) and has no flag for {drafter.dtype}",
            f"drafter.dtype={target.dtype}",
        )
    if drafter.draft_window is None or not facts.in_tree:
        return
    if facts.algorithm == "DFLASH" and drafter.draft_window < facts.window:
        reason = f"{drafter.draft_window} is below the verify window, {facts.window}"
        yield Violation("drafter.draft_window", reason, f"drafter.draft_window={facts.window}")
    ignores = facts.algorithm in ("DSPARK", "STANDALONE")
    if ignores or (facts.algorithm in ("EAGLE", "NEXTN") and facts.version < capabilities.EAGLE_DRAFT_WINDOW):
        reason = f"{facts.algorithm} of SGLang {facts.version} ignores it, with a warning in its log only"
        yield Violation("drafter.draft_window", reason, "drafter.draft_window=null")


def _simulated(facts: Facts) -> Iterator[Violation]:
    key = f"env.{SIMULATED_ACCEPTANCE}"
    value = facts.env.get(SIMULATED_ACCEPTANCE)
    if value is None or value.startswith("-") or not facts.in_tree:
        return
    if facts.algorithm == "NGRAM" or (
        facts.algorithm == "DFLASH" and facts.version < capabilities.DFLASH_SIMULATES_ACCEPTANCE
    ):
        yield Violation(key, f"{facts.algorithm} of SGLang {facts.version} ignores it silently", "leave it out")
    mode = facts.env.get(RAGGED_VERIFY_MODE, "static")
    if facts.algorithm == "DSPARK" and mode != "static" and value not in ("1", "1.0"):
        yield Violation(
            key, f"cannot run with verification={mode}, which cuts the window itself", "verification=static"
        )
