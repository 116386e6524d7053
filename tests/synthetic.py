"""SYNTHETIC runs for tests: records and facts built by code, with a known acceptance and a known speed. Nothing here
was measured, and no figure of it may be quoted."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.analysis.facts import ArmFacts, Facts, SessionFacts, TrialFacts
from orchestrator.analysis.results import Published, PublishedArm
from orchestrator.measuring.records import RequestRecord, SpecCounters
from orchestrator.measuring.server_totals import Reading, TrialTotals

LIMIT = 64
PROMPTS = [(f"{kind}-{index}", kind) for kind in ("short", "long") for index in range(1, 9)]


@dataclass(frozen=True)
class SyntheticArm:
    """``hit``: chance that a draft is right where all before it were; a step costs ``fixed + per_token * window``."""

    name: str
    drafter: str
    block_size: int | None = None
    proposed: int = 0
    hit: float = 0.0
    fixed_s: float = 0.042
    per_token_s: float = 0.0012
    rss: int = 620 * 2**20


ARMS = (
    SyntheticArm("plain", "none"),
    SyntheticArm("dflash2", "dflash2", 8, 7, 0.66, 0.047, rss=702 * 2**20),
    SyntheticArm("dspine", "dspine", 16, 15, 0.74, 0.052, rss=731 * 2**20),
)

PUBLISHED = Published(
    title="synthetic published figures",
    machine="1x GPU of a test",
    setting="another target, one request at a time",
    notes=["Built by a test."],
    arms={
        "plain": PublishedArm(tok_s={"overall": 33}),
        "dflash2": PublishedArm(tok_s={"overall": 129, "short": 133, "long": 128}, tok_s_range=(91, 168)),
        "dspine": PublishedArm(
            tok_s={"overall": 150, "short": 152, "long": 150}, tok_s_range=(88, 227), tau={"GSM8K": 7.2}
        ),
    },
)


def records(
    arms: tuple[SyntheticArm, ...] = ARMS, repeats: int = 2, concurrencies: tuple[int, ...] = (1,), seed: int = 7
) -> list[RequestRecord]:
    """Every arm on every prompt, ABBA over sessions; the same prompt has the same output in every arm."""
    order = [*range(len(arms)), *reversed(range(len(arms)))]
    result = []
    for session, index in enumerate(order[: len(arms) * repeats]):
        for concurrency in concurrencies:
            repeat = session // len(arms)
            rng = random.Random(f"{seed}-{session}-{concurrency}")
            clock = 0.0
            for prompt, category in PROMPTS:
                record = _request(arms[index], session, repeat, prompt, category, concurrency, clock, rng, seed)
                clock += (record.e2e_s or 0.0) / concurrency
                result.append(record)
    return result


def facts(arms: tuple[SyntheticArm, ...] = ARMS, repeats: int = 2, concurrencies: tuple[int, ...] = (1,)) -> Facts:
    names = [arm.name for arm in arms]
    order = ([*names, *reversed(names)])[: len(names) * repeats]
    loads = {c: TrialFacts("one at a time" if c == 1 else f"concurrency {c}", c) for c in concurrencies}
    return Facts(
        comparison="5f1e7a90c3d24b68",
        experiment="synthetic",
        title="SYNTHETIC DSpine against DFlash2",
        description="Built by a test; nothing was measured.",
        status="finished",
        engine="embedded",
        target="smollm2_135m",
        machine="a machine that does not exist",
        temperature=0.0,
        order="abba",
        memory_kind="rss",
        baseline=arms[0].name,
        arms=[
            ArmFacts(
                name=arm.name,
                drafter=arm.drafter,
                block_size=arm.block_size,
                proposed_tokens=arm.proposed or None,
                verify_window=arm.proposed + 1,
                overrides=[f"drafter={arm.drafter}"],
                server=server(arm),
            )
            for arm in arms
        ],
        varies=("drafter",),
        totals=totals(records(arms, repeats, concurrencies)),
        trials={
            _trial(arm.name, repeat, c): load for arm in arms for repeat in range(repeats) for c, load in loads.items()
        },
        sessions=[
            SessionFacts(
                arm=name,
                command=["python", "-m", "runners.engine", "--drafter", arm.drafter, "--api-key", "not-a-real-key"],
                identity=identity(arm),
                peak_memory_bytes=arm.rss + 2**20 * index,
            )
            for index, name in enumerate(order)
            for arm in arms
            if arm.name == name
        ],
        setting={"dtype": "float32", "suite": "short_long_16", "temperature": 0.0, "order": "abba", "repeats": repeats},
        config={"target": {"name": "smollm2_135m"}, "env": {"HF_TOKEN": "not-a-real-token"}, "arms": names},
        environment={"python": "3.11", "cpu": "synthetic", "threads": 2, "git_commit": "0" * 40},
        published=[PUBLISHED],
    )


def server(arm: SyntheticArm) -> dict[str, Any]:
    """Its server config, as far as findings read it."""
    algorithm = None if arm.drafter == "none" else arm.drafter
    return {
        "engine": "embedded",
        "drafter": {"name": arm.drafter, "algorithm": algorithm, "verify_window": arm.proposed + 1},
    }


def identity(arm: SyntheticArm) -> dict[str, Any]:
    """What its server says of itself."""
    plain = arm.drafter == "none"
    return {
        "version": "0",
        "engine": "embedded",
        "dtype": "float32",
        "kv_cache_dtype": "auto",
        "max_running_requests": 8,
        "speculative_algorithm": None if plain else arm.drafter.upper(),
        "speculative_num_draft_tokens": None if plain else arm.proposed + 1,
        "server_args": {"api_key": "not-a-real-key"},
        "internal_states": [{"effective_max_running_requests_per_dp": 8, "memory_usage": {"token_capacity": 16384}}],
    }


def totals(run: list[RequestRecord]) -> dict[str, TrialTotals]:
    """What the servers counted over the trials of a run, in agreement with its records."""
    found = {}
    for key in dict.fromkeys(record.trial_key for record in run):
        trial = [record for record in run if record.trial_key == key]
        steps = sum(record.spec.spec_verify_ct for record in trial if record.spec)
        correct = sum(record.spec.spec_num_correct_drafts for record in trial if record.spec)
        after = Reading(
            verify_steps=steps,
            output_tokens=sum(record.completion_tokens or 0 for record in trial),
            requests=len(trial),
            rank_tau=[1 + correct / steps if steps else None],
        )
        found[key] = TrialTotals(before=Reading(verify_steps=0, output_tokens=0, requests=0), after=after)
    return found


def _trial(arm: str, repeat: int, concurrency: int) -> str:
    return f"{arm}-r{repeat}-c{concurrency}"


def _request(
    arm: SyntheticArm, session: int, repeat: int, prompt: str, category: str, concurrency: int, clock: float,
    rng: random.Random, seed: int,
) -> RequestRecord:  # fmt: skip
    output, ended = _output(prompt, category, seed)
    drafts = random.Random(f"{seed}-{arm.name}-{prompt}")  # the same drafts in every repeat, as at temperature 0
    hit = min(0.97, arm.hit + drafts.uniform(-0.12, 0.12))
    slow = 1.0 + 0.35 * (concurrency - 1)
    now = slow * (0.09 if category == "short" else 0.16) * rng.uniform(0.95, 1.1)
    chunks = [(now, 1)]
    histogram = [0] * (arm.proposed + 1)
    while chunks[-1][1] < len(output):
        correct = 0
        while correct < arm.proposed and drafts.random() < hit:
            correct += 1
        histogram[correct] += 1
        now += slow * (arm.fixed_s + arm.per_token_s * (arm.proposed + 1)) * rng.uniform(0.94, 1.1)
        chunks.append((now, min(len(output), chunks[-1][1] + correct + 1)))
    steps = sum(histogram)
    spec = SpecCounters(
        spec_verify_ct=steps,
        spec_num_correct_drafts=sum(index * count for index, count in enumerate(histogram)),
        spec_num_proposed_drafts=steps * arm.proposed,
        spec_correct_drafts_histogram=histogram,
    )
    return RequestRecord(
        trial_key=_trial(arm.name, repeat, concurrency),
        arm=arm.name,
        session_index=session,
        phase="measure",
        prompt_id=prompt,
        category=category,
        prompt_sha256="0" * 64,
        repeat=repeat,
        sent_wall_time=1_790_000_000.0 + 600 * session + clock,
        sent_at=clock,
        chunks=chunks,
        e2e_s=now + 0.0004,
        prompt_tokens=20 if category == "short" else 70,
        completion_tokens=len(output),
        cached_tokens=0,
        output_ids=output,
        text=f"SYNTHETIC answer to {prompt} <b>&</b> " + " ".join(map(str, output)),
        finish_reason="stop" if ended else "length",
        spec=spec if arm.proposed else None,
        outcome="ok",
    )


def _output(prompt: str, category: str, seed: int) -> tuple[list[int], bool]:
    rng = random.Random(f"{seed}-{prompt}")
    length = min(LIMIT, rng.randint(14, 52) if category == "short" else rng.randint(48, 90))
    return [rng.randrange(49_152) for _ in range(length)], length < LIMIT


def forked(run: list[RequestRecord], arm: str, prompt: str, position: int) -> list[RequestRecord]:
    """The same run with one token of one arm's outputs changed."""

    def change(record: RequestRecord) -> RequestRecord:
        if (record.arm, record.prompt_id) != (arm, prompt):
            return record
        ids = list(record.output_ids)
        ids[position] += 1
        return record.model_copy(update={"output_ids": ids})

    return [change(record) for record in run]


def slower_plain(arms: tuple[SyntheticArm, ...], factor: float) -> tuple[SyntheticArm, ...]:
    """The arms with a handicapped plain arm."""
    return (replace(arms[0], fixed_s=arms[0].fixed_s * factor), *arms[1:])
