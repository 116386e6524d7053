"""Arms become server sessions and trials in an order that a drift cannot favour."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.planning.plan import Plan, differences, make_plan, session_order, unexpected_differences
from orchestrator.planning.plan_text import cost, render
from orchestrator.schema import ArmConfig, Experiment
from tests import plan_factory

FACTS: dict[str, Any] = {
    "hardware": {"cpu": "a", "gpus": [], "driver": None},
    "engine": {"embedded": {"sources": "1"}, "sglang": {}},
    "weights": {},
    "record_schema": 1,
}


def experiment(*names: str, concurrency: tuple[int, ...] = (1,), repeats: int = 2, **changes: Any) -> Experiment:
    suite, load = plan_factory.suite(repeats=repeats), plan_factory.load(concurrency)
    arms: list[ArmConfig] = [plan_factory.arm(name, suite, load) for name in names]
    return plan_factory.comparison(Path("runs"), *arms)[0].model_copy(update=changes)


def order(plan: Plan) -> list[tuple[str, int, int]]:
    return [(trial.arm, trial.repeat, trial.session_index) for trial in plan.trials]


def test_three_arms_twice_are_five_starts() -> None:
    assert session_order(["A", "B", "C"], 2, "abba") == [("A", [0]), ("B", [0]), ("C", [0, 1]), ("B", [1]), ("A", [1])]


@pytest.mark.parametrize(
    ("arms", "repeats", "starts"),
    [("AB", 2, "ABA"), ("AB", 4, "ABABA"), ("ABC", 3, "ABCBABC"), ("A", 3, "A"), ("ABCD", 1, "ABCD")],
)
def test_neighbours_of_the_same_arm_share_a_start(arms: str, repeats: int, starts: str) -> None:
    assert "".join(arm for arm, _ in session_order(list(arms), repeats, "abba")) == starts


def test_once_is_one_start_per_arm() -> None:
    assert session_order(["A", "B"], 2, "once") == [("A", [0, 1]), ("B", [0, 1])]


@pytest.mark.parametrize("repeats", [2, 4])
@pytest.mark.parametrize("points", [(1,), (1, 2, 4)])
def test_a_linear_drift_falls_on_every_arm_and_load_point_alike(repeats: int, points: tuple[int, ...]) -> None:
    plan = make_plan(experiment("plain", "b", "c", concurrency=points, repeats=repeats), FACTS)
    drift: dict[tuple[str, int | None], float] = {}
    for trial in plan.trials:
        key = (trial.arm, trial.load.concurrency)
        drift[key] = drift.get(key, 0.0) + trial.position
    assert [trial.position for trial in plan.trials] == list(range(3 * repeats * len(points)))
    assert len(set(drift.values())) == 1


def test_trials_know_their_session_and_repeat() -> None:
    plan = make_plan(experiment("plain", "b", "c"), FACTS)
    assert order(plan) == [("plain", 0, 0), ("b", 0, 1), ("c", 0, 2), ("c", 1, 2), ("b", 1, 3), ("plain", 1, 4)]
    assert [session.index for session in plan.sessions] == [0, 1, 2, 3, 4]
    assert plan.sessions[0].key == plan.sessions[4].key != plan.sessions[1].key
    assert len({trial.key for trial in plan.trials}) == 6


def test_more_repeats_keep_what_is_measured() -> None:
    two, four = (make_plan(experiment("plain", "b", repeats=repeats), FACTS) for repeats in (2, 4))
    assert [trial.key for trial in four.trials[:4]] == [trial.key for trial in two.trials]


def test_warm_up_is_a_full_batch_and_each_category_or_nothing() -> None:
    one = experiment("plain", concurrency=(1, 4), repeats=1)  # two categories, one request asked for
    assert [trial.load.warmup_requests for trial in make_plan(one, FACTS).trials] == [2, 4]
    arm = one.configs["plain"]
    cold = arm.model_copy(update={"load": arm.load.model_copy(update={"warmup_requests": 0})})
    assert {
        t.load.warmup_requests for t in make_plan(one.model_copy(update={"configs": {"plain": cold}}), FACTS).trials
    } == {0}


def test_missing_arms_have_no_session() -> None:
    plan = make_plan(experiment("plain", "b"), FACTS, {"b": "no weights"})
    assert {session.arm.name for session in plan.sessions} == {"plain"}
    assert plan.missing == {"b": "no weights"}


def test_what_differs_outside_varies_is_found() -> None:
    one = experiment("plain", "b")
    assert set(differences(one)) == {
        f"drafter.{key}" for key in ("algorithm", "block_size", "name", "proposed_tokens", "verify_window")
    }
    assert unexpected_differences(one) == {}
    arm = one.configs["b"]
    longer = arm.model_copy(update={"target": arm.target.model_copy(update={"context_length": 4096})})
    other = one.model_copy(update={"configs": {**one.configs, "b": longer}})
    assert unexpected_differences(other) == {"target.context_length": {"plain": 2048, "b": 4096}}
    assert unexpected_differences(other.model_copy(update={"varies": ("drafter", "target")})) == {}


def test_a_verification_mode_is_compared_among_those_that_verify() -> None:
    one = experiment("plain", "b", "c")
    arm = one.configs["c"]
    dynamic = arm.model_copy(update={"verification": arm.verification.model_copy(update={"mode": "relaxed"})})
    other = one.model_copy(update={"configs": {**one.configs, "c": dynamic}})
    assert unexpected_differences(other)["verification.mode"] == {"b": "static", "c": "relaxed"}


def test_cost_counts_starts_requests_and_an_upper_limit_of_time() -> None:
    told = cost(make_plan(experiment("plain", "b", "c"), FACTS))
    # 5 starts of 5 s; 6 trials of 4 prompts and 2 warm-ups, 7 tokens each, at 20 tokens/s
    assert told.startswith("5 server starts, 6 trials, 24 requests and 12 to warm up; at most about 38 s")


@pytest.mark.parametrize("order", ["abba", "once"])
def test_a_plan_lists_servers_as_they_are_started_and_counts_from_one(order: str) -> None:
    one = experiment("plain", "b", "c", order=order)
    text = render(one, make_plan(one, FACTS), {})
    servers, _, trials = text.partition("\nservers\n")[2].partition("trials, in the order of measurement")
    started = re.findall(r"^  (\w+)  key \w+  start (.+)$", servers, re.M)
    last = {
        "abba": [("plain", "1 and 5"), ("b", "2 and 4"), ("c", "3")],
        "once": [("plain", "1"), ("b", "2"), ("c", "3")],
    }
    assert started == last[order]
    rows = [line.split()[:3] for line in trials.splitlines()[2:8]]
    assert [row[2] for row in rows if row[1] == "c"] == ["1", "2"], "repeats"
    assert rows[0] == ["1", "plain", "1"]


def test_a_plan_says_what_is_measured_and_what_the_rest_costs() -> None:
    one = experiment("plain", "b", "c")
    plan = make_plan(one, FACTS)
    assert "measured already" not in render(one, plan, {})
    whole = render(one, plan, {}, {trial.key for trial in plan.trials})
    assert "6 of 6 trials are measured already and not measured again: nothing is left to measure." in whole
    open_end = one.model_copy(update={"stop": one.stop.model_copy(update={"rule": "ci_width"})})
    told = render(open_end, plan, {}, {trial.key for trial in plan.trials})
    assert "6 of 6 trials are measured already and not measured again; a run may want more repeats." in told
    part = render(one, plan, {}, {plan.trials[0].key, plan.trials[2].key, plan.trials[3].key})
    # without the first start of plain and the only one of c
    assert "3 of 6 trials are measured already and not measured again. Left: 3 server starts, 3 trials, 12" in part
