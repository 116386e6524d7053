"""Lines of SGLang's log that name a failure, and what to do about each."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Cause = Literal[
    "argument", "setting", "plugin", "weights", "architecture", "wrong_draft", "memory", "host_memory", "port_in_use",
    "kernel", "hang", "stopped", "killed", "died",
]  # fmt: skip


class Signature(NamedTuple):
    cause: Cause
    pattern: re.Pattern[str]
    """Found in one line, tracebacks' source lines excluded."""
    advice: str


def _signature(cause: Cause, advice: str, *patterns: str) -> Signature:
    return Signature(cause, re.compile("|".join(patterns), re.IGNORECASE), advice)


SIGNATURES = (
    # The first that any line matches counts, so the telling ones come first.
    _signature(
        "port_in_use",
        "stop what listens there, or leave runner.port=null",
        r"\[Errno 98\]",
        "address already in use",
        "Port is already in use",
        r"is not available in \d+ seconds",
    ),
    _signature(
        "argument",
        "correct server_args",
        r"error: unrecognized arguments",
        r"error: ambiguous option",
        r"error: argument --[\w-]+",
    ),
    _signature(
        "setting",
        "the target's tokenizer lacks a token of its reasoning parser: target.reasoning_parser=null, in every arm",
        r"think_\w+_token .* must encode to exactly one token",
    ),
    _signature(
        "plugin",
        "the vendor's code does not fit this SGLang: see its traceback",
        r"Failed to (load|execute general) plugin",
    ),
    _signature(
        "plugin",
        "no loaded code has it: correct drafter.algorithm, or serve an image with the vendor's code (drafter.plugin)",
        "Unknown speculative algorithm name",
    ),
    _signature(
        "plugin",
        "+server_args.disable-overlap-schedule=true, in every arm",
        "does not support overlap scheduling",
    ),
    _signature(
        "memory",
        "raise target.mem_fraction_static, in every arm",
        "Loaded weights leave no GPU memory for the KV cache",
        r"Not enough memory\. Please try to increase --mem-fraction-static",
    ),
    _signature(
        "memory",
        "in every arm, raise target.mem_fraction_static or server_args.mamba-full-memory-ratio, or lower "
        "target.max_running_requests",
        "state cache is too small to serve",
    ),
    _signature(
        "memory",
        "lower target.mem_fraction_static, in every arm: what is not reserved is what a step computes in",
        "OutOfMemoryError",
        "CUDA (error: )?out of memory",
    ),
    _signature(
        "host_memory",
        "the machine ran out of memory, not the GPU: free some, or raise the container's limit",
        r"died during initialization \(exit code: -9\)",
    ),
    _signature(
        "weights",
        "accept its licence, and give HF_TOKEN to whatever fetches",
        r"GatedRepoError",
        r"Error: .*Access to model .* is restricted",
    ),
    _signature(
        "weights",
        "the weights are not in the cache and the server is offline: fetch them first, or runner.offline=false",
        "LocalEntryNotFoundError",
        "OfflineModeIsEnabled",
        "couldn't find them in the cached files",
        "cannot find the requested files in the (local|disk) cache",
    ),
    _signature(
        "weights",
        "check the path it names: target.path, or drafter.checkpoints",
        r"Error: .*(Repo id must be|is not a valid model identifier|does not appear to have a file named)",
        r"Error: .*(Cannot find any model weights|No such file or directory: .*(safetensors|config\.json))",
        "RepositoryNotFoundError",
    ),
    _signature(
        "architecture",
        "this SGLang does not have the model: take a newer image",
        "are not supported for now",
        "does not recognize this architecture",
    ),
    _signature(
        "wrong_draft",
        "check drafter.checkpoints: these weights are not a drafter of this target for this algorithm",
        "target_layer_ids contains an out-of-range",
        "feature dim mismatch",
        r"fc\.weight shape mismatch",
        "mask_token_id.* outside",
        "Error: .*markov_(rank|head)",
        "draft forward has no hidden_states",
        "aux hidden capture",
    ),
    _signature(
        "kernel",
        "cuBLAS failed, and less memory does not help: +env.TORCH_BLAS_PREFER_CUBLASLT=1, in every arm",
        "CUBLAS_STATUS_",
    ),
    _signature(
        "kernel",
        "a GPU kernel failed: try another attention backend or image; if it is rare, run again",
        "no kernel image",
        "invalid device function",
        "device-side assert",
        "illegal memory access",
        "NCCL error",
        "nccl(UnhandledCuda|Internal|System)Error",
        "Error: CUDA error",
    ),
    _signature(
        "kernel",
        "the scheduler ended without a Python error, as native code does that does not fit the GPU: try another "
        "attention backend or image",
        r"died during initialization \(exit code: ",
    ),
    _signature(
        "hang",
        "the scheduler stood still: run again; +server_args.watchdog-timeout=<s> where a step is really that long",
        "watchdog timeout",
        "Health check failed",
    ),
)
