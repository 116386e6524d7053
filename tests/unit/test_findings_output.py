"""What cannot be said of the output is told, and not passed over."""

from __future__ import annotations

import pytest

from orchestrator.analysis.summary import summarize
from orchestrator.findings.finding import Finding
from orchestrator.measuring.records import RequestRecord
from tests import synthetic
from tests.traps import asked, changed


@pytest.fixture(scope="module")
def run() -> list[RequestRecord]:
    return synthetic.records()


def not_compared(run: list[RequestRecord]) -> list[Finding]:
    return [one for one in summarize(run, synthetic.facts()).findings if one.code == "not_compared"]


def test_outputs_without_token_ids_are_not_passed_over(run: list[RequestRecord]) -> None:
    silent = [one.model_copy(update={"output_ids": []}) for one in run]
    found = not_compared(silent)
    assert [(one.severity, one.arm) for one in found] == [("warning", "dflash2"), ("warning", "dspine")]
    assert "16 of 16 prompts could not be compared" in found[0].text
    assert "(long-1, long-2, long-3, long-4, long-5 and 11 more)" in found[0].text
    assert "the server told no token ids for 16 of them (load.endpoint=generate" in found[0].text
    assert "ended well" not in found[0].text


def test_a_prompt_that_failed_in_one_arm_is_named(run: list[RequestRecord]) -> None:
    failed = changed(
        run, "dspine", lambda one: {"outcome": "error", "e2e_s": None} if one.prompt_id == "short-3" else {}
    )
    (found,) = not_compared(failed)
    assert found.arm == "dspine" and "1 of 16 prompts could not be compared" in found.text
    assert "(short-3): no request of 1 of them ended well in both arms." in found.text


def test_what_was_compared_or_need_not_be_is_not_mentioned(run: list[RequestRecord]) -> None:
    assert not_compared(run) == []
    assert not_compared([one for one in run if one.arm != "plain"]) == [], "that there is no plain arm is told"
    silent = changed(run, "dspine", lambda one: {"output_ids": []})
    lossy = summarize(silent, asked("dspine", lossy=True))
    assert "not_compared" not in {one.code for one in lossy.findings}
