"""The load group: what its files say, what is refused, and what a plan makes of it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from orchestrator.analysis.facts import gather
from orchestrator.paths import conf_dir
from orchestrator.planning.plan import make_plan
from orchestrator.planning.plan_text import render
from orchestrator.schema import ArmConfig, Experiment, Load, LoadPoint
from orchestrator.schema.errors import explain
from tests import plan_factory
from tests.unit.test_plan import FACTS


def option(name: str, **changes: Any) -> dict[str, Any]:
    return yaml.safe_load((conf_dir() / f"load/{name}.yaml").read_text()) | changes


def broken(load: dict[str, Any]) -> str:
    data = plan_factory.arm("plain", plan_factory.suite(), plan_factory.load()).model_dump() | {"load": load}
    with pytest.raises(ValidationError) as caught:
        ArmConfig.model_validate(data)
    return "\n".join(str(error) for error in explain(caught.value, ArmConfig, data))


@pytest.mark.parametrize("name", ["single", "concurrency", "rate"])
def test_every_option_has_every_key(name: str) -> None:
    assert list(option(name)) == list(Load.model_fields) and Load.model_validate(option(name)).name == name


@pytest.mark.parametrize(
    ("load", "told"),
    [
        (
            option("single", rate=[1]),
            "load: arrival=closed does not use rate, so rate must be null; load=single and load=concurrency are closed "
            "loops, load=rate is an open one",
        ),
        (
            option("rate", concurrency=[1]),
            "load: arrival=poisson does not use concurrency, so concurrency must be null; load=single and "
            "load=concurrency are closed loops, load=rate is an open one",
        ),
        (
            option("single", arrival="constant", concurrency=None),
            "load: arrival=constant needs rate; load=single and load=concurrency are closed loops, load=rate is an "
            "open one",
        ),
        (option("rate", rate=[0, 1]), "load.rate.0: 0: must be greater than 0"),
        (option("rate", rate=[]), "load.rate: is empty"),
        (option("rate", rate=[1, 1.0]), "load.rate: a load point occurs twice"),
        (
            option("rate", arrival="poison"),
            "load.arrival: 'poison' is not allowed\n  allowed: closed, constant, poisson\n"
            "  nearest: load.arrival=poisson",
        ),
        (
            option("single", endpoint="completion"),
            "load.endpoint: 'completion' is not allowed\n  allowed: generate, completions, chat\n"
            "  nearest: load.endpoint=completions",
        ),
        (option("single", stall_timeout_s=0), "load.stall_timeout_s: 0: must be greater than 0"),
    ],
)
def test_a_wrong_load_is_told_by_its_key(load: dict[str, Any], told: str) -> None:
    assert broken(load) == told


def experiment(tmp_path: Any, load: Load) -> Experiment:
    return plan_factory.comparison(tmp_path, plan_factory.arm("plain", plan_factory.suite(), load))[0]


def test_each_rate_is_a_load_point_that_plan_and_summary_name(tmp_path: Any) -> None:
    load = Load.model_validate(option("rate", rate=[10, 0.5], warmup_requests=1))
    planned = experiment(tmp_path, load)
    plan = make_plan(planned, FACTS)
    points = [trial.load for trial in plan.trials if trial.repeat == 0]
    assert [(point.rate, point.concurrency, point.arrival) for point in points] == [
        (10.0, None, "poisson"),
        (0.5, None, "poisson"),
    ]
    assert points[0].warmup_requests == 2, "one of each category"
    text = render(planned, plan, {})
    assert "rate: 10, 0.5 requests/s, poisson arrivals" in text and "0.5/s poisson" in text
    facts = gather(planned, plan, [], "finished", "a machine", {})
    assert sorted({trial.load for trial in facts.trials.values()}) == [
        "0.5 requests/s, poisson arrivals",
        "10 requests/s, poisson arrivals",
    ]


def test_a_load_point_is_shown_as_people_say_it() -> None:
    closed: dict[str, Any] = {
        "arrival": "closed", "concurrency": 8, "rate": None, "endpoint": "generate", "warmup_requests": 0,
        "request_timeout_s": 1.0, "stall_timeout_s": 1.0, "client": "here",
    }  # fmt: skip
    assert LoadPoint(**closed).shown == "8 in flight"
    assert LoadPoint(**closed | {"client": "node"}).shown == "8 in flight, client on the node"
    opened = closed | {"arrival": "constant", "concurrency": None, "rate": 2.5}
    assert LoadPoint(**opened).shown == "2.5/s constant"
