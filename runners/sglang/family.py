"""Which kind of attention a target has, as far as start-up rules depend on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

Family = Literal["gdn", "kda", "attention"]
"""``gdn``, ``kda``: hybrids that keep a recurrent state per request (gated delta net; Kimi delta attention).
``attention``: keys and values only."""

_BY_NAME: tuple[tuple[str, Family], ...] = (
    (r"qwen3[._]?[568](?!\d)", "gdn"),  # Qwen3.5, 3.6, 3.8; Qwen3-8B has a dash there
    (r"qwen3[-_]next", "gdn"),
    (r"kimi[-_]linear", "kda"),
    (r"qwen(2|3)[-_]|llama|smollm|mistral", "attention"),
)
_BY_TYPE: Mapping[str, Family] = {
    "qwen3_5": "gdn",
    "qwen3_5_moe": "gdn",
    "qwen3_next": "gdn",
    "kimi_linear": "kda",
    "qwen2": "attention",
    "qwen3": "attention",
    "llama": "attention",
    "mistral": "attention",
}


def family(path: str, model_config: Mapping[str, Any] | None) -> Family | None:
    """By the target's own ``config.json`` where it is at hand, else by its name; None where neither tells."""
    if model_config is not None and (told := _BY_TYPE.get(str(model_config.get("model_type")))) is not None:
        return told
    name = path.rstrip("/").rpartition("/")[2].lower()
    return next((found for pattern, found in _BY_NAME if re.search(pattern, name)), None)
