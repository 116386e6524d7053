"""A changed anything that can change a result is another key; what cannot is not."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.planning import identity
from orchestrator.planning.plan import make_plan
from orchestrator.schema import ArmConfig, Experiment, ProcessRunner
from tests import plan_factory
from tests.unit.test_plan import FACTS, experiment

Change = Callable[[dict[str, Any]], None]


def changed(one: Experiment, change: Change, arm: str = "b") -> Experiment:
    data = one.configs[arm].model_dump()
    change(data)
    return one.model_copy(update={"configs": {**one.configs, arm: ArmConfig.model_validate(data)}})


def keys(one: Experiment, facts: dict[str, Any] = FACTS) -> list[str]:
    return [trial.key for trial in make_plan(one, facts).trials]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["target"].update(dtype="bfloat16"),
        lambda d: d["target"].update(revision="abc"),
        lambda d: d["target"].update(sha256="abc"),
        lambda d: d["target"].update(context_length=1024),
        lambda d: d["drafter"].update(block_size=8),
        lambda d: d["verification"].update(mode="relaxed", accept_threshold_single=0.5),
        lambda d: d["runner"].update(threads=1),
        lambda d: d.update(seed=1),
        lambda d: d["suite"].update(temperature=0.7),
        lambda d: d["suite"].update(seed=1),
        lambda d: d["suite"].update(ignore_eos=True),
        lambda d: d["suite"]["max_new_tokens"].update(default=8),
        lambda d: d["suite"]["prompts"][0]["messages"][0].update(content="another"),
        lambda d: d["load"].update(concurrency=[2]),
        lambda d: d["load"].update(warmup_requests=0),
        lambda d: d["load"].update(request_timeout_s=1.0),
    ],
)
def test_what_can_change_a_result_changes_every_key_of_the_comparison(change: Change) -> None:
    one = experiment("plain", "b")
    assert not set(keys(one)) & set(keys(changed(one, change)))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["suite"].update(description="told otherwise"),
        lambda d: d["suite"]["prompts"][0].update(check={"kind": "number", "value": 3.0}),
        lambda d: d["suite"]["max_new_tokens"].update(qwen3_8_27b=8),  # another target's limit
        lambda d: d["target"].update(mem_fraction_static=0.5),  # the embedded engine has no such setting
        lambda d: d["target"].update(plain_tok_s=99.0),
        lambda d: d["drafter"].update(draft_window=512),  # this drafter has no such knob
        lambda d: d["verification"].update(confidence_threshold=0.9),  # static
        lambda d: d["runner"].update(port=8123, ready_timeout_s=5.0, start_s=1.0),
        lambda d: d.update(env={"A": "1"}),
        lambda d: d.update(overrides=["drafter=b", "seed=0"]),
    ],
)
def test_what_cannot_change_a_result_changes_no_key(change: Change) -> None:
    one = experiment("plain", "b")
    assert keys(one) == keys(changed(one, change))


def test_values_that_a_plain_arm_does_not_use_are_dropped() -> None:
    one = experiment("plain", "b")
    other = changed(one, lambda d: d["drafter"].update(block_size=4, draft_window=9), "plain")
    assert keys(one) == keys(other)
    assert other.configs["plain"].server["drafter"] == {
        "name": "none", "algorithm": None, "proposed_tokens": 0, "verify_window": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("hardware", {"cpu": "b"}),
        ("engine", {"embedded": {"sources": "2"}, "sglang": {}}),
        ("record_schema", 2),
        ("weights", {"smollm2_135m": "abc"}),
    ],
)
def test_hardware_engine_weights_and_record_schema_are_part_of_a_key(part: str, value: Any) -> None:
    one = experiment("plain", "b")
    assert not set(keys(one)) & set(keys(one, {**FACTS, part: value}))


def test_the_order_and_the_place_in_it_are_part_of_a_key() -> None:
    one = experiment("plain", "b")
    assert len(set(keys(one))) == 4
    assert not set(keys(one)) & set(keys(one.model_copy(update={"order": "once"})))


def test_the_plain_arm_of_one_comparison_does_not_stand_in_for_that_of_another() -> None:
    assert not set(keys(experiment("plain", "b"))) & set(keys(experiment("plain", "b", "c")))


def test_weights_count_by_content_not_by_place(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(b"weights")
    here, there = (identity.weights_hash(str(tmp_path / name)) for name in ("here", "there"))
    assert here == there is not None
    identity.weights_hash.cache_clear()
    (tmp_path / "there" / "README.md").write_text("a model card is not loaded")
    assert identity.weights_hash(str(tmp_path / "there")) == here
    identity.weights_hash.cache_clear()
    (tmp_path / "there" / "model.safetensors").write_bytes(b"trained further")
    assert identity.weights_hash(str(tmp_path / "there")) != here
    assert identity.weights_hash("Qwen/Qwen3-8B") is None
    assert identity.weights_hash(str(tmp_path / "nowhere")) is None


def test_content_hash_does_not_depend_on_the_order_of_keys() -> None:
    assert identity.content_hash({"a": 1, "b": [2.0, None]}) == identity.content_hash({"b": [2.0, None], "a": 1})
    assert identity.content_hash({"a": 1}) != identity.content_hash({"a": 1.5})


def test_the_engine_is_known_by_its_sources_and_packages() -> None:
    engine = identity.embedded_engine()
    assert set(engine) == {"sources", "torch", "llvmlite", "tokenizers"}
    assert len(engine["sources"] or "") == identity.KEY_LENGTH


def test_an_installed_sglang_is_known_by_the_packages_of_its_interpreter(tmp_path: Path) -> None:
    folder = tmp_path / "site/sglang-0.5.23.dist-info"
    folder.mkdir(parents=True)
    runner = ProcessRunner(
        kind="process", command=(sys.executable, "-m", "sglang"), port=None, ready_timeout_s=1.0, start_s=1.0
    )
    env = {"PYTHONPATH": str(tmp_path / "site")}
    arm = plan_factory.arm("plain", plan_factory.suite(), plan_factory.load(), runner=runner, env=env)
    found = []
    for version in ("0.5.22", "0.5.23"):
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
        identity.installed_sglang.cache_clear()
        facts = identity.gather([arm], {})
        (known,) = facts["engine"]["sglang"].values()
        assert known["sglang"] == version and "torch" in known and "pytest" not in known
        found.append(identity.arm_content(arm, facts))
    assert found[0] != found[1] and found[0]["server"] == found[1]["server"]
    # What lies behind it on the path is not what is imported; a folder without a name keeps nothing from being told.
    behind = tmp_path / "behind/sglang-0.5.16.dist-info"
    behind.mkdir(parents=True)
    (behind / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.16\n")
    (tmp_path / "behind/left-1.0.dist-info").mkdir()
    both = {"PYTHONPATH": f"{tmp_path / 'site'}:{tmp_path / 'behind'}"}
    assert identity.installed_sglang(runner.command, tuple(both.items()))["sglang"] == "0.5.23"
    away = arm.model_copy(update={"runner": runner.model_copy(update={"command": ("no-such-sglang",)})})
    assert identity.gather([away], {})["engine"]["sglang"] == {"no-such-sglang": None}
    identity.arm_content(away, identity.gather([away], {}))


def test_gather_does_not_change_what_it_is_given() -> None:
    arm = plan_factory.arm("plain", plan_factory.suite(), plan_factory.load())
    before = copy.deepcopy(arm.server)
    facts = identity.gather([arm], {})
    assert set(facts) == {"hardware", "engine", "images", "weights", "record_schema"}
    assert arm.server == before


def test_what_is_no_file_of_a_model_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    before = identity.weights_hash(str(tmp_path))
    os.mkfifo(tmp_path / "pipe.json")  # which would be waited for
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    identity.weights_hash.cache_clear()
    assert identity.weights_hash(str(tmp_path)) == before


def test_a_folder_without_a_model_is_not_walked(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    before = identity.weights_hash(str(tmp_path))
    (tmp_path / "inner" / "a.json").write_text("{}")
    identity.weights_hash.cache_clear()
    assert identity.weights_hash(str(tmp_path)) == before
