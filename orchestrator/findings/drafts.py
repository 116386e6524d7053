"""Whether the drafter is the one asked for, did what it was asked to, and can have been as fast as it seems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.analysis import served
from orchestrator.analysis.acceptance import Acceptance
from orchestrator.analysis.facts import ArmFacts, Facts
from orchestrator.analysis.results import Arm, Point, Summary
from orchestrator.findings.finding import Finding, finding

TAU_NEAR_ONE = 1.2
"""Below it the drafter helps less than one step in five."""
_PROPOSED_TOLERANCE = 0.02
"""Share by which the mean number of proposed tokens may differ from the configured one."""


def findings(summary: Summary, facts: Facts) -> Iterator[Finding]:
    asked = {arm.name: arm for arm in facts.arms}
    for arm in summary.arms:
        sessions = [session.identity for session in facts.sessions if session.arm == arm.name]
        yield from _identity(arm, asked[arm.name], sessions)
        yield from _not_its_own(arm, asked[arm.name])
        if arm.point:
            yield from _acceptance(arm, arm.point, summary.embedded)
            yield from _speed(arm, arm.point)
        yield from _totals(arm)
        yield from _over_load(arm)


def _identity(arm: Arm, asked: ArmFacts, identities: Sequence[dict[str, object]]) -> Iterator[Finding]:
    if not identities or not asked.server:
        return
    wrong = list(dict.fromkeys(one for identity in identities for one in served.wrong_drafter(asked.server, identity)))
    if wrong:
        yield finding(
            "wrong_drafter", f"{arm.name}: the server is not the one asked for: {'; '.join(wrong)}.", arm.name
        )
    for remark in dict.fromkeys(one for identity in identities for one in served.remarks(identity)):
        yield finding("server_remark", f"{arm.name}: {remark}.", arm.name)
    if arm.drafter != "none" and not all(map(served.says_drafter, identities)):
        yield finding(
            "drafter_unproven",
            f"{arm.name}: the server does not say with which algorithm it speculates, so only its counters show that "
            "it does.",
            arm.name,
        )
    accepted = arm.point.acceptance if arm.point else None
    if accepted is None or not asked.proposed_tokens:
        return
    proposed, most = accepted.proposed_per_step, asked.proposed_tokens
    # Fewer is right where windows vary, and in the embedded engine, which drafts no further than the token limit.
    exact = not (accepted.windows_vary or arm.dynamic_window or identities[0].get("engine") == "embedded")
    if proposed > most * (1 + _PROPOSED_TOLERANCE) or (exact and proposed < most * (1 - _PROPOSED_TOLERANCE)):
        yield finding(
            "wrong_block",
            f"{arm.name}: {proposed:.1f} tokens were proposed per step, asked for were {most}: the block is not the "
            "one of the configuration.",
            arm.name,
        )


def _not_its_own(arm: Arm, asked: ArmFacts) -> Iterator[Finding]:
    if arm.lossy:
        check = arm.lossless
        share = f" {len(check.forks)} of {check.compared} outputs differ." if check and check.compared else ""
        yield finding(
            "lossy",
            f"{arm.name} verifies with relaxed thresholds: its output is not the target's, its speed buys that.{share}",
            arm.name,
        )
    if (length := served.simulated(asked.server)) is not None:
        yield finding(
            "simulated_acceptance",
            f"{arm.name}: the server was told to make up an acceptance length of {length}. Its speed is that of the "
            "machine with such a drafter; its tau and its text mean nothing.",
            arm.name,
        )


def _acceptance(arm: Arm, point: Point, embedded: bool) -> Iterator[Finding]:
    accepted = point.acceptance
    if accepted is None:
        longest = max(point.metrics.output_lengths, default=0)
        # The prefill brings the first token; the embedded engine decodes the last one of the limit without drafts.
        if arm.drafter != "none" and point.metrics.requests and longest <= (2 if embedded else 1):
            yield finding(
                "too_short_to_draft",
                f"{arm.name}: no answer is longer than {longest} {'token' if longest == 1 else 'tokens'}, which leaves "
                "no room for a verification step, so nothing was drafted. Let the answers be longer "
                "(suite.max_new_tokens). No ratio is stated.",
                arm.name,
            )
        elif arm.drafter != "none" and point.metrics.requests:
            yield finding(
                "no_counters",
                f"{arm.name}: the server returned no speculation counters; it may not have speculated at all.",
                arm.name,
            )
        return
    if accepted.tau < TAU_NEAR_ONE:
        yield finding(
            "tau_near_one",
            f"{arm.name}: tau is {_interval(accepted)} with {accepted.proposed_per_step:.1f} tokens proposed per step, "
            "so almost no draft is right. Weights for another target, quantized weights, another chat template or "
            "thinking mode, or a wrong layer are the usual reasons.",
            arm.name,
        )
    streams = point.streams
    if streams.contradictions:
        yield finding(
            "counters_contradict",
            f"{arm.name}: the counters of {streams.contradictions} requests are contradicted ({streams.first}).",
            arm.name,
        )
    if streams.merged:
        yield finding(
            "chunks_merged",
            f"{arm.name}: {streams.merged} of {point.metrics.requests} streams came in fewer chunks than the server "
            "took steps. tau is not touched, it comes from the server's counters; gaps between chunks span several "
            "steps.",
            arm.name,
        )


def _speed(arm: Arm, point: Point) -> Iterator[Finding]:
    accepted, speedup = point.acceptance, point.decode_speedup
    if accepted is None or speedup is None:
        return
    # A prompt cannot gain more than its own tau, and the speedup is a mean over prompts: so is its bound. The geometric
    # mean that the speedup is lies below the arithmetic one.
    most = max(accepted.tau, accepted.tau_mean_of_requests)
    low = speedup.ratio if speedup.low is None else speedup.low
    told = f"tau {accepted.tau:.2f}, mean of requests {accepted.tau_mean_of_requests:.2f}"
    if low > most:
        yield finding(
            "speedup_above_tau",
            f"{arm.name}: the speedup after prefill ({speedup.ratio:.2f}, at least {low:.2f}) is above what its drafts "
            f"can bring ({told}). A verification step costs at least a plain step, so the plain arm is handicapped, "
            "the machine was busy while it ran, or something is measured wrongly. No ratio is stated. reuse=false "
            "measures again.",
            arm.name,
        )
    elif speedup.ratio > most:
        yield finding(
            "near_tau",
            f"{arm.name}: the speedup after prefill ({speedup.ratio:.2f}) is above what its drafts can bring ({told}), "
            f"which cannot be, though its interval begins below ({low:.2f}).",
            arm.name,
        )


def _totals(arm: Arm) -> Iterator[Finding]:
    checks = [point.server_totals for point in arm.points if point.server_totals is not None]
    disagreements = [text for check in checks for text in check.disagreements]
    if disagreements:
        more = f" (and {len(disagreements) - 1} more)" if len(disagreements) > 1 else ""
        yield finding(
            "totals_disagree",
            f"{arm.name}: {disagreements[0]}{more}. Someone else used the server, or requests were lost or counted "
            "twice.",
            arm.name,
        )
    silent = not any(check.tau or check.committed_per_step for check in checks)
    if silent and arm.point and arm.point.acceptance:
        yield finding(
            "no_server_totals",
            f"{arm.name}: the server reports no totals of its own, so its counters per request are not cross-checked.",
            arm.name,
        )


def _over_load(arm: Arm) -> Iterator[Finding]:
    """tau of the load points against that of the lowest: apart from rounding, drafts do not depend on the batch."""
    points = [point for point in arm.points if point.acceptance is not None]
    for point in points[1:]:
        first, own = points[0].acceptance, point.acceptance
        if first is None or own is None or None in (first.tau_low, first.tau_high, own.tau_low, own.tau_high):
            continue
        if (own.tau_low or 0.0) > (first.tau_high or 0.0) or (own.tau_high or 0.0) < (first.tau_low or 0.0):
            yield finding(
                "tau_moves_with_load",
                f"{arm.name}: tau is {_interval(first)} at {points[0].load} and {_interval(own)} at {point.load}. "
                "The same drafts are verified at every load: look for requests that failed or were cut at one of "
                "them.",
                arm.name,
            )
            break
    if arm.crossover is not None:
        dips = "; it was below 1 at a smaller load as well" if arm.crossover.dips else ""
        yield finding(
            "crossover",
            f"{arm.name}: the concurrency above which speculation no longer pays is {arm.crossover.text}{dips}.",
            arm.name,
        )


def _interval(accepted: Acceptance) -> str:
    if accepted.tau_low is None or accepted.tau_high is None:
        return f"{accepted.tau:.2f}"
    return f"{accepted.tau:.2f} [{accepted.tau_low:.2f}, {accepted.tau_high:.2f}]"
