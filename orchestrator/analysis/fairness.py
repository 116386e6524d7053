"""Fairness lint: what differs between the arms that the experiment does not say may differ.

Three sources, one list of names. The *configuration* is known before anything is started, so an error found in it
refuses the run. What the *servers report* of themselves is what counts: SGLang rewrites its own settings under
speculation (it gives a speculating server 48 requests at once where a plain one keeps its own figure, turns mixed
chunks off, falls back to another kernel). And what was *sent*: the same prompt must have been the same text
everywhere.

Only what changes the work or its share of the machine is named; the rest of a server's some four hundred settings is
``unfair_setting``. What belongs to one start (ports, times) or follows from the drafter (every ``speculative_*``) is no
difference. Neither is what the experiment varies, nor a flag that the drafter's own file sets where ``drafter`` varies.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from orchestrator.config.names import ConfigError
from orchestrator.measuring.records import RequestRecord
from orchestrator.planning.plan import unexpected_differences, within
from orchestrator.schema import Experiment

Values = dict[str, Any]
"""Arm -> value."""


class Difference(NamedTuple):
    code: str
    """Finding under which it is told."""
    keys: dict[str, Values]
    """Config key or key of the server's report -> arm -> value."""


OTHER = "unfair_setting"
RESTART = "restart_differs"

_CONFIGURED = {
    "target": "unfair_target",
    "target.dtype": "unfair_precision",
    "target.quantization": "unfair_precision",
    "target.kv_cache_dtype": "unfair_kv_cache_dtype",
    "target.context_length": "unfair_context_length",
    "target.max_running_requests": "unfair_max_running_requests",
    "target.mem_fraction_static": "unfair_memory",
    "target.tp_size": "unfair_parallelism",
    "target.chat_template": "unfair_chat_template",
    "target.reasoning_parser": "unfair_streaming",
    "target.tool_call_parser": "unfair_streaming",
    "target.server_args": OTHER,
    "target.env": OTHER,
    "attention": "unfair_attention",
    "verification": "unfair_verification",
    "drafter": "unfair_drafter",
    "suite": "unfair_requests",
    "suite.enable_thinking": "unfair_thinking",
    "load": "unfair_load",
    "runner": OTHER,
    "runner.image": "unfair_image",
    "runner.threads": "unfair_threads",
    "node": "unfair_hardware",
    "seed": OTHER,
    "server_args": OTHER,
    "env": OTHER,
}
"""Config key -> finding; the longest beginning counts."""

_REPORTED: tuple[tuple[str, str, str], ...] = (
    # Pattern of the reported key, finding, config key that may declare it in `varies`. The first that matches counts.
    ("model_path", "unfair_target", "target.path"),
    ("weights_sha256", "unfair_target", "target.path"),
    ("revision", "unfair_target", "target.revision"),
    ("tokenizer_*", "unfair_target", "target.tokenizer_path"),
    ("load_format", "unfair_target", "target.path"),
    ("json_model_override_args", "unfair_target", "target"),
    ("dtype", "unfair_precision", "target.dtype"),
    ("quantization", "unfair_precision", "target.quantization"),
    ("torchao_config", "unfair_precision", "target.quantization"),
    ("enable_*fp32*", "unfair_precision", "target.dtype"),
    ("enable_tf32_matmul", "unfair_precision", "target.dtype"),
    ("kv_cache_dtype", "unfair_kv_cache_dtype", "target.kv_cache_dtype"),
    ("mamba_ssm_dtype", "unfair_kv_cache_dtype", "target.server_args"),
    ("*attention_backend", "unfair_attention", "attention.backend"),
    ("linear_attn_*backend", "unfair_attention", "attention.backend"),
    ("mamba_backend", "unfair_attention", "attention.backend"),
    ("tp_size", "unfair_parallelism", "target.tp_size"),
    ("?p_size", "unfair_parallelism", "target.tp_size"),
    ("*_?p_size", "unfair_parallelism", "target.tp_size"),
    ("enable_dp_*", "unfair_parallelism", "target.server_args"),
    ("max_running_requests", "unfair_max_running_requests", "target.max_running_requests"),
    ("context_length", "unfair_context_length", "target.context_length"),
    ("chunked_prefill_size", "unfair_prefill", "target.server_args"),
    ("max_prefill_tokens", "unfair_prefill", "target.server_args"),
    ("enable_mixed_chunk", "unfair_prefill", "target.server_args"),
    ("enable_dynamic_chunking", "unfair_prefill", "target.server_args"),
    ("min_free_slots_delay", "unfair_prefill", "target.server_args"),
    ("*prefill_delayer*", "unfair_prefill", "target.server_args"),
    ("disable_overlap_schedule", "unfair_overlap", "target.server_args"),
    ("enable_*_batch_overlap", "unfair_overlap", "target.server_args"),
    ("num_continuous_decode_steps", "unfair_overlap", "target.server_args"),
    ("disable_*cuda_graph", "unfair_cuda_graphs", "target.server_args"),
    ("cuda_graph_backend_*", "unfair_cuda_graphs", "target.server_args"),
    ("cuda_graph_config.*.backend", "unfair_cuda_graphs", "target.server_args"),
    ("cuda_graph_*", "graph_sizes", "target.server_args"),
    ("disable_radix_cache", "unfair_prefix_cache", "target.server_args"),
    ("enable_hierarchical_cache", "unfair_prefix_cache", "target.server_args"),
    ("sampling_*", "unfair_sampling", "target.server_args"),
    ("preferred_sampling_params", "unfair_sampling", "target.server_args"),
    ("*chat_template*kwargs*", "unfair_thinking", "suite.enable_thinking"),
    ("enable_strict_thinking", "unfair_thinking", "suite.enable_thinking"),
    ("*chat_template*", "unfair_chat_template", "target.chat_template"),
    ("completion_template", "unfair_chat_template", "target.chat_template"),
    ("reasoning_parser", "unfair_streaming", "target.reasoning_parser"),
    ("tool_call_parser", "unfair_streaming", "target.tool_call_parser"),
    ("*stream_*", "unfair_streaming", "target.server_args"),
    ("*streaming_*", "unfair_streaming", "target.server_args"),
    ("mem_fraction_static", "unfair_memory", "target.mem_fraction_static"),
    ("max_total_tokens", "unfair_memory", "target.server_args"),
    ("max_mamba_cache_size", "unfair_memory", "target.server_args"),
    ("mamba_full_memory_ratio", "unfair_memory", "target.server_args"),
    ("random_seed", OTHER, "seed"),
    ("version", "unfair_engine", "runner.image"),
    ("engine", "unfair_engine", "runner"),
    ("torch_version", "unfair_engine", "runner.image"),
    ("linear_backend", "unfair_engine", "runner"),
    ("image*", "unfair_image", "runner.image"),
    ("gpu*", "unfair_hardware", "node"),
    ("driver*", "unfair_hardware", "node"),
    ("device", "unfair_hardware", "node"),
    ("threads", "unfair_threads", "runner.threads"),
    ("*", OTHER, "target.server_args"),
)

_OF_ONE_START = (
    "launch_command", "startup_time*", "port", "host", "pid", "nccl_port", "dist_init_addr", "start_*", "status",
    "served_model_name", "internal_states*",
    "last_gen_throughput", "kv_events", "log_*", "*log_level*", "crash_dump_folder", "*api_key", "max_total_num_tokens",
    "max_req_input_len", "server_log*", "_*", "pp_max_micro_batch_size", "gpu_uuid*", "base_gpu_id",
)  # fmt: skip
"""Belongs to one start, or is room left (told as capacity): no difference of what was asked for."""
_OF_THE_DRAFTER = (
    "speculative_*", "max_speculative_*", "drafter*", "block_size", "ngram_*", "lossless", "verification_mode",
    "confidence_threshold", "spec_*", "decoupled_spec_*", "enable_multi_layer_eagle",
)  # fmt: skip
_VERIFICATION = ("speculative_accept_threshold_*", "verification_mode", "confidence_threshold")
"""Of these, what the speculating arms must share unless ``verification`` varies."""


def configured(differences: Mapping[str, Values]) -> list[Difference]:
    """Differences of the configuration outside ``varies`` (``plan.unexpected_differences``), by finding."""
    return _grouped((_configured_code(key), key, values) for key, values in differences.items())


def refuses(code: str, allow: Sequence[str]) -> bool:
    """Whether a difference found under this name makes a comparison one that is refused."""
    from orchestrator.findings.catalogue import CATALOGUE

    return CATALOGUE[code].withholds and code not in allow


def refuse(experiment: Experiment) -> None:
    """Raises ConfigError where the configuration alone makes the comparison one that would be refused."""
    from orchestrator.findings.catalogue import CATALOGUE

    for code, keys in configured(unexpected_differences(experiment)):
        if not refuses(code, experiment.allow):
            continue
        varies = ",".join([*experiment.varies, *keys])
        raise ConfigError(
            ", ".join(keys),
            f"differs between the arms ({told(keys)}), which makes the comparison unfair: {CATALOGUE[code].says}",
            hint=(
                f"to compare all the same, allow=[{code}]; for one comparison per value, -m key=VALUE1,VALUE2"
                if any(key.partition(".")[0] in ("suite", "load") for key in keys)
                else f"if that is the question, varies=[{varies}]; to compare all the same, allow=[{code}]"
            ),
        )


def reported(
    identities: Mapping[str, Sequence[Mapping[str, Any]]],
    varies: Sequence[str],
    flags: Mapping[str, Iterable[str]],
    speculating: Iterable[str],
) -> list[Difference]:
    """What the servers report otherwise of each other, by finding.

    ``identities``: arm -> what each of its starts reported. ``flags``: arm -> server flags that its drafter's file
    sets. A key that only some of the servers report is compared among those.
    """
    starts = {arm: [dict(_flat(identity)) for identity in own] for arm, own in identities.items() if own}
    speculating = set(speculating)
    found: list[tuple[str, str, Values]] = []
    for key in sorted({key for own in starts.values() for start in own for key in start}):
        if _matches(key, _OF_ONE_START):
            continue
        seen = {arm: [start[key] for start in own if key in start] for arm, own in starts.items()}
        seen = {arm: values for arm, values in seen.items() if values}
        changed = {arm: values for arm, values in seen.items() if any(value != values[0] for value in values)}
        if changed:
            found.append((RESTART, key, {arm: " then ".join(map(str, values)) for arm, values in changed.items()}))
        values = {arm: values[0] for arm, values in seen.items()}
        if _matches(key, _OF_THE_DRAFTER):
            if not _matches(key, _VERIFICATION):
                continue
            values = {arm: value for arm, value in values.items() if arm in speculating}
            code, config = "unfair_verification", "verification"
        else:
            code, config = next((code, config) for pattern, code, config in _REPORTED if fnmatchcase(key, pattern))
            if "drafter" in varies:
                values = {arm: value for arm, value in values.items() if not _sets(flags.get(arm, ()), key)}
        if _differ(values) and not _declared(key, config, varies):
            found.append((code, key, values))
    return _grouped(found)


def sent(by_arm: Mapping[str, Sequence[RequestRecord]], varies: Sequence[str]) -> list[Difference]:
    """Prompts that reached the arms as different text, or as a different number of tokens where the server applies the
    chat template itself."""
    if "target" in varies:
        return []
    prompts: defaultdict[str, dict[str, tuple[str, int | None]]] = defaultdict(dict)
    for arm, records in by_arm.items():
        for record in records:
            prompts[record.prompt_id].setdefault(arm, (record.prompt_sha256[:12], record.prompt_tokens))
    found = []
    for prompt, arms in prompts.items():
        texts = {arm: f"text {digest}" for arm, (digest, _) in arms.items()}
        counts = {arm: f"{count} tokens" for arm, (_, count) in arms.items() if count is not None}
        if _differ(texts):
            found.append(("unfair_prompts", prompt, texts))
        elif _differ(counts):
            found.append(("unfair_prompts", prompt, counts))
    return _grouped(found)


def told(keys: Mapping[str, Values], most: int = 4) -> str:
    """The differences in words: ``kv_cache_dtype: plain auto, dspine fp8_e4m3``."""
    parts = [f"{key}: {', '.join(f'{arm} {value}' for arm, value in own.items())}" for key, own in keys.items()]
    rest = f"; and {len(parts) - most} more" if len(parts) > most else ""
    return "; ".join(parts[:most]) + rest


def _configured_code(key: str) -> str:
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        code = _CONFIGURED.get(".".join(parts[:length]))
        if code == OTHER and length < len(parts):  # a free flag has the name under which the server reports it
            flag = parts[length].replace("-", "_")
            return next(code for pattern, code, _ in _REPORTED if fnmatchcase(flag, pattern))
        if code is not None:
            return code
    return OTHER


def _grouped(found: Iterable[tuple[str, str, Values]]) -> list[Difference]:
    groups: dict[str, dict[str, Values]] = {}
    for code, key, values in found:
        groups.setdefault(code, {})[key] = values
    return [Difference(code, keys) for code, keys in groups.items()]


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, json.dumps(value) if isinstance(value, list) else value


def _matches(key: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def _sets(flags: Iterable[str], key: str) -> bool:
    return key.partition(".")[0] in {flag.replace("-", "_") for flag in flags}


def _differ(values: Mapping[str, Any]) -> bool:
    return len(values) > 1 and any(value != next(iter(values.values())) for value in values.values())


def _declared(key: str, config: str, varies: Sequence[str]) -> bool:
    """Whether a reported key is among what varies: through its config key, or as a free flag."""
    flags = {name.rpartition(".")[2].replace("-", "_") for name in varies if "server_args." in name}
    free = config.endswith("server_args") and ("server_args" in varies or key.partition(".")[0] in flags)
    return free or within(config, varies)
