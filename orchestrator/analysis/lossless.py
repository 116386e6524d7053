"""Token identity of each speculative arm against the plain arm at temperature 0.

Equal text is the wrong gate: a verification scores several tokens at once with other kernels than a plain step, which
rounds differently, and a target that has two tokens all but equal may then take either. So a fork is excused, in one
case only: the plain target itself had two tokens within ``near_tie`` of each other at that position, and the
speculative arm took the other one. The margin is looked up in the plain arm's own records (``top2``); without it no
fork is excused.

Beside it stands the noise floor: how often repeats of the plain arm differ from each other. A fork of a speculative arm
beyond that is the drafter's, or its verification's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from orchestrator.frozen import Frozen
from orchestrator.measuring.records import RequestRecord

NEAR_TIE = {"float32": 1e-3, "float16": 2**-5, "bfloat16": 2**-2}
"""Precision of the target -> largest difference of log-probabilities (equal to that of logits) that counts as a tie.

float16, bfloat16: two units in the last place of a logit between 16 and 32, where the best ones lie. float32: some
times what attention over several rows was seen to move a logit (4e-5)."""
SIGNIFICANT = 0.05

Verdict = Literal["identical", "near_tie", "fork"]


class Comparison(Frozen):
    """One request of an arm against the plain arm's output for the same prompt."""

    arm: str
    prompt_id: str
    repeat: int
    verdict: Verdict
    position: int | None = None
    """First output position (from 0) at which the two differ; the length of the shorter where one ends early."""
    token: int | None = None
    """The arm's token there; None where its output had ended."""
    plain_token: int | None = None
    margin: float | None = None
    """log p(best) - log p(second) of the plain target at that position; None where it was not asked."""


class Lossless(Frozen):
    """Result of one arm."""

    arm: str
    compared: int
    """Requests compared (prompt and repeat)."""
    identical: int
    near_ties: list[Comparison]
    forks: list[Comparison]
    """Failures: no other word for them."""
    prompts: int = 0
    """Prompts among those compared."""
    missing: list[str]
    """Prompts that cannot be compared, since one side has no well-ended request whose token ids are known."""

    @property
    def forked_prompts(self) -> int:
        return len({fork.prompt_id for fork in self.forks})

    @property
    def ok(self) -> bool:
        """True where every prompt was compared and no fork is left unexcused."""
        return not self.forks and not self.missing


def first_divergence(one: Sequence[int], other: Sequence[int]) -> int | None:
    """First index at which two token sequences differ, None where they are equal."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))


def check(
    records: Iterable[RequestRecord], plain_arm: str, near_tie: float = NEAR_TIE["float32"]
) -> dict[str, Lossless]:
    """Every arm against the plain arm's first repeat, by arm; the plain arm's own entry is the noise floor.

    The noise floor compares the later repeats of the plain arm with its first: where it is not zero, a fork of a
    speculative arm does not yet prove the drafter wrong (``more_often``).
    """
    outputs: dict[str, dict[str, list[RequestRecord]]] = defaultdict(lambda: defaultdict(list))
    probes: dict[str, list[RequestRecord]] = defaultdict(list)
    asked: dict[str, set[str]] = defaultdict(set)
    for record in records:
        if record.phase == "warmup":
            continue
        if record.arm == plain_arm and record.top2 is not None:
            probes[record.prompt_id].append(record)
        if record.phase == "measure":
            asked[record.arm].add(record.prompt_id)
            # Endpoints that tell no token ids would make every output the same empty one.
            if record.outcome == "ok" and len(record.output_ids) == record.completion_tokens:
                outputs[record.arm][record.prompt_id].append(record)
    references = {
        prompt: min(candidates, key=lambda record: record.repeat) for prompt, candidates in outputs[plain_arm].items()
    }
    results = {}
    for arm, own in asked.items():
        comparisons = [
            compare(record, references[prompt], probes[prompt], near_tie)
            for prompt, candidates in outputs[arm].items()
            if prompt in references
            for record in candidates
            if record is not references[prompt]
        ]
        prompts = own | set(references)
        results[arm] = Lossless(
            arm=arm,
            compared=len(comparisons),
            identical=sum(comparison.verdict == "identical" for comparison in comparisons),
            near_ties=[comparison for comparison in comparisons if comparison.verdict == "near_tie"],
            forks=[comparison for comparison in comparisons if comparison.verdict == "fork"],
            prompts=len({comparison.prompt_id for comparison in comparisons}),
            missing=sorted(prompt for prompt in prompts if prompt not in references or prompt not in outputs[arm]),
        )
    return results


def more_often(arm: Lossless, floor: Lossless) -> bool:
    """Whether prompts fork on an arm more often than between repeats of the plain arm: Fisher's exact test, one-sided,
    on prompts with a fork. Prompts count, not requests: at temperature 0 a second pass forks where the first did."""
    forked, prompts = arm.forked_prompts, arm.prompts
    all_forked, all_prompts = forked + floor.forked_prompts, prompts + floor.prompts
    ways = sum(
        math.comb(prompts, count) * math.comb(floor.prompts, all_forked - count)
        for count in range(forked, min(prompts, all_forked) + 1)
    )
    return ways / math.comb(all_prompts, all_forked) < SIGNIFICANT


def compare(
    record: RequestRecord,
    plain: RequestRecord,
    probes: Sequence[RequestRecord],
    near_tie: float = NEAR_TIE["float32"],
) -> Comparison:
    """One output against the plain one; ``probes`` are records of the plain arm that hold margins."""
    position = first_divergence(record.output_ids, plain.output_ids)
    if position is None:
        return Comparison(arm=record.arm, prompt_id=record.prompt_id, repeat=record.repeat, verdict="identical")
    token = record.output_ids[position] if position < len(record.output_ids) else None
    plain_token = plain.output_ids[position] if position < len(plain.output_ids) else None
    margin, tied = _margin(plain.output_ids[:position], position, probes)
    excused = margin is not None and margin < near_tie and {token, plain_token} == tied
    return Comparison(
        arm=record.arm,
        prompt_id=record.prompt_id,
        repeat=record.repeat,
        verdict="near_tie" if excused else "fork",
        position=position,
        token=token,
        plain_token=plain_token,
        margin=margin,
    )


def _margin(prefix: Sequence[int], position: int, probes: Sequence[RequestRecord]) -> tuple[float | None, set[int]]:
    """Margin and the two best tokens after ``prefix`` from a probe that produced the same prefix."""
    for probe in probes:
        if probe.top2 is not None and position < len(probe.top2) and list(prefix) == probe.output_ids[:position]:
            (best, best_logprob), (second, second_logprob) = probe.top2[position]
            return best_logprob - second_logprob, {best, second}
    return None, set()
