"""The command that serves the winner."""

from __future__ import annotations

import shlex

import pytest

from orchestrator.analysis.results import Summary
from orchestrator.analysis.summary import summarize
from orchestrator.report import deploy
from tests.synthetic import facts, records


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarize(records(), facts())


def started(summary: Summary, name: str, command: str) -> Summary:
    """The summary with another start of one arm."""
    arms = [
        arm.model_copy(update={"command": shlex.split(command)} if arm.name == name else {}) for arm in summary.arms
    ]
    return summary.model_copy(update={"arms": arms})


def fastest(summary: Summary) -> str:
    arm = deploy.winner(summary)
    assert arm is not None
    return arm.name


SGLANG = "sglang serve --host 127.0.0.1 --port 41577 --served-model-name qwen3_8b-1a2b3c4d --model-path Qwen/Qwen3-8B"


def test_a_process_is_served_as_it_was_measured_less_what_was_of_the_run(summary: Summary) -> None:
    name = fastest(summary)
    made = f"env HF_TOKEN=*** SGLANG_PLUGINS=none {SGLANG} --speculative-algorithm DFLASH --parent-pid 77 --api-key ***"
    first, line = deploy.told(started(summary, name, made))
    assert first == f"To serve {name} [engine=embedded] on port 30000:"
    assert line == (
        f"  env SGLANG_PLUGINS=none sglang serve --host 127.0.0.1 --port 30000 --served-model-name {summary.target}"
        " --model-path Qwen/Qwen3-8B --speculative-algorithm DFLASH --api-key '<hidden>'"
    )


def test_a_container_keeps_its_own_port(summary: Summary) -> None:
    name = fastest(summary)
    made = (
        "docker run --rm --gpus '\"device=0\"' --publish 127.0.0.1::30000 --env HF_TOKEN --entrypoint sglang "
        "lmsysorg/sglang:v0.5.23 serve --host 0.0.0.0 --port 30000 --served-model-name qwen3_8b-1a2b"
    )
    _, line = deploy.told(started(summary, name, made))
    assert "--publish 127.0.0.1:30000:30000" in line and "--env HF_TOKEN --entrypoint" in line
    assert line.endswith(f"--host 0.0.0.0 --port 30000 --served-model-name {summary.target}")


def test_without_a_winner_no_command_is_given() -> None:
    few = [one for one in records() if one.prompt_id in ("short-1", "short-2")]
    found = summarize(few, facts())
    assert deploy.winner(found) is None, "two prompts"
    assert deploy.told(found) == [
        "No arm is shown to be faster than the plain one, so no command to serve it is given."
    ]
    base = summarize([one for one in records() if one.arm == "plain"], facts())
    assert deploy.told(base) == [], "nothing was compared"


def test_an_arm_that_may_be_no_faster_is_no_winner(summary: Summary) -> None:
    name = fastest(summary)
    arms = []
    for arm in summary.arms:
        if arm.name == name and arm.point and arm.point.speedup:
            wide = arm.point.speedup.__class__(**{**vars(arm.point.speedup), "low": 0.98})
            arm = arm.model_copy(update={"points": [arm.point.model_copy(update={"speedup": wide})]})
        arms.append(arm)
    assert deploy.winner(summary.model_copy(update={"arms": arms})) is None
