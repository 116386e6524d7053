"""What a server's memory is for is shown by arm, and what its log remarks is a finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.analysis.results import Summary
from orchestrator.analysis.summary import summarize
from orchestrator.projection import arm_metrics
from orchestrator.report import html, table
from tests.synthetic import facts, records

PARTS = {"target_weights": 15.3, "draft_weights": None, "kv_cache": 40.25}
OF_DRAFTER = {**PARTS, "draft_weights": 2.01, "draft_kv_cache": 3.5}


def served(**by_arm: dict[str, Any]) -> Summary:
    base = facts()
    sessions = [
        replace(one, identity={**one.identity, "server_log": by_arm.get(one.arm, {"memory_gib": PARTS})})
        for one in base.sessions
    ]
    return summarize(records(), replace(base, sessions=sessions, memory_kind="vram", engine="sglang"))


def test_the_parts_are_rows_and_metrics_of_the_arms_that_have_them() -> None:
    summary = served(dflash2={"memory_gib": OF_DRAFTER})
    cells = {row.label.strip(): row.cells for row in table.rows(summary) if row.section == "Memory"}
    assert cells["target's weights, GiB"] == ["15.30"] * 3
    assert cells["drafter's weights, GiB"] == ["–", "2.01", "–"]
    assert "CUDA graphs, GiB" not in cells, "none told"
    arms = {arm.name: arm_metrics(arm) for arm in summary.arms}
    assert arms["dflash2"]["memory/draft_kv_cache_gib"] == 3.5 and arms["plain"]["memory/kv_cache_gib"] == 40.25
    assert "memory/draft_weights_gib" not in arms["plain"]


def test_what_the_log_remarks_is_a_finding_once_per_arm() -> None:
    summary = served(dspine={"memory_gib": PARTS, "remarks": ["the drafter runs without CUDA graphs"]})
    (found,) = [one for one in summary.findings if one.code == "server_remark"]
    assert (found.arm, found.severity) == ("dspine", "warning") and "without CUDA graphs" in found.text


def test_a_report_says_that_a_gpu_s_peak_is_a_reservation() -> None:
    summary = served()
    with_peak = summary.arms[0].model_copy(update={"memory": summarize(records(), facts()).arms[0].memory})
    assert "what its server reserved" not in html.render(summary, []), "no GPU was sampled"
    assert with_peak.memory is not None
    vram = with_peak.model_copy(update={"memory": with_peak.memory.model_copy(update={"kind": "vram"})})
    shown = html.render(summary.model_copy(update={"arms": [vram, *summary.arms[1:]]}), [])
    assert "what its server reserved" in shown
