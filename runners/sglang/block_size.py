"""What a block size counts: every algorithm of SGLang has its own answer.

| algorithm | its block size | proposed | verify window | flags |
| --- | --- | --- | --- | --- |
| DFLASH | verify window, anchor included | b - 1 | b | num-draft-tokens b |
| DSPARK | gamma, proposed tokens | gamma | gamma + 1 | dspark-block-size gamma |
| EAGLE, EAGLE3, NEXTN, STANDALONE: chain | steps | s | s + 1 | num-steps s, eagle-topk 1, num-draft-tokens s + 1 |
| the same, tree (topk > 1) | steps | d - 1 | d, root included | num-steps s, eagle-topk, num-draft-tokens d |
| NGRAM | verify window, anchor included | b - 1 | b | num-draft-tokens b |
| a plugin (DSPINE) | not published: as the config says | w - 1 | w | num-draft-tokens w |

Equal work is an equal verify window: DFLASH 8, DSPARK 7, EAGLE 7 steps, NGRAM 8. `num-draft-tokens` is the verify
window everywhere, and what `/server_info` reports. Read from
`arg_groups/speculative_hook.py` of SGLang 0.5.16 to 0.5.23.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config.names import ConfigError
from runners.sglang.config import Drafter

EAGLE_FAMILY = frozenset({"EAGLE", "EAGLE3", "NEXTN", "STANDALONE"})
"""Draft step by step; NEXTN is another name of EAGLE, and drafts with the target's own MTP layer."""
_COUNTS_ANCHOR = frozenset({"DFLASH", "NGRAM"})
_NUM_DRAFT_TOKENS = "speculative-num-draft-tokens"


@dataclass(frozen=True)
class Block:
    """Tokens per verification step, and the flags that ask for them (full names, no dashes)."""

    proposed: int
    window: int
    flags: dict[str, int]
    assumption: str | None = None
    """What is not known of this algorithm and was taken for granted."""


def block(drafter: Drafter) -> Block:
    """The arithmetic of a drafter with an algorithm.

    Raises ConfigError where the block proposes nothing, where a tree cannot have that many tokens, and where the config
    counts otherwise than SGLang does (``block_is`` of the drafter's file is wrong for its algorithm).
    """
    algorithm, size = drafter.algorithm, drafter.block_size
    if algorithm is None or size is None:
        raise ConfigError("drafter.block_size", f"drafter={drafter.name} has none")
    found = _block(drafter, algorithm, size)
    if found.proposed < 1:
        raise ConfigError(
            "drafter.block_size", f"{size} proposes nothing: {algorithm} counts the anchor", hint="the smallest is 2"
        )
    if (found.proposed, found.window) != (drafter.proposed_tokens, drafter.verify_window):
        counts = "verify_window" if algorithm in _COUNTS_ANCHOR else "proposed_tokens"
        raise ConfigError(
            "drafter.block_is",
            f"by it, block size {size} of drafter={drafter.name} proposes {drafter.proposed_tokens} in a window of "
            f"{drafter.verify_window}; SGLang's {algorithm} proposes {found.proposed} in a window of {found.window}",
            hint=f"drafter.block_is={counts}",
        )
    return found


def _block(drafter: Drafter, algorithm: str, size: int) -> Block:
    if drafter.plugin is not None:
        window = drafter.verify_window
        assumed = f"{algorithm} is vendor code: that its block size {size} means a verify window of {window} is assumed"
        return Block(window - 1, window, {_NUM_DRAFT_TOKENS: window}, assumed)
    if algorithm in _COUNTS_ANCHOR:
        return Block(size - 1, size, {_NUM_DRAFT_TOKENS: size})
    if algorithm == "DSPARK":
        return Block(size, size + 1, {"speculative-dspark-block-size": size})
    if algorithm in EAGLE_FAMILY:
        return _eagle(drafter, size)
    raise ConfigError(
        "drafter.algorithm",
        f"{algorithm} is no algorithm of stock SGLang",
        allowed=sorted({*EAGLE_FAMILY, *_COUNTS_ANCHOR, "DSPARK"}),
        hint="one that vendor code registers needs drafter.plugin",
    )


def _eagle(drafter: Drafter, steps: int) -> Block:
    topk = drafter.topk or 1
    window = steps + 1 if topk == 1 else drafter.draft_tokens or steps + 1
    # A step scores topk children of each of topk branches; the best window - 1 of all are kept, and SGLang's selection
    # fails while it captures graphs when there are fewer.
    if topk > 1 and window - 1 > (most := topk + (steps - 1) * topk * topk):
        raise ConfigError(
            "drafter.draft_tokens",
            f"{window}: a tree of {steps} steps with topk {topk} has {most + 1} tokens, root included",
            hint=f"at most {most + 1}",
        )
    flags = {"speculative-num-steps": steps, "speculative-eagle-topk": topk, _NUM_DRAFT_TOKENS: window}
    return Block(window - 1, window, flags)
