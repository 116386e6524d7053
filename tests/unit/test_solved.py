"""Checks of a suite: what counts as right, what a right answer costs, and that nothing of it is sent or hashed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from orchestrator.analysis.solved import Verdict, differing, judge, solved
from orchestrator.analysis.summary import summarize
from orchestrator.measuring.records import RequestRecord
from orchestrator.paths import conf_dir
from orchestrator.planning.identity import suite_content
from orchestrator.planning.plan import make_plan, unexpected_differences
from orchestrator.projection import arm_metrics
from orchestrator.report.table import rows
from orchestrator.schema import Check, Suite
from orchestrator.schema.errors import explain
from tests import record_factory, synthetic
from tests.traps import asked
from tests.unit.test_plan import FACTS, experiment

CALL = {"kind": "json", "keys": ["tool", "arguments"], "holds": {"tool": "close", "arguments": {"percent": 75}}}


def check(**content: Any) -> Check:
    found: Check = TypeAdapter(Check).validate_python(content)
    return found


@pytest.mark.parametrize(
    ("content", "text", "verdict"),
    [
        ({"kind": "contains", "all": ["geese", "sheep"]}, "Geese; the plural of sheep is sheep.", "solved"),
        ({"kind": "contains", "all": ["geese", "sheep"]}, "Geese and sheepdogs.", "wrong"),
        ({"kind": "contains", "all": ["0 \u00b0C"]}, "At 0 \u00b0C.", "solved"),
        ({"kind": "contains", "all": ["0"]}, "At 10 degrees.", "wrong"),
        ({"kind": "contains", "all": ["no"]}, "<think>no, no</think>\nYes.", "wrong"),
        ({"kind": "regex", "pattern": "(?i)^yes"}, " Yes, it does.", "solved"),
        ({"kind": "regex", "pattern": "^yes"}, "Yes", "wrong"),
        ({"kind": "number", "value": 229}, "264 - 35 = 229, so she takes home $229.", "solved"),
        ({"kind": "number", "value": 229}, "She takes home $229.00", "solved"),
        ({"kind": "number", "value": 1229}, "It is 1,229.", "solved"),
        ({"kind": "number", "value": 229}, "It is 1,229.", "wrong"),
        ({"kind": "number", "value": -3}, "It is -3", "solved"),
        ({"kind": "number", "value": 3}, "The score was 5-3", "solved"),
        ({"kind": "number", "value": 2.5}, "use v2.5", "solved"),
        ({"kind": "number", "value": 229}, "I do not know.", "wrong"),
        ({"kind": "json"}, '{"a": 1}', "solved"),
        ({"kind": "json"}, '```json\n{"a": 1}\n```\n', "solved"),
        ({"kind": "json"}, 'Here it is:\n```json\n{"a": 1}\n```', "malformed"),
        ({"kind": "json"}, '{"a": 1', "malformed"),
        ({"kind": "json"}, '{"a": NaN}', "malformed"),
        ({"kind": "json"}, "[" * 100_000, "malformed"),
        ({"kind": "json"}, "", "malformed"),
        ({"kind": "json", "keys": ["a"]}, '[{"a": 1}, {"a": 2, "b": 3}]', "solved"),
        ({"kind": "json", "keys": ["a"]}, '[{"a": 1}, {"b": 3}]', "malformed"),
        ({"kind": "json", "keys": ["a"]}, "[]", "malformed"),
        ({"kind": "json", "keys": ["a"]}, '"a"', "malformed"),
        (CALL, '{"tool": "Close", "arguments": {"percent": 75.0, "room": "study"}}', "solved"),
        (CALL, '{"tool": "close", "arguments": {"percent": 25}}', "wrong"),
        (CALL, '{"tool": "close", "arguments": {"percent": "75"}}', "wrong"),
        (CALL, '{"tool": "close", "arguments": {"percent": 1' + "0" * 400 + "}}", "wrong"),
        (CALL, '{"tool": "close"}', "malformed"),
        ({"kind": "json", "holds": [{"a": 1}]}, '[{"a": 1}, {"a": 1}]', "wrong"),
        ({"kind": "json", "holds": {"a": True}}, '{"a": 1}', "wrong"),
        ({"kind": "json", "holds": {"a": 1}}, '{"a": true}', "wrong"),
    ],
)  # fmt: skip
def test_an_answer_is_judged(content: dict[str, Any], text: str, verdict: Verdict) -> None:
    assert judge(text, check(**content)) == verdict


@pytest.mark.parametrize(
    "content",
    [
        {"kind": "contains", "all": []},
        {"kind": "contains", "all": [" "]},
        {"kind": "contains", "all": ["a"], "any": ["b"]},
        {"kind": "regex", "pattern": "("},
        {"kind": "json", "holds": {1: 2}},
        {"kind": "json", "holds": float("inf")},
        {"kind": "number", "value": "229"},
        {"kind": "python", "code": "True"},
    ],
)
def test_a_check_that_cannot_be_meant_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        check(**content)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"kind": "contains", "al": ["x"]}, ["check.all: is missing", "check.al: is not a key of the configuration"]),
        ({"kind": "regex", "pattern": "("}, ["check.pattern: is not a regular expression: missing )"]),
        ({"kind": "regx"}, ["check.kind: 'regx' is not allowed"]),
        ({"all": ["x"]}, ["check.kind: is missing"]),
        ({"kind": "json", "holds": float("nan")}, ["check.holds: must be what JSON can say"]),
    ],
)
def test_a_fault_is_told_by_its_key(content: dict[str, Any], told: list[str]) -> None:
    suite = yaml.safe_load((conf_dir() / "suite" / "smoke_2.yaml").read_text())
    suite["prompts"][0]["check"] = content
    with pytest.raises(ValidationError) as caught:
        Suite.model_validate(suite)
    found = [one.text() for one in explain(caught.value, Suite, suite)]
    assert len(found) == len(told)
    assert all(text.startswith(f"prompts.0.{start}") for text, start in zip(found, told, strict=True))


def test_a_check_is_neither_sent_nor_part_of_what_is_measured() -> None:
    one = experiment("plain", "b")
    arm = one.configs["b"]
    prompts = tuple(prompt.model_copy(update={"check": CHECKS["n"]}) for prompt in arm.suite.prompts)
    checked = arm.model_copy(update={"suite": arm.suite.model_copy(update={"prompts": prompts})})
    assert checked.suite.sent == arm.suite.sent and checked.suite != arm.suite
    assert suite_content(checked.suite, arm.target.name) == suite_content(arm.suite, arm.target.name)
    other = one.model_copy(update={"configs": {**one.configs, "b": checked}})
    assert unexpected_differences(other) == unexpected_differences(one)
    assert [trial.key for trial in make_plan(other, FACTS).trials] == [t.key for t in make_plan(one, FACTS).trials]


GOOD = {
    "short-ocean": "It is the Atlantic Ocean.",
    "short-freezing": "Pure water freezes at 32\u00b0F, which is 0\u00baC.",
    "short-plural": "Geese, leaves, children and sheep.",
    "short-bread": "The yeast makes gas.",
    "short-barometer": "It measures air pressure.",
    "long-market": "14 x 9 = 126, 6 x 23 = 138, 126 + 138 = 264, 264 - 35 = 229.\n\nShe takes home **$229**.",
    "smoke-colors": "From top to bottom: Red, yellow and green.",
    "json-reservation": '{"guest": "Delacroix", "table_for": 7, "evening": "Friday 20:30", "wishes": []}',
    "json-invoice": '[{"article": "hook", "quantity": 11, "unit_price": 3.4, "line_total": 37.4}, {"article": '
    '"dimmer", "quantity": 2, "unit_price": 18.75, "line_total": 37.5}, {"article": "cable", "quantity": 25, '
    '"unit_price": 1.12, "line_total": 28}]',
    "tool-thermostat": '{"tool": "close_blinds", "arguments": {"room": "study", "percent": 75}}',
    "tool-two-calls": '[{"tool": "find_sailing", "arguments": {"origin": "Brindal", "destination": "Osthavn"}}, '
    '{"tool": "reserve_cabin", "arguments": {"sailing": "?", "berths": 3}}, {"tool": "notify", '
    '"arguments": {"phone": "555-0143", "text": "?"}}]',
}  # fmt: skip


def test_the_shipped_checks_take_a_right_answer_and_no_other_prompt_s() -> None:
    suites = [Suite.model_validate(yaml.safe_load(path.read_text())) for path in (conf_dir() / "suite").glob("*.yaml")]
    checks = {prompt.id: prompt.check for suite in suites for prompt in suite.prompts if prompt.check}
    assert checks.keys() == GOOD.keys()
    for name, one in checks.items():
        assert [other for other, text in GOOD.items() if judge(text, one) == "solved"] == [name]


def records() -> list[RequestRecord]:
    """Two trials of a checked number, a checked object and an unchecked prompt; 1, 2 and 5 seconds long."""
    texts = {"n": ["is 4", "is 5"], "j": ["{}", "no"], "free": ["", ""]}
    seconds = {"n": 1.0, "j": 2.0, "free": 5.0}
    return [
        record_factory.record(
            prompt_id=prompt, repeat=repeat, trial_key=f"t{repeat}", text=text, e2e_s=seconds[prompt], output_ids=[1, 2]
        )
        for prompt, both in texts.items()
        for repeat, text in enumerate(both)
    ]


CHECKS = {"n": check(kind="number", value=4), "j": check(kind="json")}


def test_time_and_energy_are_those_of_all_checked_requests_per_solved_one() -> None:
    found = solved(records(), CHECKS, {"t0": 80.0, "t1": 160.0})
    assert found is not None
    assert (found.checked, found.solved, found.count("malformed"), found.json_checked) == (4, 2, 1, 2)
    assert found.share == 0.5 and found.seconds == 6.0 and found.seconds_per_solved == 3.0
    assert found.energy_j == pytest.approx(80 * 3 / 8 + 160 * 3 / 8)
    assert found.energy_per_solved_j == pytest.approx(45.0)
    partly = solved(records(), CHECKS, {"t0": 80.0})
    assert partly is not None and partly.energy_j is None and partly.energy_per_solved_j is None
    assert solved(records(), {}, {}) is None


def test_a_request_that_failed_is_not_solved_and_its_time_counts() -> None:
    late = {"outcome": "timeout", "e2e_s": None, "chunks": [(0.5, 1)]}
    broken = [one.model_copy(update=late) if one.text == "is 4" else one for one in records()]
    found = solved(broken, CHECKS, {})
    assert found is not None and (found.solved, found.count("failed"), found.seconds) == (1, 1, 5.5)
    nothing = solved([one for one in broken if one.outcome != "ok"], CHECKS, {})
    assert nothing is not None and nothing.seconds_per_solved is None and nothing.share == 0


def test_arms_are_compared_request_by_request() -> None:
    mine = solved(records(), CHECKS, {})
    theirs = solved([one.model_copy(update={"text": "is 4"}) for one in records()], CHECKS, {})
    assert mine is not None and theirs is not None
    assert differing(mine, theirs) == (["j"], ["n"])  # the second repeat of n, the first of j
    assert differing(mine, mine) == ([], [])


def test_a_comparison_tells_who_solved_what() -> None:
    answered = [
        one.model_copy(update={"text": "is 4" if (one.arm, one.prompt_id) != ("dspine", "long-1") else "is 5"})
        for one in synthetic.records()
    ]
    facts = replace(synthetic.facts(), checks={"long-1": CHECKS["n"], "short-1": CHECKS["n"]})
    summary = summarize(answered, facts)
    table = {row.label.strip(): row.cells for row in rows(summary)}
    assert table["tasks solved"] == ["4/4", "4/4", "2/4"]
    assert "malformed JSON" not in table and "joules per solved task" not in table
    (found,) = [one for one in summary.findings if one.code == "solved_differs"]
    assert (found.arm, found.severity) == ("dspine", "warning")
    assert (
        "dspine solved 2 of 4 checked requests, the plain arm 4 of 4: only the plain arm solved long-1." in found.text
    )
    assert "lossless" in found.text
    metrics = arm_metrics(summary.arms[2])
    assert metrics["quality/solved_share"] == 0.5 and metrics["quality/malformed"] is None
    assert metrics["quality/seconds_per_solved_task"] is not None
    row = next(row for row in summary.prompts if row.prompt_id == "long-1")
    assert [cell.verdict for cell in row.cells.values()] == ["solved", "solved", "wrong"]

    lossy = replace(asked("dspine", lossy=True), checks=facts.checks)
    assert "its speed costs" in next(
        one.text for one in summarize(answered, lossy).findings if one.code == "solved_differs"
    )
    drawn = summarize(answered, replace(facts, temperature=0.7))
    assert "solved_differs" not in {one.code for one in drawn.findings}
