"""Every finding by name: how severe it is and what it says. docs/reference/findings.md shows the same list.

error: the figure must not be used as it stands. warning: it can mislead. note: it needs a word of context.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Severity = Literal["error", "warning", "note"]


class Entry(NamedTuple):
    severity: Severity
    says: str
    withholds: bool = False
    """While it stands, no ratio of the comparison is stated."""


def _error(says: str, withholds: bool = False) -> Entry:
    return Entry("error", says, withholds)


def _warning(says: str) -> Entry:
    return Entry("warning", says)


def _note(says: str) -> Entry:
    return Entry("note", says)


CATALOGUE: dict[str, Entry] = {
    # The run as a whole
    "incomplete": _error("trials are missing: a server failed or the run was stopped"),
    "no_plain_arm": _error("nothing to relate speed and tokens to"),
    "missing_arm": _warning("an arm that could not run, or that stopped before a trial was finished"),
    "drift_not_controlled": _warning("`order: once`, or an odd number of repeats"),
    "drift": _warning("an arm's speed changed by more than 2% between the halves of its repeats"),
    "measured_apart": _warning("trials of several runs are combined"),
    "unsteady_machine": _warning("repeats of a prompt on the same arm differ by more than 15% in the median"),
    "few_prompts": _warning("fewer than 6 prompts: no arm is called faster"),
    "failed_requests": _warning("requests that did not end well"),
    "starts_rule": _note("most of a speedup's interval is the spread between server starts"),
    "starts_unknown": _note("the intervals do not cover other starts of the servers"),
    "sequential": _note("`stop.rule: ci_width`: repeats were added until the intervals were narrow"),
    "adopted": _note("nothing was measured anew"),
    "embedded": _note("a small target on a CPU: acceptance is real, speed says nothing about a GPU"),
    # Fairness: what differs between arms outside `varies`
    "unfair_target": _error("another target, or other weights of it", True),
    "unfair_precision": _error("the target computes in another precision", True),
    "unfair_kv_cache_dtype": _error("keys and values are stored in another precision", True),
    "unfair_attention": _error("other attention kernels", True),
    "unfair_parallelism": _error("spread over another number of GPUs", True),
    "unfair_max_running_requests": _error("another limit on requests at once", True),
    "unfair_prefill": _error("prompts are scheduled differently", True),
    "unfair_overlap": _error("overlap of scheduling and computing is on in one arm and off in another", True),
    "unfair_cuda_graphs": _error("CUDA graphs are on in one arm and off in another", True),
    "unfair_prefix_cache": _error("the prefix cache is on in one arm and off in another", True),
    "unfair_sampling": _error("other sampling, or other defaults of it", True),
    "unfair_chat_template": _error("another chat template", True),
    "unfair_thinking": _error("another thinking mode, which moves acceptance more than drafters differ", True),
    "unfair_prompts": _error("the same prompt was sent as different text", True),
    "unfair_requests": _error("other prompts, token limits or sampling", True),
    "unfair_load": _error("another load", True),
    "unfair_engine": _error("another engine or another version of it", True),
    "unfair_hardware": _error("another GPU, driver or device", True),
    "unfair_threads": _error("another number of threads", True),
    "unfair_drafter": _warning("the drafter differs and `varies` does not name it"),
    "unfair_verification": _warning("speculating arms verify in different ways"),
    "unfair_context_length": _warning("another context length, hence other buffers"),
    "unfair_memory": _warning("another share of memory for caches"),
    "unfair_image": _warning("another container image: its kernels may differ"),
    "unfair_streaming": _warning("chunks are cut or held back differently, which moves the stamps"),
    "unfair_cache_hits": _warning("the same prompt found more of itself cached in one arm than in another"),
    "unfair_setting": _warning("any other setting that the servers report differently"),
    "server_remark": _warning("the server's log says that it does not run quite as asked"),
    "restart_differs": _warning("starts of one arm's server report different settings"),
    "graph_sizes": _note("CUDA graphs were captured for other batch sizes, as SGLang does under speculation"),
    "unused_allow": _note("`allow` names a finding that is not there"),
    # Room
    "queued": _warning("more requests in flight than the server runs at once: they queue"),
    "less_room": _note("an arm has less room for caches, or runs fewer requests at once, than the plain arm"),
    "crossover": _note("the concurrency above which speculation no longer pays, in a sweep"),
    "cached_prompts": _warning("prompts found more of themselves in the prefix cache than a common beginning"),
    # The machine
    "busy_machine": _warning("other processes used cores of the server's machine: speeds are rough"),
    "client_bottleneck": _warning("the load client used most of a core, or was late enough to move TTFT or TPOT"),
    "late_releases": _warning("an open loop sent its requests more than 5 ms, or 10% of their mean gap, late (p99)"),
    "telemetry_missing": _warning("nothing was sampled during a trial: what the machine did is not known"),
    "telemetry_gaps": _warning("samples are missing for more than a second of a trial"),
    "throttled": _warning("the GPU throttled for 1% of a trial or more"),
    "clocks_differ": _warning("the GPU's mean clocks differ between arms by more than 3% at the same load"),
    "gpu_shared": _warning("processes that are not the server's held memory of its GPU"),
    "no_gpu_telemetry": _note("NVML could not be asked where the server runs"),
    # The plain arm
    "weak_baseline": _warning("the plain arm decodes at less than 55% of what memory bandwidth allows"),
    "baseline_handicapped": _warning("the plain arm runs without CUDA graphs or without overlap scheduling"),
    "above_ceiling": _warning("the plain arm decodes faster than memory bandwidth allows: one of the two is wrong"),
    # Drafts
    "no_counters": _error("a speculative arm's server returned no counters", True),
    "too_short_to_draft": _error("no answer is long enough for a verification step", True),
    "wrong_drafter": _error("the server reports another drafter than the one asked for", True),
    "wrong_block": _error("another number of tokens was proposed per step than asked for", True),
    "speedup_above_tau": _error(
        "faster after prefill than tokens per step allow: the plain arm is handicapped, or an error", True
    ),
    "counters_contradict": _error("counters that contradict themselves or the stream"),
    "drafter_unproven": _warning("the server does not say with which algorithm it speculates"),
    "totals_disagree": _warning("the server's totals and the requests' counters differ"),
    "tau_near_one": _warning("tau below 1.2: wrong weights, template or layers"),
    "tau_moves_with_load": _warning("tau differs between load points, where it should hardly move"),
    "lossy": _warning("relaxed verification: the output is not the target's"),
    "simulated_acceptance": _warning("the server makes acceptance up (`SGLANG_SIMULATE_ACC_LEN`)"),
    "near_tau": _note("a speedup above tau within its interval: noise"),
    "no_server_totals": _note("the server reports no totals to check the counters with"),
    "chunks_merged": _note("chunks were joined on the way: gaps between them are averages over steps"),
    # Output
    "not_lossless": _error("an arm's tokens differ from the plain arm's without an excuse"),
    "not_compared": _warning("outputs that could not be compared with the plain arm's token by token"),
    "forks_like_plain": _warning("an arm differs from the plain arm no more often than the plain arm from itself"),
    "not_deterministic": _warning("repeats of the plain arm differ"),
    "output_lengths": _warning("the arms' outputs have different lengths"),
    "solved_differs": _warning("an arm did not solve the same prompts as the plain arm, by the suite's checks"),
    "looping_text": _warning("more than 20% of the 4-grams repeat"),
    "past_the_end": _warning("`ignore_eos`: text after the end is degenerate and easy to draft"),
    "greedy_in_effect": _warning("`top_k: 1` at a temperature above 0 is greedy"),
    "cold_start": _warning("no warm-up: the first requests contain compilation and cold caches"),
    "phase_locked": _warning("equal output lengths in a closed loop keep the requests in step"),
    "cut_outputs": _note("outputs that ended at the token limit"),
    "near_tie": _note("a fork that rounding explains"),
    "sampled": _note("temperature above 0: token identity is not expected and not checked"),
}

ERRORS = tuple(code for code, entry in CATALOGUE.items() if entry.severity == "error")
"""What ``allow`` may name."""
