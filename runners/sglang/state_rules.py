"""Start-up rules of the recurrent state: the state cache of hybrid targets, and ReplaySSM.

A hybrid (Qwen3.5 to 3.8, Kimi Linear) keeps a state per request beside keys and values. Rolling it back after a
verification is what ReplaySSM does cheaply.
"""

from __future__ import annotations

from collections.abc import Iterator

from runners.sglang.capabilities import REPLAYSSM_FOR_ALL
from runners.sglang.environment import RAGGED_VERIFY_MODE
from runners.sglang.facts import Facts, Violation

_SPEC = "enable-linear-replayssm-spec"
_DECODE = "enable-linear-replayssm"
_RING = "linear-replayssm-cache-len"
_RING_DEFAULT = 16
_TRACK_DEFAULT = 256
_HYBRID = ("gdn", "kda")
_DROP_SPEC = f"leave {_SPEC} out of this arm (recorded as a difference); of the drafters, mtp runs with it"


def state_rules(facts: Facts) -> Iterator[Violation]:
    yield from _strategy(facts)
    yield from _slots(facts)
    yield from _replay_decode(facts)
    if facts.flags.get(_SPEC) and facts.algorithm is not None:
        yield from _replay_spec(facts)
        yield from _ring(facts)


def _strategy(facts: Facts) -> Iterator[Violation]:
    key = "server_args.mamba-radix-cache-strategy"
    strategy, page = facts.text("mamba-radix-cache-strategy", "auto"), facts.number("page-size", 1)
    if facts.family == "attention" and strategy.startswith("extra_buffer"):
        yield Violation(key, f"{strategy} needs a target with a recurrent state, this one has none", "auto")
    if facts.family not in _HYBRID or facts.flags.get("disable-radix-cache"):
        return
    if strategy == "no_buffer" and not facts.flags.get("disable-overlap-schedule"):
        yield Violation(key, "no_buffer cannot run with the overlap schedule", "extra_buffer")
    if strategy == "no_buffer" and page > 1:
        yield Violation(key, f"no_buffer cannot run with page-size {page}", "page-size 1, or extra_buffer")
    if strategy.startswith("extra_buffer"):
        interval = facts.number("mamba-track-interval", _TRACK_DEFAULT)
        if interval < facts.window or interval % page:
            near = max(_TRACK_DEFAULT, -(-facts.window // page) * page)
            yield Violation(
                "server_args.mamba-track-interval",
                f"{interval} has to be at least the verify window ({facts.window}) and divisible by page-size ({page})",
                str(near),
            )
    if strategy == "extra_buffer_lazy" and facts.flags.get("disable-overlap-schedule"):
        yield Violation(key, "extra_buffer_lazy needs the overlap schedule", "extra_buffer")


def slots_per_request(facts: Facts) -> int:
    """State slots that a running request takes, as SGLang counts them (``_calculate_mamba_ratio``)."""
    if facts.flags.get("disable-radix-cache"):
        return 1
    strategy, overlap = (
        facts.text("mamba-radix-cache-strategy", "auto"),
        not facts.flags.get("disable-overlap-schedule"),
    )
    if strategy == "auto":
        strategy = "extra_buffer" if overlap else "no_buffer"
    extra = {"extra_buffer": 2 if overlap else 1, "extra_buffer_lazy": 1}
    return 3 + extra.get(strategy, 0)


def _slots(facts: Facts) -> Iterator[Violation]:
    """SGLang only logs it: asked for eight requests at once, it runs two."""
    size, wanted = facts.number("max-mamba-cache-size", 0), facts.config.target.max_running_requests
    if facts.family not in _HYBRID or size == 0 or (runs := size // (each := slots_per_request(facts))) >= wanted:
        return
    yield Violation(
        "server_args.max-mamba-cache-size",
        f"{size} slots at {each} for each request hold {runs} requests, not target.max_running_requests={wanted}",
        str(each * wanted),
    )


def _replay_decode(facts: Facts) -> Iterator[Violation]:
    key = f"server_args.{_DECODE}"
    if not facts.flags.get(_DECODE):
        return
    decode = _decode_backend(facts)
    if decode not in ("triton", "helion"):
        yield Violation(key, f"cannot run with linear-attn-decode-backend {decode}", "triton")
    if facts.text("mamba-radix-cache-strategy", "auto").startswith("extra_buffer"):
        yield Violation(key, "cannot run with mamba-radix-cache-strategy extra_buffer", "no_buffer without overlap")
    if facts.flags.get(_SPEC):
        yield Violation(key, f"cannot run with {_SPEC}: they share one ring", f"leave {_DECODE} out")


def _replay_spec(facts: Facts) -> Iterator[Violation]:
    key, algorithm, early = f"server_args.{_SPEC}", facts.algorithm, facts.version < REPLAYSSM_FOR_ALL
    if facts.in_tree and algorithm in ("DFLASH", "DSPARK") and facts.family != "kda" and facts.family is not None:
        told = (
            "SGLang 0.5.16 has no check and would commit a state that it does not keep"
            if early
            else "SGLang says so only after it has loaded the weights"
        )
        yield Violation(
            key,
            f"{algorithm} with it needs a KDA target, and this one is {facts.family.upper()} "
            f"(all of Qwen3.5 to 3.8); {told}",
            _DROP_SPEC,
        )
    if algorithm == "NGRAM" or (facts.number("speculative-eagle-topk", 1) > 1):
        reason = "is valid for a chain of drafts only, and this drafter proposes a tree"
        if algorithm == "NGRAM":
            yield Violation(key, f"{reason}; SGLang says so only after it has loaded the weights", _DROP_SPEC)
        else:
            yield Violation(key, reason, "drafter.topk=1")
    decode = _decode_backend(facts)
    allowed = ("triton",) if early else ("triton", "flashinfer")
    if decode not in allowed:
        yield Violation(key, f"cannot run with linear-attn-decode-backend {decode}", " or ".join(allowed))
    mode, verify = facts.env.get(RAGGED_VERIFY_MODE, "static"), facts.text("linear-attn-verify-backend", "")
    if mode != "static" and (algorithm not in ("DFLASH", "DSPARK") or verify not in ("triton", "nv_cutedsl")):
        yield Violation(
            key,
            f"with verification={mode} it needs DFLASH or DSPARK on a KDA target, and a linear-attn-verify-backend "
            "that writes the ring (triton)",
            "verification=static",
        )
    if early and facts.text("mamba-radix-cache-strategy", "auto").startswith("extra_buffer"):
        yield Violation(
            key,
            f"SGLang {facts.version} cannot run it with mamba-radix-cache-strategy extra_buffer",
            f"no_buffer without overlap, or SGLang {REPLAYSSM_FOR_ALL}",
        )
    if early and (dtype := facts.text("mamba-ssm-dtype", "float32")) != "float32":
        yield Violation(
            "server_args.mamba-ssm-dtype",
            f"SGLang {facts.version} runs {_SPEC} in float32 only, not {dtype}",
            "float32",
        )


def _ring(facts: Facts) -> Iterator[Violation]:
    """From 0.5.17 on only KDA targets use the ring; a GDN target sizes its window by itself."""
    ring, needs = facts.number(_RING, _RING_DEFAULT), 2 * facts.window
    applies = facts.family == "kda" or (facts.version < REPLAYSSM_FOR_ALL and facts.family == "gdn")
    if applies and (ring & (ring - 1) or ring < needs):
        late = "" if facts.version < REPLAYSSM_FOR_ALL else "; SGLang says so only after it has loaded the weights"
        yield Violation(
            f"server_args.{_RING}",
            f"{ring} is not a power of two of at least twice the verify window, {needs}{late}",
            str(1 << (needs - 1).bit_length()),
        )


def _decode_backend(facts: Facts) -> str:
    return facts.text("linear-attn-decode-backend", facts.text("linear-attn-backend", "triton"))
