"""stop.rule=ci_width: when a round of repeats is added, what it is, and that a rerun finds it measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.statistics import stopping as simulated
from benchmarks.statistics.simulate import World
from orchestrator.measuring import execute, store
from orchestrator.planning.plan import ROUND, extended, make_plan
from orchestrator.planning.plan_text import render
from orchestrator.planning.stopping import Decision, decide
from orchestrator.schema import ArmConfig, Experiment
from orchestrator.schema.experiment import Stop
from orchestrator.stats import PairedRatio
from tests import plan_factory
from tests.unit.test_execute import World as Servers
from tests.unit.test_execute import world  # noqa: F401 - a fixture

FACTS: dict[str, Any] = {
    "hardware": {"cpu": "a", "gpus": [], "driver": None},
    "engine": {"embedded": {"sources": "1"}, "sglang": {}},
    "weights": {},
    "record_schema": 1,
}
WIDTH = Stop(rule="ci_width", width=0.05, max_repeats=6)


def experiment(*names: str, stop: Stop = WIDTH, repeats: int = 2, points: tuple[int, ...] = (1,)) -> Experiment:
    arms = [plan_factory.arm(name, plan_factory.suite(6, repeats=repeats), plan_factory.load(points)) for name in names]
    return with_stop(plan_factory.comparison(Path("runs"), *arms)[0], stop)


def with_stop(given: Experiment, stop: Stop) -> Experiment:
    return Experiment.model_validate({**given.model_dump(), "configs": given.configs, "stop": stop.model_dump()})


def ratio(half: float, narrowest: float | None = 0.01) -> PairedRatio:
    return PairedRatio(
        ratio=2.0, low=2 / (1 + half), high=2 * (1 + half), n_prompts=16, n_pairs=32, n_repeats=2.0,
        ratio_of_totals=2.0, narrowest=narrowest,
    )  # fmt: skip


def test_it_goes_on_while_one_arm_is_wide() -> None:
    found = decide({"a": ratio(0.04), "b": ratio(0.08)}, 2, 0.05, 8)
    assert found.more
    assert found.text == "Wider than ±5.0% after 2 repeats: b ±8.0%. Adding 2 more."


def test_it_ends_where_every_arm_is_narrow_or_the_repeats_are_spent() -> None:
    assert decide({"a": ratio(0.04), "b": ratio(0.049)}, 4, 0.05, 8) == (
        False,
        "Every speedup is known to ±5.0% after 4 repeats.",
    )
    spent = decide({"a": ratio(0.08)}, 8, 0.05, 8)
    assert not spent.more and "the most that are allowed: a ±8.0%" in spent.text
    assert not decide({"a": ratio(0.08)}, 6, 0.05, 7).more  # half a round is not added


def test_it_ends_at_once_where_only_more_prompts_would_help_and_says_how_many() -> None:
    found = decide({"a": ratio(0.12, narrowest=0.1), "b": ratio(0.04)}, 2, 0.05, 8)
    assert not found.more
    assert "cannot bring the speedup of a to ±5.0%" in found.text
    assert "About 64 prompts" in found.text  # 16 * (0.1 / 0.05)^2
    single = PairedRatio(ratio=2, low=None, high=None, n_prompts=1, n_pairs=2, n_repeats=2, ratio_of_totals=2)
    assert "more than one prompt" in decide({"a": single}, 2, 0.05, 8).text


def test_a_round_is_appended_and_changes_nothing_before_it() -> None:
    plan = make_plan(experiment("plain", "b", "c", points=(1, 4)), FACTS)
    longer = extended(plan)
    assert longer.sessions[: len(plan.sessions)] == plan.sessions and longer.key == plan.key
    added = longer.sessions[len(plan.sessions) :]
    assert [(session.arm.name, {trial.repeat for trial in session.trials}) for session in added] == [
        ("plain", {2}), ("b", {2}), ("c", {2, 3}), ("b", {3}), ("plain", {3}),
    ]  # fmt: skip
    assert [session.index for session in longer.sessions] == list(range(10))
    assert [trial.position for trial in longer.trials] == list(range(24))
    assert len({trial.key for trial in longer.trials}) == 24
    assert added[0].key == plan.sessions[0].key and added[0].arm.suite.repeats == 4
    assert extended(plan) == longer
    drift = {arm: sum(trial.position for trial in longer.trials if trial.arm == arm) for arm in ("plain", "b", "c")}
    assert len(set(drift.values())) == 1


def test_an_arm_that_is_missing_gets_no_round() -> None:
    longer = extended(make_plan(experiment("plain", "b"), FACTS, {"b": "no weights"}))
    assert {session.arm.name for session in longer.sessions} == {"plain"} and longer.missing


def test_the_plan_says_what_the_rounds_may_cost() -> None:
    given = experiment("plain", "b")
    text = render(given, make_plan(given, FACTS), {})
    assert "3 server starts, 4 trials" in text
    assert "stop: ci_width 0.05, at most 6 repeats; with all of them 9 server starts, 12 trials" in text
    fixed = experiment("plain", "b", stop=Stop(rule="fixed", width=0.05, max_repeats=6))
    assert "stop:" not in render(fixed, make_plan(fixed, FACTS), {})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"order": "once"}, "needs order=abba, not order=once"),
        ({"stop": {"rule": "ci_width", "width": 0.05, "max_repeats": 2}, "repeats": 4}, "2 is below suite.repeats"),
        ({"repeats": 3}, "needs an even suite.repeats"),
        ({"stop": {"rule": "ci_width", "width": 0.0, "max_repeats": 8}}, "width"),
        ({"stop": {"rule": "narrow", "width": 0.1, "max_repeats": 8}}, "ci_width"),
    ],
)
def test_what_does_not_go_together_is_refused(change: dict[str, Any], told: str) -> None:
    change = dict(change)
    given = experiment(
        "plain", "b", stop=Stop(rule="fixed", width=0.05, max_repeats=8), repeats=change.pop("repeats", 2)
    )
    fields = {**given.model_dump(), "configs": given.configs, "stop": WIDTH.model_dump()} | change
    with pytest.raises(ValueError, match=told):
        Experiment.model_validate(fields)


def run(tmp_path: Path, name: str, decisions: Sequence[Decision], monkeypatch: pytest.MonkeyPatch) -> int:
    """A run in which the rule says what it is told to say."""
    said = iter(decisions)
    monkeypatch.setattr(execute, "decide", lambda *_: next(said))
    arms: list[ArmConfig] = [
        plan_factory.arm(name, plan_factory.suite(6), plan_factory.load()) for name in ("plain", "ngram")
    ]
    given, plan = plan_factory.comparison(tmp_path, *arms)
    return execute.run(with_stop(given, WIDTH), plan, tmp_path / name)


def test_rounds_are_measured_and_found_again(
    tmp_path: Path,
    world: Servers,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wide, enough = Decision(True, "wide"), Decision(False, "narrow enough")
    assert run(tmp_path, "one", [wide, enough], monkeypatch) == 0
    assert world.starts == ["plain", "ngram", "plain"] * 2
    entries, records = store.load(tmp_path / "one")
    assert len(entries) == 8 and {record.repeat for record in records} == {0, 1, 2, 3}
    assert "narrow enough" in capsys.readouterr().out
    assert '"repeat": 3' in (tmp_path / "one" / "plan.json").read_text()

    assert run(tmp_path, "two", [wide, enough], monkeypatch) == 0
    assert len(world.starts) == 6, "a second run measures nothing"
    assert run(tmp_path, "three", [wide, wide, enough], monkeypatch) == 0
    assert len(world.starts) == 9, "a third round is measured, the first two are not"


def test_a_failure_ends_the_rounds(tmp_path: Path, world: Servers, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    from runners.base import ServerFailure

    world.refuses["ngram"] = ServerFailure("crashed", "it does not start")
    assert run(tmp_path, "one", [], monkeypatch) == 1
    assert world.starts.count("plain") == 2


def test_looking_and_going_on_costs_little_coverage() -> None:
    rounds = simulated.MOST // ROUND
    ended = simulated.sequential(World("", spread=0.05, restart=0.01, rounds=rounds), 0.05, 250, seed=4)
    assert 0.91 <= ended.covered <= 0.985
    assert 2 < ended.repeats < simulated.MOST
    hopeless = simulated.sequential(World("", rounds=rounds), 0.03, 30, seed=4)
    assert (hopeless.hopeless, hopeless.repeats) == (1.0, 2.0)
