"""Whether the plain arm is worth comparing with: a weak one inflates every speedup."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.analysis.baseline import settings
from orchestrator.analysis.facts import Facts
from orchestrator.analysis.results import Arm, Summary
from orchestrator.findings.finding import Finding, finding
from orchestrator.findings.machine import busy

WEAK = 0.55
"""Share of the bandwidth ceiling. One request at a time, SGLang reaches 0.63 (8B on an H200), 0.67 (8B on an H100) and
0.78 (27B on an H200); a published comparison of drafters at 27B on an H100 had a plain arm at 0.53."""
ABOVE = 1.05


def findings(summary: Summary, facts: Facts) -> Iterator[Finding]:
    arm = summary.baseline
    if arm is None or arm.point is None:
        return
    yield from _settings(arm)
    share = arm.bandwidth_share
    if share is None or arm.ceiling is None or arm.ceiling.tok_s is None:
        return
    how = (
        f"{arm.point.decode_tok_s:.1f} tok/s after prefill, {share:.0%} of the {arm.ceiling.tok_s:.1f} that memory "
        f"bandwidth allows ({arm.ceiling.bandwidth_source}; {arm.ceiling.weights_source}, "
        f"{(arm.ceiling.weights_bytes or 0) / 1e9:.2f} GB per token)"
    )
    if share < WEAK and busy(summary):
        yield finding(
            "weak_baseline",
            f"{arm.name} decodes {how}. The machine was busy with other processes during this run, which may be why: "
            "this is no verdict on the plain arm, and the speedups are as rough.",
            arm.name,
        )
    elif share < WEAK:
        yield finding(
            "weak_baseline",
            f"{arm.name} decodes {how}: a stronger plain arm would shrink every speedup.",
            arm.name,
        )
    elif share > ABOVE:
        yield finding(
            "above_ceiling",
            f"{arm.name} decodes {how}: that cannot be, so the bandwidth or the size of the weights is wrong.",
            arm.name,
        )


def _settings(arm: Arm) -> Iterator[Finding]:
    known = settings(arm.identity)
    off = [
        name for name, on in (("CUDA graphs", known.cuda_graphs), ("overlap scheduling", known.overlap)) if on is False
    ]
    if off:
        yield finding(
            "baseline_handicapped",
            f"{arm.name} runs without {' and '.join(off)}: its steps wait for the CPU, which flatters every drafter.",
            arm.name,
        )
