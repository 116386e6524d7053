"""Builds experiments and plans for tests of the run loop, without Hydra; the servers are the tests' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.planning.plan import Plan, ServerSession, Trial, session_order, warmup_requests
from orchestrator.schema import (
    ArmConfig,
    Attention,
    Drafter,
    EmbeddedRunner,
    Experiment,
    Load,
    LoadPoint,
    LocalNode,
    Message,
    NoTracking,
    Prompt,
    Suite,
    Target,
    Verification,
)

NO_KNOBS: dict[str, Any] = dict.fromkeys(
    ("block_size", "block_is", "draft_window", "topk", "draft_tokens", "ngram_min", "ngram_max", "dtype",
     "quantization", "plugin", "checkpoints")
)  # fmt: skip


def arm(name: str, suite: Suite, load: Load, **changes: Any) -> ArmConfig:
    """An arm of the embedded engine; the one named ``plain`` has no drafter, the others ngram with block 4."""
    plain = name == "plain"
    knobs = {} if plain else {"block_size": 4, "block_is": "verify_window"}
    fields: dict[str, Any] = {
        "name": name,
        "overrides": (f"drafter={name}",),
        "target": Target(
            name="smollm2_135m", path="smollm2_135m", revision=None, sha256=None, dtype="float32", quantization=None,
            kv_cache_dtype="auto", context_length=2048, max_running_requests=8, mem_fraction_static=None, tp_size=1,
            tokenizer_path=None, chat_template=None, reasoning_parser=None, tool_call_parser=None,
            trust_remote_code=False, server_args={}, env={}, plain_tok_s=20.0,
        ),
        "drafter": Drafter(
            name="none" if plain else name, algorithm=None if plain else "NGRAM", embedded=None if plain else "ngram",
            uses=() if plain else ("block_size",), confidence_head=False, server_args={}, env={},
            **(NO_KNOBS | knobs),
        ),
        "attention": Attention(backend="sdpa", draft_backend=None),
        "verification": Verification(
            mode="static", confidence_threshold=None, accept_threshold_single=None, accept_threshold_acc=None,
            sps_table=None,
        ),
        "suite": suite,
        "load": load,
        "runner": EmbeddedRunner(kind="embedded", threads=2, port=None, ready_timeout_s=60.0, start_s=5.0),
        "node": LocalNode(kind="local", gpus=None, expect_gpu=None),
        "seed": 0,
        "server_args": {},
        "env": {},
    }  # fmt: skip
    return ArmConfig(**(fields | changes))


def suite(prompts: int = 4, repeats: int = 2, tokens: int = 7) -> Suite:
    return Suite(
        name="test_suite", description="Prompts of a test.", repeats=repeats, max_new_tokens={"default": tokens},
        temperature=0.0, top_p=1.0, top_k=-1, seed=0, enable_thinking=None, ignore_eos=False, stop=(),
        prompts=tuple(
            Prompt(
                id=f"p{number}", category="short" if number % 2 else "long",
                messages=(Message(role="user", content=f"prompt {'x' * number}"),),
            )
            for number in range(prompts)
        ),
    )  # fmt: skip


def load(concurrency: tuple[int, ...] = (1,), timeout_s: float = 20.0) -> Load:
    return Load(
        name="single", arrival="closed", concurrency=concurrency, rate=None, endpoint="generate", warmup_requests=1,
        request_timeout_s=timeout_s, stall_timeout_s=timeout_s, client="here", image="spec-orchestrator/client",
    )  # fmt: skip


def comparison(output: Path, *arms: ArmConfig, tag: str = "") -> tuple[Experiment, Plan]:
    """An experiment over the arms (the first is the baseline) and its plan in ABBA order. ``tag`` changes every key."""
    experiment = Experiment(
        name="test_experiment", description="A test.", arms={one.name: one.overrides for one in arms},
        configs={one.name: one for one in arms}, baseline=arms[0].name, varies=("drafter",), order="abba",
        action="run", output=str(output), allow_missing_arms=False, tracking=NoTracking(kind="none"),
    )  # fmt: skip
    sessions = []
    position = 0
    for index, (name, repeats) in enumerate(session_order([one.name for one in arms], arms[0].suite.repeats, "abba")):
        config = experiment.configs[name]
        trials = []
        for repeat in repeats:
            closed = [(concurrency, None) for concurrency in config.load.concurrency or ()]
            for concurrency, rate in [*closed, *((None, rate) for rate in config.load.rate or ())]:
                point = LoadPoint(
                    arrival=config.load.arrival,
                    concurrency=concurrency,
                    rate=rate,
                    endpoint=config.load.endpoint,
                    warmup_requests=warmup_requests(config, concurrency),
                    request_timeout_s=config.load.request_timeout_s,
                    stall_timeout_s=config.load.stall_timeout_s,
                    client=config.load.client,
                )
                key = f"{tag}{name}-c{concurrency or rate}-r{repeat}"
                trials.append(Trial(key, name, index, repeat, point, position))
                position += 1
        sessions.append(ServerSession(index, config, {"engine": "embedded"}, f"{tag}{name}", tuple(trials)))
    return experiment, Plan(f"{tag}comparison", tuple(sessions), {})
