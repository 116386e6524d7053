"""What is served: target, drafter, attention, verification. The names are SGLang's where SGLang has one."""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from orchestrator.config.names import ConfigError, nearest
from orchestrator.schema.base import Env, Flags, Model, Name

Dtype = Literal["float32", "bfloat16", "float16"]
Knob = Literal[
    "block_size", "draft_window", "topk", "draft_tokens", "ngram_min", "ngram_max", "dtype", "quantization",
]  # fmt: skip
KNOBS: frozenset[str] = frozenset(get_args(Knob))
"""Drafter keys that only some drafters have."""
Positive = Annotated[int, Field(ge=1)]


class Target(Model):
    """The model whose output is wanted."""

    name: Name
    """Short name; drafters list the targets they were trained for by it."""
    path: str
    """Hugging Face id, a folder, or the name of a packaged model (``smollm2_135m``); see ``paths.local_path``."""
    revision: str | None
    """Commit or tag of the Hugging Face id; None: newest."""
    sha256: str | None
    """Hash of the weights file, where one is known and checked."""
    dtype: Dtype
    quantization: str | None
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
    context_length: Positive
    """Most tokens of a request, prompt included."""
    max_running_requests: Positive
    """Pinned in every arm: unset, SGLang gives a speculating server 48 and a plain one its own figure."""
    mem_fraction_static: Annotated[float, Field(gt=0, lt=1)] | None
    tp_size: Positive
    tokenizer_path: str | None
    chat_template: str | None
    reasoning_parser: str | None
    tool_call_parser: str | None
    trust_remote_code: bool
    server_args: Flags
    env: Env
    plain_tok_s: Annotated[float, Field(gt=0)]
    """Rough speed without a drafter, tokens/s, one request at a time; only the plan's estimate of cost reads it."""


class Checkpoint(Model):
    """Weights of a drafter for one target."""

    path: str | None
    """As ``Target.path``; ``package:<folder>`` lies in this installation. None: none is public."""
    revision: str | None = None
    built_in: bool = False
    """The drafter's weights are part of the target's own checkpoint."""


class Plugin(Model):
    """Vendor code on top of a stock SGLang image."""

    image: str | None
    """Image with the plugin installed; None: it has to be built or named first."""
    entry_point: str
    """Name under which SGLang loads it (``SGLANG_PLUGINS``)."""


class Drafter(Model):
    name: Name
    algorithm: str | None
    """SGLang's ``--speculative-algorithm``; None: no speculation."""
    embedded: str | None
    """Name of the drafter in the embedded engine; None: it has none."""
    uses: Annotated[tuple[Knob, ...], Field(strict=False)]
    """Knobs that this drafter has. The others are dropped before identity is computed."""
    confidence_head: bool
    """Predicts its own acceptance, which ``verification=dynamic`` needs."""
    checkpoints: dict[str, Checkpoint] | None
    """Target name -> weights; None: it needs none and works with every target."""
    block_size: Annotated[int, Field(ge=1, le=64)] | None
    """What the drafter's own documentation calls it; ``block_is`` says what it counts. No drafter, here or in SGLang,
    is trained for more than 64."""
    block_is: Literal["verify_window", "proposed_tokens"] | None
    """``verify_window``: the block holds the anchor, proposed = block - 1.
    ``proposed_tokens``: proposed = block, verify window = block + 1."""
    draft_window: Positive | None
    """Sliding window of the drafter's attention, tokens."""
    topk: Positive | None
    """Branches per step of an EAGLE tree; 1: a chain."""
    draft_tokens: Positive | None
    """Tokens of an EAGLE tree, root included; None: block + 1 (a chain)."""
    ngram_min: Positive | None
    """Shortest context that is looked up, tokens."""
    ngram_max: Positive | None
    """Longest context that is looked up, tokens."""
    dtype: Dtype | None
    """None: the target's."""
    quantization: str | None
    """``unquant`` keeps the drafter from inheriting the target's quantization."""
    plugin: Plugin | None
    server_args: Flags
    env: Env

    @model_validator(mode="after")
    def _proposes_something(self) -> Self:
        if self.speculates and (self.block_size is None or self.block_is is None):
            raise ValueError("a drafter with an algorithm needs block_size and block_is")
        if self.speculates and self.proposed_tokens < 1:
            raise ValueError(
                f"block_size={self.block_size} proposes nothing: the block of {self.name} holds the anchor, so it is "
                "at least 2"
            )
        if self.topk == 1 and self.draft_tokens not in (None, (self.block_size or 0) + 1):
            raise ValueError(f"draft_tokens={self.draft_tokens}: with topk=1 it is block_size + 1, or null")
        return self

    @property
    def speculates(self) -> bool:
        return self.algorithm is not None

    @property
    def verify_window(self) -> int:
        """Tokens the target scores per verification step (static); 1 without speculation."""
        if not self.speculates or self.block_size is None:
            return 1
        if "draft_tokens" in self.uses and self.draft_tokens is not None:
            return self.draft_tokens
        return self.block_size + (self.block_is == "proposed_tokens")

    @property
    def proposed_tokens(self) -> int:
        """Draft tokens proposed per verification step."""
        return self.verify_window - 1

    def checkpoint(self, target: str) -> Checkpoint | None:
        """Weights for this target, None if the drafter needs none; ConfigError for a target it was not trained for."""
        if self.checkpoints is None:
            return None
        if target not in self.checkpoints:
            raise ConfigError(
                f"drafter={self.name}",
                f"has no weights for target={target}",
                allowed=[f"target={name}" for name in self.checkpoints],
                nearest=nearest(target, self.checkpoints),
                hint=f"add your own: +drafter.checkpoints.{target}={{path: <folder>}}",
            )
        return self.checkpoints[target]


class Attention(Model):
    backend: Literal["fa3", "flashinfer", "triton", "intel_amx", "sdpa"]
    draft_backend: Literal["fa3", "flashinfer", "triton", "intel_amx"] | None
    """None: the target's."""


class Verification(Model):
    """How many drafts are verified per step and when one is taken.

    ``static`` verifies the whole block. ``dynamic`` cuts the window where the drafter's confidence head expects no more
    (embedded engine, and vendor code). ``cap_accept`` and ``compact`` are SGLang's own ragged modes (DSPARK only).
    ``relaxed`` takes drafts below the target's threshold: it is not lossless.
    """

    mode: Literal["static", "dynamic", "relaxed", "cap_accept", "compact"]
    confidence_threshold: Annotated[float, Field(ge=0, le=1)] | None
    """dynamic: a position is verified while the probability that all up to it are accepted is at least this."""
    accept_threshold_single: Annotated[float, Field(ge=0, le=1)] | None
    """relaxed: a draft is taken when the target gives it at least this probability."""
    accept_threshold_acc: Annotated[float, Field(ge=0, le=1)] | None
    """relaxed: SGLang's accumulated threshold."""
    sps_table: str | None
    """compact: path of the profiled cost table; without it compact saves nothing."""

    @property
    def lossless(self) -> bool:
        return self.mode != "relaxed"
