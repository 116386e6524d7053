"""The server config (docs/reference/server_config.md) in types, as far as SGLang is concerned.

Keys are forbidden beyond those here, so that a key added to the server config cannot be dropped on the way to the
command line unnoticed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FlagValue = str | int | float | bool | None


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Target(_Part):
    name: str
    path: str
    revision: str | None
    sha256: str | None
    dtype: str
    quantization: str | None
    kv_cache_dtype: str
    context_length: int
    max_running_requests: int
    mem_fraction_static: float | None
    tp_size: int
    tokenizer_path: str | None
    chat_template: str | None
    reasoning_parser: str | None
    tool_call_parser: str | None
    trust_remote_code: bool


class Plugin(_Part):
    image: str | None
    entry_point: str


class Drafter(_Part):
    name: str
    algorithm: str | None
    proposed_tokens: int
    verify_window: int
    block_size: int | None = None
    draft_window: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    path: str | None = None
    revision: str | None = None
    plugin: Plugin | None = None

    @property
    def lacks_weights(self) -> bool:
        """It has weights of its own, and nobody said where they are."""
        return "path" in self.model_fields_set and self.path is None


class Attention(_Part):
    backend: str
    draft_backend: str | None = None


class Verification(_Part):
    mode: Literal["static", "relaxed", "dynamic", "cap_accept", "compact"]
    confidence_threshold: float | None = None
    accept_threshold_single: float | None = None
    accept_threshold_acc: float | None = None
    sps_table: str | None = None


class ServerConfig(_Part):
    engine: Literal["sglang"]
    target: Target
    drafter: Drafter
    attention: Attention
    verification: Verification | None = None
    runner: dict[str, Any]
    node: dict[str, Any]
    seed: int
    server_args: Annotated[dict[str, FlagValue], Field(strict=True)]
    env: dict[str, str]
