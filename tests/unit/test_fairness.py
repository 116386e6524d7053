from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.analysis import fairness
from orchestrator.analysis.fairness import Difference, configured, refuse, reported, sent
from orchestrator.config.names import ConfigError
from orchestrator.findings.catalogue import CATALOGUE
from orchestrator.planning.plan import make_plan
from orchestrator.planning.plan_text import render
from orchestrator.schema import ArmConfig, Experiment
from tests import plan_factory
from tests.record_factory import record

# What SGLang 0.5.16 reports of a plain server with a pinned limit, cut down to what the tests change.
PLAIN: dict[str, Any] = {
    "model_path": "/models/qwen3-8b", "dtype": "auto", "kv_cache_dtype": "auto", "attention_backend": "fa3",
    "max_running_requests": 48, "chunked_prefill_size": 8192, "enable_mixed_chunk": False, "mem_fraction_static": 0.8,
    "disable_overlap_schedule": False, "disable_cuda_graph": False, "sampling_defaults": "model", "version": "0.5.16",
    "cuda_graph_config": {"decode": {"backend": "full", "bs": [1, 2, 4]}}, "port": 30000, "tp_size": 1,
    "speculative_algorithm": None, "speculative_num_draft_tokens": None, "speculative_accept_threshold_single": 1.0,
    "internal_states": [{"memory_usage": {"kvcache": 82.4}}], "max_total_num_tokens": 698876,
}  # fmt: skip
DFLASH = PLAIN | {
    "port": 30001, "speculative_algorithm": "DFLASH", "speculative_num_draft_tokens": 16,
    "internal_states": [{"memory_usage": {"kvcache": 80.1}}], "max_total_num_tokens": 600659,
}  # fmt: skip


def lint(
    *changes: dict[str, Any], varies: tuple[str, ...] = ("drafter",), flags: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Finding -> keys, for a plain server and speculating ones that report these changes."""
    arms = {"plain": [PLAIN]} | {f"spec{place}": [DFLASH | change] for place, change in enumerate(changes)}
    spec = [arm for arm in arms if arm != "plain"]
    found = reported(arms, varies, dict.fromkeys(spec, flags), spec)
    return {difference.code: difference.keys for difference in found}


def test_what_follows_from_the_drafter_or_belongs_to_one_start_is_no_difference() -> None:
    assert lint({}) == {}


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("max_running_requests", 8, "unfair_max_running_requests"),
        ("context_length", 4096, None),  # the plain server does not report it
        ("kv_cache_dtype", "fp8_e4m3", "unfair_kv_cache_dtype"),
        ("dtype", "bfloat16", "unfair_precision"),
        ("chunked_prefill_size", 2048, "unfair_prefill"),
        ("enable_mixed_chunk", True, "unfair_prefill"),
        ("disable_overlap_schedule", True, "unfair_overlap"),
        ("disable_cuda_graph", True, "unfair_cuda_graphs"),
        ("sampling_defaults", "openai", "unfair_sampling"),
        ("version", "0.5.22", "unfair_engine"),
        ("attention_backend", "triton", "unfair_attention"),
        ("mem_fraction_static", 0.7, "unfair_memory"),
        ("tp_size", 2, "unfair_parallelism"),
        ("model_path", "/models/qwen3-8b-fp8", "unfair_target"),
        ("cuda_graph_config", {"decode": {"backend": "disabled", "bs": [1, 2, 4]}}, "unfair_cuda_graphs"),
        ("cuda_graph_config", {"decode": {"backend": "full", "bs": [1, 2, 3, 4]}}, "graph_sizes"),
    ],
)
def test_a_setting_that_the_servers_report_differently_is_found(key: str, value: Any, code: str | None) -> None:
    found = lint({key: value})
    assert list(found) == ([] if code is None else [code])
    if code is not None:
        assert all(set(arms) == {"plain", "spec0"} for arms in found[code].values())


@pytest.mark.parametrize(
    ("key", "values", "code"),
    [
        ("chat_template", (None, "/x.jinja"), "unfair_chat_template"),
        ("default_chat_template_kwargs", ('{"enable_thinking": true}', None), "unfair_thinking"),
        ("image_digest", ("sha256:a", "sha256:b"), "unfair_image"),
        ("gpus", (["H100"], ["H200"]), "unfair_hardware"),
        ("threads", (2, 4), "unfair_threads"),
        ("context_length", (4096, 8192), "unfair_context_length"),
        ("stream_interval", (1, 4), "unfair_streaming"),
        ("watchdog_timeout", (300, 600), "unfair_setting"),
    ],
)
def test_so_is_one_that_only_some_servers_have(key: str, values: tuple[Any, Any], code: str) -> None:
    assert list(lint(*({key: value} for value in values))) == [code]


def test_what_varies_is_no_difference() -> None:
    assert lint({"attention_backend": "triton"}, varies=("drafter", "attention")) == {}
    assert lint({"kv_cache_dtype": "fp8_e4m3"}, varies=("drafter", "target.kv_cache_dtype")) == {}
    assert lint({"dtype": "bfloat16"}, varies=("drafter", "target.kv_cache_dtype")) != {}
    assert lint({"disable_overlap_schedule": True}, varies=("server_args.disable-overlap-schedule",)) == {}
    assert lint({"disable_overlap_schedule": True}, varies=("server_args.enable-mixed-chunk",)) != {}


def test_a_flag_that_the_drafter_s_own_file_sets_is_the_drafter_s() -> None:
    change = {"disable_overlap_schedule": True}
    assert lint(change, flags=("disable-overlap-schedule",)) == {}
    assert lint(change, flags=("enable-linear-replayssm",)) != {}
    assert lint(change, flags=("disable-overlap-schedule",), varies=("attention",)) != {}, "the drafter does not vary"


def test_thresholds_are_compared_among_those_that_speculate() -> None:
    loose = {"speculative_accept_threshold_single": 0.3}
    assert lint(loose) == {}, "a plain server has no threshold, whatever it reports"
    assert list(lint(loose, {})) == ["unfair_verification"]
    assert lint(loose, {}, varies=("drafter", "verification")) == {}


def test_starts_of_one_arm_that_report_different_settings_are_found() -> None:
    starts = {"plain": [PLAIN, PLAIN | {"version": "0.5.22"}], "spec": [DFLASH]}
    (found,) = reported(starts, ("drafter",), {}, ["spec"])
    assert found == Difference("restart_differs", {"version": {"plain": "0.5.16 then 0.5.22"}})


def test_arms_that_were_not_started_are_left_out() -> None:
    assert reported({"plain": [PLAIN], "spec": []}, (), {}, ["spec"]) == []


def test_the_same_prompt_must_be_the_same_text() -> None:
    def arms(**change: Any) -> dict[str, Any]:
        return {
            "plain": [record(prompt_id="a"), record(prompt_id="b")],
            "x": [record(arm="x", prompt_id="a", **change)],
        }

    assert sent(arms(), ("drafter",)) == []
    (found,) = sent(arms(prompt_sha256="1" * 64), ("drafter",))
    assert found.code == "unfair_prompts"
    assert found.keys == {"a": {"plain": "text " + "0" * 12, "x": "text " + "1" * 12}}
    (found,) = sent(arms(prompt_tokens=9), ("drafter",))
    assert found.keys == {"a": {"plain": "5 tokens", "x": "9 tokens"}}, "a template that the server applies"
    assert sent(arms(prompt_tokens=9), ("drafter", "suite.enable_thinking")) != []
    assert sent(arms(prompt_tokens=9), ("target",)) == []


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("target.dtype", "unfair_precision"),
        ("target.path", "unfair_target"),
        ("attention.backend", "unfair_attention"),
        ("suite.temperature", "unfair_requests"),
        ("suite.enable_thinking", "unfair_thinking"),
        ("load.concurrency", "unfair_load"),
        ("runner.threads", "unfair_threads"),
        ("runner.image", "unfair_image"),
        ("node.gpus", "unfair_hardware"),
        ("verification.mode", "unfair_verification"),
        ("drafter.name", "unfair_drafter"),
        ("seed", "unfair_setting"),
        ("server_args.disable-overlap-schedule", "unfair_overlap"),
        ("target.server_args.chunked-prefill-size", "unfair_prefill"),
        ("env.SGLANG_RAGGED_VERIFY_MODE", "unfair_setting"),
    ],
)
def test_a_config_key_has_its_finding(key: str, code: str) -> None:
    assert configured({key: {"plain": 1, "x": 2}}) == [Difference(code, {key: {"plain": 1, "x": 2}})]


def test_every_code_is_in_the_catalogue() -> None:
    codes = set(fairness._CONFIGURED.values()) | {code for _, code, _ in fairness._REPORTED}
    assert codes | {"unfair_prompts", fairness.RESTART} <= set(CATALOGUE)


def experiment(tmp_path: Path, arm: ArmConfig, **changes: Any) -> Experiment:
    suite, load = plan_factory.suite(), plan_factory.load()
    one, _ = plan_factory.comparison(tmp_path, plan_factory.arm("plain", suite, load), arm)
    return one.model_copy(update=changes)


def other(**change: Any) -> ArmConfig:
    arm = plan_factory.arm("ngram", plan_factory.suite(), plan_factory.load())
    (part, values) = next(iter(change.items()))
    return arm.model_copy(update={part: getattr(arm, part).model_copy(update=values)})


def test_what_the_configuration_alone_makes_unfair_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    unfair = other(target={"dtype": "bfloat16"})
    with pytest.raises(ConfigError) as caught:
        refuse(experiment(tmp_path, unfair))
    assert caught.value.text() == (
        "target.dtype: differs between the arms (target.dtype: plain float32, ngram bfloat16), which makes the "
        "comparison unfair: the target computes in another precision\n"
        "  hint: if that is the question, varies=[drafter,target.dtype]; to compare all the same, "
        "allow=[unfair_precision]"
    )
    refuse(experiment(tmp_path, unfair, varies=("drafter", "target.dtype")))
    refuse(experiment(tmp_path, unfair, allow=("unfair_precision",)))


def test_what_is_a_warning_only_refuses_nothing(tmp_path: Path) -> None:
    refuse(experiment(tmp_path, other(target={"context_length": 4096})))
    refuse(experiment(tmp_path, other(verification={"mode": "relaxed", "accept_threshold_single": 0.3})))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("unfair_kv_dtype", "'unfair_kv_dtype' is not a finding; allowed: .*; nearest: unfair_kv_cache_dtype"),
        ("tau_near_one", "'tau_near_one' is a finding that refuses nothing; allowed: incomplete, "),
    ],
)
def test_only_errors_can_be_allowed_and_a_typo_is_told_the_nearest(tmp_path: Path, name: str, told: str) -> None:
    data = json.loads(experiment(tmp_path, other(target={})).model_dump_json())
    with pytest.raises(ValidationError, match=told):
        Experiment.model_validate(data | {"allow": [name]})
    assert Experiment.model_validate(data | {"allow": ["unfair_engine"]}).allow == ("unfair_engine",)


FACTS: dict[str, Any] = {"hardware": "h", "engine": {"embedded": "e"}, "weights": {}, "record_schema": 1}


def test_the_plan_names_what_differs_and_says_what_a_run_would_refuse(tmp_path: Path) -> None:
    one = experiment(tmp_path, other(target={"dtype": "bfloat16", "context_length": 4096}))
    text = render(one, make_plan(one, FACTS), {})
    assert (
        "unfair_precision: differs and is not in varies: target.dtype: plain float32, ngram bfloat16 (a run is refused)"
        in text
    )
    assert (
        "unfair_context_length: differs and is not in varies: target.context_length: plain 2048, ngram 4096\n" in text
    )
    allowed = one.model_copy(update={"allow": ("unfair_precision",)})
    assert "refused" not in render(allowed, make_plan(allowed, FACTS), {})
