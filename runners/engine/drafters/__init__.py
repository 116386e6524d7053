"""Drafters by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runners.engine.drafters.base import Drafter
    from runners.engine.llama import Llama

WEIGHTS = Path(__file__).parents[1] / "weights"
"""Trained here, for SmolLM2-135M-Instruct; see the model card inside."""

NGRAM_BLOCK = 8


def load_drafter(
    name: str,
    target: Llama,
    block_size: int | None = None,
    path: Path | None = None,
    ngram_min: int | None = None,
    ngram_max: int | None = None,
) -> Drafter:
    """The drafter ``name`` bound to a loaded target.

    ``block_size``: anchor included, so that it proposes one less; None takes the checkpoint's own.
    ``path``: checkpoint folder; None takes the one shipped. Raises FileNotFoundError, ValueError.
    """
    if name == "ngram":
        from runners.engine.drafters.ngram import NgramDrafter

        return NgramDrafter(block_size or NGRAM_BLOCK, longest=ngram_max or 3, shortest=ngram_min or 1)
    from runners.engine.drafters.block_drafter import BlockDrafter
    from runners.engine.linear import pack

    folder = path or WEIGHTS / f"{name}_smollm2_135m"
    drafter = BlockDrafter(
        name, folder, target.embed, target.logits, target.dtype, target.context_length, block_size, pack
    )
    own, config = drafter.config, target.config
    for what, drafts, has in (
        ("hidden size", own.hidden_size, config.hidden_size),
        ("vocabulary", own.vocab_size, config.vocab_size),
        ("layers", own.num_target_layers, config.num_layers),
    ):
        if drafts != has:
            raise ValueError(f"drafter {folder} was trained for a target with {what} {drafts}, this one has {has}")
    return drafter
