"""A drafter that had no room is told apart from one that is not there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.analysis.facts import Facts
from orchestrator.analysis.summary import summarize
from orchestrator.analysis.verdict import REFUSED, exit_code
from orchestrator.measuring.records import RequestRecord
from tests import synthetic


def short(tokens: int) -> list[RequestRecord]:
    """The run with every answer cut to so many tokens, and hence without a verification step."""
    return [
        one.model_copy(
            update={
                "chunks": [(0.1 * (place + 1), place + 1) for place in range(tokens)],
                "completion_tokens": tokens,
                "output_ids": one.output_ids[:tokens],
                "finish_reason": "length",
                "spec": None,
            }
        )
        for one in synthetic.records()
    ]


def facts(engine: str) -> Facts:
    return replace(synthetic.facts(), engine=engine, totals={})


@pytest.mark.parametrize(
    ("engine", "tokens", "code"),
    [
        ("embedded", 1, "too_short_to_draft"),
        ("embedded", 2, "too_short_to_draft"),
        ("embedded", 3, "no_counters"),
        ("sglang", 1, "too_short_to_draft"),
        ("sglang", 2, "no_counters"),
    ],
)
def test_answers_without_room_for_a_step_do_not_accuse_the_drafter(engine: str, tokens: int, code: str) -> None:
    summary = summarize(short(tokens), facts(engine))
    found = [one for one in summary.findings if one.code in ("too_short_to_draft", "no_counters")]
    assert [(one.code, one.arm) for one in found] == [(code, "dflash2"), (code, "dspine")]
    assert exit_code(summary) == REFUSED
    if code == "too_short_to_draft":
        assert f"longer than {tokens} token" in found[0].text and "suite.max_new_tokens" in found[0].text


def test_one_longer_answer_leaves_room() -> None:
    run = short(1)
    place = next(place for place, one in enumerate(run) if one.arm == "dspine")
    run[place] = short(8)[place]
    codes = {(one.code, one.arm) for one in summarize(run, facts("sglang")).findings}
    assert ("no_counters", "dspine") in codes and ("too_short_to_draft", "dflash2") in codes
