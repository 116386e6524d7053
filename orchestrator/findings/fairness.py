"""What differs between the arms beside what is compared, and what room each has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from orchestrator.analysis import fairness, prefix_cache
from orchestrator.analysis.facts import Facts
from orchestrator.analysis.fairness import Difference, Values
from orchestrator.analysis.results import Arm, Summary
from orchestrator.config.masking import mask
from orchestrator.findings.catalogue import CATALOGUE
from orchestrator.findings.finding import Finding, finding
from orchestrator.measuring.records import RequestRecord

ROOM = 0.02
"""Share of token capacity below which a difference of room is not worth a word."""


def findings(summary: Summary, facts: Facts, by_arm: Mapping[str, Sequence[RequestRecord]]) -> Iterator[Finding]:
    """``by_arm``: the records of the measured phase."""
    yield from _differences(facts, by_arm)
    yield from _caches(by_arm)
    for arm in summary.arms:
        yield from _room(arm, summary.baseline)


def _differences(facts: Facts, by_arm: Mapping[str, Sequence[RequestRecord]]) -> Iterator[Finding]:
    identities = {
        arm.name: [session.identity for session in facts.sessions if session.arm == arm.name] for arm in facts.arms
    }
    found = [
        *fairness.configured(facts.unfair),
        *fairness.reported(
            identities,
            facts.varies,
            {arm.name: arm.drafter_flags for arm in facts.arms},
            [arm.name for arm in facts.arms if arm.drafter != "none"],
        ),
        *fairness.sent(by_arm, facts.varies),
    ]
    merged: dict[str, dict[str, Values]] = {}
    for code, keys in found:
        merged.setdefault(code, {}).update(keys)
    for code, keys in merged.items():
        yield finding(code, _sentence(Difference(code, {key: mask(own, key) for key, own in keys.items()})))


def _sentence(difference: Difference) -> str:
    entry = CATALOGUE[difference.code]
    told = fairness.told(difference.keys)
    if difference.code == fairness.RESTART:
        return f"Starts of the same arm's server report different settings: {told}."
    if difference.code == "graph_sizes":
        return f"{entry.says[0].upper()}{entry.says[1:]} ({told})."
    text = f"The arms differ in more than what is compared: {entry.says} ({told})."
    return text + " No ratio is stated." if entry.withholds else text


def _caches(by_arm: Mapping[str, Sequence[RequestRecord]]) -> Iterator[Finding]:
    for arm, records in by_arm.items():
        if hits := prefix_cache.beyond_the_template(records):
            worst = max(hits, key=lambda record: record.cached_tokens or 0)
            yield finding(
                "cached_prompts",
                f"{arm}: {len(hits)} of {len(records)} measured requests found more of their prompt cached than "
                f"prompts have in common (prompt {worst.prompt_id}: {worst.cached_tokens} of {worst.prompt_tokens} "
                "tokens): the cache was not empty, or prompts repeat. Their time to first token is too good.",
                arm,
            )
    if cached := prefix_cache.unequal(by_arm):
        told = ", ".join(f"{arm} {count}" for arm, count in cached.items())
        yield finding("unfair_cache_hits", f"The arms found different numbers of prompt tokens cached: {told}.")


def _room(arm: Arm, baseline: Arm | None) -> Iterator[Finding]:
    own = arm.capacity
    if own is None:
        return
    most = max((point.concurrency or 0 for point in arm.points), default=0)
    if own.requests is not None and most > own.requests:
        yield finding(
            "queued",
            f"{arm.name}: {most} requests were in flight, the server runs {own.requests} at once. The others queue, "
            "and their time to first token contains the wait.",
            arm.name,
        )
    plain = baseline.capacity if baseline and baseline is not arm else None
    if plain is None:
        return
    less = []
    if own.tokens and plain.tokens and own.tokens < (1 - ROOM) * plain.tokens:
        less.append(f"{own.tokens} tokens of cache where the plain arm has {plain.tokens}")
    if own.requests and plain.requests and own.requests < plain.requests:
        less.append(f"{own.requests} requests at once where the plain arm runs {plain.requests}")
    if less:
        yield finding(
            "less_room",
            f"{arm.name} has room for {' and '.join(less)}: at equal memory the drafter takes the place of requests.",
            arm.name,
        )
