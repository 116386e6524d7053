"""What is read from recorded logs and answers of real servers: why they failed, are they ours, what are they."""

from __future__ import annotations

import pytest

from runners.sglang.failures import classify
from runners.sglang.identity import Memory, identity, problems
from runners.sglang.ready import not_ours, read, served_name
from tests.unit.sglang_arms import LOGS, config, log, server_info

EXPECTED = {
    # log: cause, stage, part of what the log said, part of what to do
    "bad-choice": ("argument", "starting", "invalid choice: 'nope'", "server_args"),
    "bad-draft-path": ("weights", "starting", "'/no/such/draft'", "check the path it names"),
    "bad-target-path": ("weights", "starting", "'/no/such/model'", "check the path it names"),
    "container-stopped": ("stopped", "ready", "", "SIGTERM"),
    "dflash-block-conflict": ("setting", "starting", "For DFLASH they must match", "refuses a setting"),
    "dflash-block-zero": ("setting", "starting", "to be positive, got 0", "refuses a setting"),
    "dflash-draft-is-plain-qwen3": (
        "wrong_draft",
        "capturing CUDA graphs (draft verify)",
        "the draft forward has no hidden_states",
        "not a drafter of this target",
    ),
    "dflash-given-dspark-draft": ("stopped", "ready", "", "SIGTERM"),
    "dflash-hidden-mismatch": ("wrong_draft", "starting its processes", "out-of-range layer id", "drafter.checkpoints"),
    "dflash-mask-not-in-vocab": ("stopped", "ready", "", "SIGTERM"),
    "dflash-no-draft": ("setting", "starting", "requires setting --speculative-draft-model-path", "refuses a setting"),
    "dspark-8b-graph-capture-cublas": (
        "kernel",
        "capturing CUDA graphs (draft verify)",
        "CUBLAS_STATUS_EXECUTION_FAILED",
        "TORCH_BLAS_PREFER_CUBLASLT=1",
    ),
    "dspark-8b-graph-capture-cublas-mem0.8-eager-modules": (
        "kernel",
        "capturing CUDA graphs (draft verify)",
        "CUBLAS_STATUS_EXECUTION_FAILED",
        "less memory does not help",
    ),
    "dspark-gamma-conflict": ("setting", "starting", "must equal gamma + 1", "refuses a setting"),
    "dspark-given-dflash-draft": ("wrong_draft", "starting its processes", "markov_rank > 0", "drafter.checkpoints"),
    "fa3-kernel-image-invalid-scheduler-exit1": (
        "kernel",
        "capturing CUDA graphs (target prefill)",
        "scheduler died during initialization (exit code: 1)",
        "another attention backend",
    ),
    "flashinfer-jit-slow-load-sigterm": ("killed", "capturing CUDA graphs (target prefill)", "", "ended from outside"),
    "mem-fraction-too-low-8b": (
        "memory",
        "loading the target",
        "--mem-fraction-static=0.05",
        "above 0.168, in every arm",
    ),
    "no-memory-for-kv-dflash": ("memory", "loading the drafter", "leave no GPU memory", "above 0.090, in every arm"),
    "parent-sigkill-while-serving": ("killed", "ready", "", "ended from outside"),
    "port-in-use": ("port_in_use", "listening nowhere", "[Errno 98]", "runner.port=null"),
    "reasoning-parser-no-think-token": (
        "setting",
        "capturing CUDA graphs (draft verify)",
        "think_end_token '</think>'",
        "target.reasoning_parser=null",
    ),
    "sigterm-during-load": ("killed", "loading the target", "", "ended from outside"),
    "small-kv-pool-512": ("stopped", "ready", "", "SIGTERM"),
    "unknown-algorithm": ("plugin", "starting", "Unknown speculative algorithm name: FOO", "drafter.algorithm"),
    "unknown-flag": ("argument", "starting", "unrecognized arguments: --no-such-flag 1", "server_args"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_why_a_recorded_server_failed(name: str) -> None:
    cause, stage, said, advice = EXPECTED[name]
    found = classify(log(name))
    assert (found.cause, found.stage) == (cause, stage)
    assert said in found.said and (bool(said) == bool(found.said))
    assert advice in found.advice
    assert found.served == (stage == "ready")
    assert found.advice in str(found) and found.said in str(found)


def test_every_recorded_log_is_judged() -> None:
    recorded = {file.stem for file in LOGS.glob("*.log")}
    assert recorded == {*EXPECTED, *(f"ready-{name}" for name in STARTED)}


STARTED = {
    # log: architecture of the drafter's weights, then GB: the target's weights, the drafter's, their two caches, graphs
    "fa3-8b-base": (None, 15.28, None, 95.98, None, 1.38),
    "fa3-8b-dflash": ("DFlashDraftModel", 15.28, 1.95, 82.48, 11.46, 2.44),
    "fa3-8b-dspark": ("Qwen3DSparkModel", 15.28, 2.10, 82.42, 11.44, 2.29),
    "qwen3-8b-baseline": (None, 15.28, None, 110.86, None, 1.37),
    "qwen3-8b-dflash": ("DFlashDraftModel", 15.28, 1.95, 95.56, 13.28, 2.63),
    "qwen3-8b-dspark": ("Qwen3DSparkModel", 15.28, 2.10, 82.42, 11.44, 2.38),
    "qwen35-27b-hybrid-baseline": (None, 48.49, None, 33.06, None, 2.97),
    "qwen35-27b-hybrid-dflash": ("DFlashDraftModel", 48.49, 3.38, 24.38, 7.62, 4.77),
    "smoke-fa3-dspark": ("Qwen3DSparkModel", 15.28, 2.10, 82.42, 11.44, 2.29),
    "smoke-fi-dflash": ("DFlashDraftModel", 15.28, 1.95, 82.48, 11.46, 2.77),
    "tiny-base-coldcache": (None, 0.35, None, 41.30, None, 0.30),
    "tiny-dspark-coldcache": ("Qwen3DSparkModel", 0.35, 0.15, 32.92, 8.24, 0.52),
}


@pytest.mark.parametrize("name", STARTED)
def test_what_a_start_says(name: str) -> None:
    architecture, *sizes = STARTED[name]
    lines = log(f"ready-{name}").splitlines()
    start = read(lines)
    assert start.ready and start.port == 30000 and start.pid is not None
    found = identity({}, lines)
    memory = found.memory
    assert found.draft_architecture == architecture
    told = [memory.target_weights, memory.draft_weights, memory.kv_cache, memory.draft_kv_cache, memory.graphs]
    assert told == pytest.approx(sizes)
    assert (memory.state_cache is not None) == ("hybrid" in name)
    served = classify(log(f"ready-{name}"))
    assert (served.cause, served.served, served.said) == ("killed", True, ""), "it ends there, and nothing was wrong"


SERVING = log("ready-qwen3-8b-dflash")
CRASH = "[2026-11-30 21:31:00] Scheduler hit an exception: Traceback (most recent call last):\n    source line\n"
LINES = {
    # A line as SGLang or a library prints it (read from their sources, not recorded) -> cause, part of what to do
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.": ("memory", "lower target.mem_fraction"),
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.": (
        "memory",
        "raise target.mem_fraction",
    ),
    "RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any request": (
        "memory",
        "mamba-full-memory-ratio",
    ),
    "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is": (
        "host_memory",
        "not the GPU",
    ),
    "ValueError: Model architectures ['NewForCausalLM'] are not supported for now. Supported": (
        "architecture",
        "newer image",
    ),
    "ValueError: The checkpoint you are trying to load has model type `new` but Transformers does not recognize this "
    "architecture.": ("architecture", "newer image"),
    "RuntimeError: DFLASH fc.weight shape mismatch": ("wrong_draft", "drafter.checkpoints"),
    "ValueError: DSpark mask_token_id=151670 is outside the target vocab size 151669.": ("wrong_draft", "drafter"),
    "huggingface_hub.errors.GatedRepoError: 403 Client Error.": ("weights", "HF_TOKEN"),
    "huggingface_hub.errors.LocalEntryNotFoundError: An error happened": ("weights", "fetch them first"),
    "OSError: We couldn't connect to the hub to load the files, and couldn't find them in the cached files.": (
        "weights",
        "offline",
    ),
    "ValueError: --enable-linear-replayssm-spec with DSPARK/DFLASH requires a KDA model; got a non-KDA model.": (
        "setting",
        "refuses a setting",
    ),
    "torch.AcceleratorError: CUDA error: device-side assert triggered": ("kernel", "GPU kernel failed"),
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:77": ("kernel", "GPU kernel failed"),
    "[2026-11-30 21:31:00] Scheduler watchdog timeout (self.watchdog_timeout=300.0)": ("hang", "stood still"),
    "KeyError: 'layers.3.weight'": ("died", "see its log"),
}


@pytest.mark.parametrize("line", LINES)
def test_lines_that_were_not_recorded(line: str) -> None:
    cause, advice = LINES[line]
    loading = classify(log("sigterm-during-load") + CRASH + line + "\n")
    assert (loading.cause, loading.served) == (cause, False) and advice in loading.advice
    serving = classify(SERVING + CRASH + line + "\n")
    assert (serving.cause, serving.served) == (cause, True)


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ("[.] Failed to load plugin dspine from group x\nValueError: Unknown speculative algorithm name: D", "plugin"),
        ("ValueError: Speculative algorithm DSPINE does not support overlap scheduling.", "plugin"),
        ("sglang serve: error: ambiguous option: --cuda-graph-max-bs could match --cuda", "argument"),
        ("[.] Port 30001 is already in use, trying port 30002\nKeyError: 'x'", "died"),
        ("[.] server_args=ServerArgs(model_path='CUDA out of memory')\nAssertionError", "setting"),
        ("[.] Failed to load generation config: m does not appear to have a file named generation.json", "killed"),
        ("    raise RuntimeError('CUDA out of memory')\nKeyError: 'x'", "died"),
    ],
)  # fmt: skip
def test_what_tells_comes_before_what_follows_from_it(lines: str, cause: str) -> None:
    assert classify(lines).cause == cause


def test_the_error_of_a_request_is_not_the_end_of_a_server() -> None:
    answered = (
        SERVING + "Traceback (most recent call last):\nValueError: Input length (900 tokens) exceeds the maximum\n"
    )
    assert classify(answered).cause == "killed"


def test_memory_that_a_graph_lacks_has_a_second_way_out() -> None:
    captured = "\n".join(log("dspark-8b-graph-capture-cublas").splitlines()[:24])
    found = classify(captured + "\n" + CRASH + "torch.OutOfMemoryError: CUDA out of memory.")
    assert found.advice.endswith("or lower server_args.cuda-graph-max-bs-decode")


READY = {"dflash-given-dspark-draft": 31560, "parent-sigkill-while-serving": 30700, "container-stopped": 30000}


@pytest.mark.parametrize("name", READY)
def test_a_log_that_says_ready(name: str) -> None:
    start = read(log(name).splitlines())
    assert start.ready and start.port == READY[name]


@pytest.mark.parametrize("name", [name for name, expected in EXPECTED.items() if expected[1] != "ready"])
def test_a_log_that_does_not(name: str) -> None:
    assert not read(log(name).splitlines()).ready


def test_the_line_alone_is_no_proof() -> None:
    """The port was taken: the warm-up talked to the other server, and the line came all the same."""
    start = read(log("port-in-use").splitlines())
    assert start.fired_up and not start.ready
    told = not_ours({"served_model_name": "other"}, start, "ours-1", 30500, 42)
    assert told[0] == "its log says that port 30500 was taken when it wanted to listen"
    assert "served_model_name: started with 'ours-1', answers 'other'" in told


def test_only_the_server_that_was_started_is_ours() -> None:
    info, start = server_info("qwen3-8b-dflash"), read(SERVING.splitlines())
    name = str(info["served_model_name"])
    assert not_ours(info, start, name, 30000, 42) == []
    assert start.pid is not None
    assert not_ours(info, start, name, 30000, 42, [1, start.pid]) == []
    assert not_ours(info, start, name, 30000, 42, [1]) == [
        f"process {start.pid} of its log is none of those that were started"
    ]
    assert not_ours(info, start, "another", 30000, 7) == [
        f"served_model_name: started with 'another', answers {name!r}",
        "random_seed: started with 7, answers 42",
    ]
    assert "listens on port 30001" in not_ours(info, start, name, 30001, 42)[0]
    assert len(not_ours({}, start, name, 30000, 42)) == 3, "an answer that says nothing proves nothing"


def test_a_served_name_is_made_once() -> None:
    assert served_name("qwen3_8b") != served_name("qwen3_8b") and served_name("qwen3_8b").startswith("qwen3_8b-")


def test_the_stages_of_a_start() -> None:
    start = read([])
    stages = [start.stage]
    for line in SERVING.splitlines():
        start.feed(line)
        if start.stage != stages[-1]:
            stages.append(start.stage)
    assert stages == [
        "starting", "starting its processes", "setting up the GPU", "loading the target", "setting up the GPU",
        "loading the drafter", "allocating caches", "capturing CUDA graphs (target prefill)",
        "capturing CUDA graphs (target verify)", "capturing CUDA graphs (draft verify)", "warming up", "ready",
    ]  # fmt: skip


def test_what_a_server_is() -> None:
    found = identity(server_info("qwen3-8b-dflash"), SERVING.splitlines())
    assert (found.version, found.algorithm, found.verify_window) == ("0.5.16", "DFLASH", 16)
    assert found.draft_architecture == "DFlashDraftModel"
    assert (found.token_capacity, found.max_running_requests) == (695886, 48)
    assert found.memory == Memory(15.28, 1.95, 95.56, 13.28, None, None, 2.63)
    plain = identity(server_info("qwen3-8b-baseline"), [])
    assert (plain.algorithm, plain.verify_window, plain.draft_architecture) == (None, None, None)
    assert (plain.memory.target_weights, plain.memory.kv_cache) == (15.28, 110.87), "/server_info has these too"


def test_a_hybrid_keeps_states_and_runs_fewer_requests_than_asked_for() -> None:
    found = identity(server_info("qwen35-27b-hybrid-dflash"), log("ready-qwen35-27b-hybrid-dflash").splitlines())
    assert found.memory.state_cache == pytest.approx(0.13 + 6.61 + 22.50 + 0.16)
    assert (found.memory.target_weights, found.memory.draft_weights) == (48.49, 3.38)
    assert found.max_running_requests == 9


def test_figures_of_the_other_gpus_are_not_added() -> None:
    line = "[2026-11-30 21:24:50 TP{}] Load weight end. elapsed=0.08 s, type={}, avail mem=1.00 GB, mem usage={} GB."
    two = [
        line.format(rank, kind, size)
        for kind, size in (("Qwen3ForCausalLM", 8), ("DFlashDraftModel", 1))
        for rank in (0, 1)
    ]
    found = identity({}, two)
    assert (found.memory.target_weights, found.memory.draft_weights) == (8.0, 1.0)
    assert found.draft_architecture == "DFlashDraftModel"


def test_the_caches_of_newer_versions() -> None:
    """As the sources of 0.5.20 and 0.5.23 print them: pools with a name, and a second size once graphs are captured."""
    pools = [
        "[.] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 10, K size: 1.00 GB, V size: 1.00 GB",
        "[.] Memory pool end. avail mem=9.00 GB",
        "[.] Full KV Cache is allocated. dtype: torch.bfloat16, #tokens: 10, KV size: 0.25 GB",
        "[.] SWA KV Cache is allocated. dtype: torch.bfloat16, #tokens: 10, K size: 0.10 GB, V size: 0.10 GB",
        "[.] Memory pool end. avail mem=8.00 GB",
    ]
    memory = identity({}, pools).memory
    assert (memory.kv_cache, memory.draft_kv_cache) == (2.0, 0.45)
    resized = [
        "[.] KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 99, K size: 50.00 GB, V size: 50.00 GB",
        "[.] Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 9, KV size: 3.00 GB, avail",
    ]
    memory = identity({}, resized).memory
    assert (memory.kv_cache, memory.draft_kv_cache) == (3.0, None)
    draft = "[.] Post-capture KV sizing: draft KV cache allocated. dtype: torch.bfloat16, #tokens: 10, KV size: 0.50 GB"
    memory = identity({}, [*resized, draft]).memory
    assert (memory.kv_cache, memory.draft_kv_cache) == (3.0, 0.5)


def test_a_replay_ring_is_counted() -> None:
    ring = "[.] GDN ReplaySSM ring buffers allocated (record_len=32, fold=False): d=1.250GB, k=0.500GB, g=0.010GB "
    assert identity({}, [ring]).memory.replay_ring == 1.76


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[.] DSpark gamma mismatch: using gamma=4 but draft config block_size=7.",
         "the drafter was trained at another block size (using gamma=4 but draft config block_size=7)"),
        ("[.] max_running_requests is capped to 2 by the mamba state cache (max_mamba_cache_size=10, 5",
         "the state cache holds 2 requests at once, fewer than asked for"),
        ("[.] Disable DFLASH draft cuda graph because",
         "the drafter runs without CUDA graphs: too little memory was left"),
    ],
)  # fmt: skip
def test_what_a_log_only_warns_of_is_told(line: str, told: str) -> None:
    assert identity({}, [line, line]).remarks == (told,)


def test_a_wrong_drafter_that_serves_is_found_in_the_log_only() -> None:
    mask = identity({}, log("dflash-mask-not-in-vocab").splitlines())
    assert any("not in the target's vocabulary" in remark for remark in mask.remarks)
    asked = config(drafter="dflash")
    info = {
        "speculative_algorithm": "DFLASH", "speculative_num_draft_tokens": 16,
        "speculative_draft_model_path": "z-lab/Qwen3-8B-DFlash-b16",
    }  # fmt: skip
    right = identity(info, SERVING.splitlines())
    assert problems(asked, info, right) == []
    wrong = identity(info, log("dflash-given-dspark-draft").splitlines())
    assert problems(asked, info, wrong) == ["the drafter's weights are a Qwen3DSparkModel, not DFlashDraftModel"]
    first = config("target=qwen3_8_27b", drafter="dflash2")
    told = problems(first, {}, identity({}, SERVING.splitlines()))
    assert told == ["the drafter's weights are a DFlashDraftModel, not DFlash2DraftModel"]


def test_what_the_server_reports_is_held_to_the_config() -> None:
    asked = config(drafter="dspark")
    info = server_info("qwen3-8b-dspark") | {"speculative_algorithm": "DFLASH"}
    told = problems(asked, info, identity(info, log("ready-qwen3-8b-dspark").splitlines()))
    assert any("speculative_algorithm is DFLASH, asked for was DSPARK" in problem for problem in told)
    hybrid = server_info("qwen35-27b-hybrid-dflash")
    hybrid["internal_states"][0]["effective_max_running_requests_per_dp"] = 2
    few = problems(config(), {"internal_states": hybrid["internal_states"]}, identity(hybrid, []))
    assert few == ["it runs 2 requests at once, target.max_running_requests is 4"]
    renamed = config("drafter.algorithm=NEXTN", drafter="mtp")
    reported = {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}
    assert problems(renamed, reported, identity(reported, [])) == []
