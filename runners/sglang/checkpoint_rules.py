"""Start-up rules that follow from the ``config.json`` of the checkpoints: does this drafter fit this target?

SGLang reads them when its scheduler is up, a minute or more after the start; and some wrong pairs it serves, with text
that is right and acceptance near 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runners.sglang.capabilities import DFLASH2, DSPARK_DRAFT_MODEL
from runners.sglang.facts import Facts, Violation, other_release
from runners.sglang.version import Version, of

Config = Mapping[str, Any]

ARCHITECTURES: Mapping[str, Mapping[str, Version]] = {
    "DFLASH": {
        "DFlashDraftModel": of("0.5.16"),
        "DFlashLagunaForCausalLM": of("0.5.16"),
        "MuseGlimmerAssistantModel": of("0.5.18"),
        "DFlash2DraftModel": DFLASH2,
        "DFlash2BeamDraftModel": of("0.5.23"),
        "MiniMaxDFlash2DraftModel": of("0.5.23"),
    },
    "DSPARK": {
        "Qwen3DSparkModel": of("0.5.16"),
        "DeepseekV4ForCausalLMDSpark": of("0.5.16"),
        "DSparkDraftModel": DSPARK_DRAFT_MODEL,
        "LingDSparkModel": of("0.5.19"),
        "Lfm2DSparkDraftModel": of("0.5.19"),
        "DSparkMiniMaxDraftModel": of("0.5.23"),
    },
}
"""Algorithm -> architectures of its drafters -> first version that has them."""
LONGER_CONTEXT = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_MARKOV_HEADS = ("vanilla", "gated", "rnn")


def checkpoint_rules(facts: Facts, target: Config | None, draft: Config | None) -> list[Violation]:
    """[] where the drafter's configuration is not at hand."""
    if draft is None or not facts.in_tree:
        return []
    found = [*_architecture(facts, draft), *_quantized(facts, draft), *_context(facts, draft)]
    if facts.algorithm in ARCHITECTURES:
        found += [*_pairs(facts, draft), *_heads(facts, draft)]
        if target is not None:
            found += _fits(facts, target, draft)
    if facts.algorithm == "DSPARK":
        found += _dspark(facts, draft)
    return found


def _architecture(facts: Facts, draft: Config) -> Iterator[Violation]:
    known = ARCHITECTURES.get(facts.algorithm or "")
    names = draft.get("architectures") or []
    if known is None or not names:
        return
    name, algorithm = str(names[0]), facts.algorithm
    other = next((other for other, own in ARCHITECTURES.items() if name in own and other != algorithm), None)
    if other is not None:
        reason = f"the weights are a {name}, a drafter of {other}; {algorithm} may serve it and accept nothing"
        yield Violation(_key(facts), reason, f"a drafter whose algorithm is {other}")
    elif (since := known.get(name)) is None:
        yield Violation(
            _key(facts), f"the weights are a {name}, no drafter of {algorithm}", f"one of {', '.join(known)}"
        )
    elif facts.version < since:
        reason = f"the weights are a {name}, which SGLang has from {since} on, not in {facts.version}"
        yield other_release(facts.config, reason, since)


def _quantized(facts: Facts, draft: Config) -> Iterator[Violation]:
    if draft.get("quantization_config") is not None and facts.algorithm == "DFLASH":
        yield Violation(
            _key(facts), "the weights are quantized: such a DFlash drafter loads and accepts nothing", "bfloat16"
        )


def _context(facts: Facts, draft: Config) -> Iterator[Violation]:
    """A drafter runs at the target's positions. EAGLE-3 drafters are often published with 2048 of them."""
    text, wanted = _text(draft), facts.config.target.context_length
    positions, scaled = text.get("max_position_embeddings"), text.get("rope_scaling") or text.get("rope_parameters")
    if not isinstance(positions, int) or positions >= wanted or "factor" in (scaled or {}):
        return
    if facts.env.get(LONGER_CONTEXT, "").lower() in ("", "0", "false"):
        late = "SGLang says so only after it has loaded the target"
        reason = f"{wanted} is above the {positions} positions of the drafter; {late}"
        nearest = f"target.context_length={positions}, or +drafter.env.{LONGER_CONTEXT}=1 where it was trained beyond"
        yield Violation("target.context_length", reason, nearest)


def _pairs(facts: Facts, draft: Config) -> Iterator[Violation]:
    own = _own(draft)
    for first, second in (("conv_kernel_size", "conv_group_size"), ("selector_rank", "selector_top_k")):
        if bool(own.get(first)) != bool(own.get(second)):
            yield Violation(_key(facts), f"its config.json has one of {first} and {second} without the other", "both")
    group, hidden = own.get("conv_group_size"), _text(draft).get("hidden_size")
    if group and hidden and hidden % group:
        yield Violation(_key(facts), f"conv_group_size {group} does not divide hidden_size {hidden}", "one that does")


def _heads(facts: Facts, draft: Config) -> Iterator[Violation]:
    ways = facts.config.target.tp_size
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = _text(draft).get(name)
        if isinstance(heads, int) and heads % ways and ways % heads:
            reason = f"{ways} GPUs do not divide the drafter's {name}, {heads}"
            yield Violation("target.tp_size", reason, f"a divisor of {heads}")


def _fits(facts: Facts, target: Config, draft: Config) -> Iterator[Violation]:
    own, text = _own(draft), _text(target)
    layers, vocabulary = text.get("num_hidden_layers"), text.get("vocab_size")
    ids = own.get("target_layer_ids", draft.get("target_layer_ids"))
    if layers and ids is not None and (not ids or not all(0 <= layer < layers for layer in ids)):
        reason = f"it reads layers {ids} of a target that has {layers}: it was trained for another"
        yield Violation(_key(facts), reason, "a drafter of this target")
    mask = own.get("mask_token_id", draft.get("mask_token_id"))
    if vocabulary and mask is not None and mask >= vocabulary:
        reason = f"its mask token {mask} is outside the target's vocabulary of {vocabulary}"
        yield Violation(_key(facts), reason, "a drafter of this target")
    sizes = (_text(draft).get("hidden_size"), text.get("hidden_size"))
    if all(sizes) and sizes[0] != sizes[1]:
        reason = f"its hidden size is {sizes[0]}, the target's {sizes[1]}, whose embedding and head it shares"
        yield Violation(_key(facts), reason, "a drafter of this target")


def _dspark(facts: Facts, draft: Config) -> Iterator[Violation]:
    own = {**_text(draft), **draft, **_own(draft)}
    rank, head = own.get("dspark_markov_rank", own.get("markov_rank")) or 0, own.get("markov_head_type")
    if rank < 1:
        yield Violation(_key(facts), "its config.json has no markov_rank above 0", "a drafter of DSPARK")
    elif head is not None and str(head).lower() not in _MARKOV_HEADS:
        yield Violation(_key(facts), f"SGLang does not have its markov_head_type {head}", ", ".join(_MARKOV_HEADS))
    mode = facts.config.verification.mode if facts.config.verification else "static"
    if mode in ("cap_accept", "compact") and own.get("enable_confidence_head", True) is False:
        reason = "the drafter's checkpoint has no confidence head that could cut its window"
        yield Violation(f"verification={mode}", reason, "verification=static")


def _key(facts: Facts) -> str:
    return f"drafter.checkpoints.{facts.config.target.name}.path"


def _own(draft: Config) -> dict[str, Any]:
    return {**(draft.get("dflash_config") or {}), **(draft.get("dspark_config") or {})}


def _text(config: Config) -> Config:
    return config.get("text_config") or config
