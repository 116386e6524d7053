"""The models refuse what is wrong, by dotted key, and derive the block arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from orchestrator.config.names import ConfigError
from orchestrator.paths import conf_dir
from orchestrator.schema import ArmConfig, Drafter, Experiment, Suite
from orchestrator.schema.errors import explain
from orchestrator.schema.place import AttachRunner, ProcessRunner
from tests import plan_factory


def drafter(name: str, **changes: Any) -> Drafter:
    return Drafter.model_validate(yaml.safe_load((conf_dir() / f"drafter/{name}.yaml").read_text()) | changes)


def arm_data() -> dict[str, Any]:
    """An embedded arm as plain data, as it comes from a composed config."""
    return plan_factory.arm("plain", plan_factory.suite(), plan_factory.load()).model_dump()


@pytest.mark.parametrize(
    ("name", "block", "proposed", "window"),
    [
        ("none", None, 0, 1),
        ("dflash2", 8, 7, 8),  # DFLASH: the block holds the anchor
        ("dflash", 16, 15, 16),
        ("dspine", 16, 15, 16),
        ("ngram", 8, 7, 8),
        ("dspark", 7, 7, 8),  # gamma counts proposed tokens
        ("eagle3", 5, 5, 6),  # a chain of steps
        ("mtp", 3, 3, 4),
    ],
)
def test_block_size_to_proposed_tokens_and_verify_window(
    name: str, block: int | None, proposed: int, window: int
) -> None:
    one = drafter(name)
    assert (one.block_size, one.proposed_tokens, one.verify_window) == (block, proposed, window)


def test_equal_work_at_different_block_sizes() -> None:
    """DFLASH 8, DSPARK gamma 7 and EAGLE with 7 steps verify the same number of tokens."""
    windows = {drafter("dflash2", block_size=8).verify_window, drafter("dspark", block_size=7).verify_window,
               drafter("eagle3", block_size=7).verify_window}  # fmt: skip
    assert windows == {8}


def test_a_tree_counts_its_tokens() -> None:
    assert drafter("eagle3", topk=4, draft_tokens=8).verify_window == 8
    with pytest.raises(ValidationError, match="with topk=1 it is block_size \\+ 1"):
        drafter("eagle3", draft_tokens=9)


def test_a_block_that_proposes_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="proposes nothing"):
        drafter("dflash2", block_size=1)
    assert drafter("dspark", block_size=1).proposed_tokens == 1


def test_every_drafter_file_declares_every_key() -> None:
    """Else Hydra would refuse drafter.block_size=4 for an arm without a drafter, before arms exist."""
    for file in (conf_dir() / "drafter").glob("*.yaml"):
        assert set(yaml.safe_load(file.read_text())) == set(Drafter.model_fields), file.name


def test_the_checkpoint_of_another_target_is_an_error_that_lists_the_targets() -> None:
    one = drafter("dspine")
    assert one.checkpoint("smollm2_135m").path == "package:runners/engine/weights/dspine_smollm2_135m"  # type: ignore[union-attr]
    with pytest.raises(ConfigError) as caught:
        one.checkpoint("qwen3_8_27")
    assert str(caught.value).splitlines()[:3] == [
        "drafter=dspine: has no weights for target=qwen3_8_27",
        "  allowed: target=smollm2_135m, target=qwen3_8_27b",
        "  nearest: qwen3_8_27b",
    ]
    assert drafter("ngram").checkpoint("anything") is None


def test_models_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        drafter("none").name = "other"  # type: ignore[misc]


def broken(change: Callable[[dict[str, Any]], None]) -> list[str]:
    data = arm_data()
    change(data)
    with pytest.raises(ValidationError) as caught:
        ArmConfig.model_validate(data)
    return [str(error) for error in explain(caught.value, ArmConfig, data)]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda d: d["attention"].update(backnd="fa3"),
            "attention.backnd: is not a key of the configuration\n  allowed: backend, draft_backend\n"
            "  nearest: attention.backend",
        ),
        (
            lambda d: d["runner"].update(thread=2),
            "runner.thread: is not a key of the configuration\n"
            "  allowed: ready_timeout_s, start_s, kind, threads, port\n  nearest: runner.threads",
        ),
        (
            lambda d: d["attention"].update(backend="flashinfr"),
            "attention.backend: 'flashinfr' is not allowed\n  allowed: fa3, flashinfer, triton, intel_amx, sdpa\n"
            "  nearest: attention.backend=flashinfer",
        ),
        (
            lambda d: d["runner"].update(kind="dockr"),
            "runner.kind: 'dockr' is not allowed\n  allowed: embedded, process, docker, attach\n"
            "  nearest: runner.kind=docker",
        ),
        (lambda d: d["target"].pop("dtype"), "target.dtype: is missing"),
        (lambda d: d["target"].update(context_length="long"), "target.context_length: 'long': must be a valid integer"),
        (lambda d: d["target"].update(tp_size=0), "target.tp_size: 0: must be greater than or equal to 1"),
        (lambda d: d["target"].update(tp_size=True), "target.tp_size: True: must be a valid integer"),
        (
            lambda d: d["target"].update(mem_fraction_static=1.5),
            "target.mem_fraction_static: 1.5: must be less than 1",
        ),
        (lambda d: d.update(env={"A": True}), "env.A: True: must be a valid string"),
        (
            lambda d: d.update(server_args={"--page-size": 1}),
            "server_args.--page-size.[key]: '--page-size': String must match pattern '^[a-z][a-z0-9-]*$'",
        ),
        (lambda d: d["load"].update(concurrency=[]), "load.concurrency: is empty"),
        (lambda d: d["load"].update(concurrency=[0]), "load.concurrency.0: 0: must be greater than or equal to 1"),
        (lambda d: d["load"].update(rate=[math.inf]), "load.rate.0: inf: must be a finite number"),
        (lambda d: d["load"].update(stall_timeout_s=math.nan), "load.stall_timeout_s: nan: must be a finite number"),
        (lambda d: d["suite"].update(temperature=float("1e400")), "suite.temperature: inf: must be a finite number"),
        (lambda d: d.update(server_args={"a": math.inf}), "server_args.a: inf: must be a finite number"),
        (lambda d: d.update(server_args={"a": [1]}), "server_args.a: [1]: must be text, a number, true, false or null"),
        (lambda d: d.update(seed=2**31), "seed: 2147483648: must be less than 2147483648"),
        (lambda d: d.update(seed=-1), "seed: -1: must be greater than or equal to 0"),
        (lambda d: d["suite"].update(seed=2**64), "suite.seed: 18446744073709551616: must be less than 2147483648"),
        (lambda d: d["suite"].update(stop=["###", ""]), "suite.stop.1: is empty"),
        (lambda d: d["drafter"].update(block_size=65), "drafter.block_size: 65: must be less than or equal to 64"),
        (lambda d: d["load"].update(concurrency=[2, 2]), "load.concurrency: a load point occurs twice"),
        (lambda d: d["suite"].update(top_k=0), "suite.top_k: is -1 (off) or at least 1"),
        (
            lambda d: d["suite"].update(max_new_tokens={"smollm2_135m": 64}),
            "suite.max_new_tokens: needs the key 'default' for targets that are not listed",
        ),
        (
            lambda d: d["suite"].update(prompts=[d["suite"]["prompts"][0]] * 2),
            "suite.prompts: prompt ids occur twice: p0",
        ),
        (
            lambda d: d["suite"]["prompts"][1]["messages"][0].update(role="assistant"),
            "suite.prompts.1.messages: the last message must be a user message",
        ),
    ],
)  # fmt: skip
def test_a_fault_is_told_by_its_dotted_key(change: Callable[[dict[str, Any]], None], told: str) -> None:
    assert broken(change) == [told]


def test_numbers_in_the_environment_become_text() -> None:
    data = arm_data() | {"env": {"SGLANG_HEALTH_CHECK_TIMEOUT": 20}}
    assert ArmConfig.model_validate(data).env == {"SGLANG_HEALTH_CHECK_TIMEOUT": "20"}


def test_token_limit_is_the_target_s_or_the_default() -> None:
    suite: Suite = plan_factory.suite(tokens=5)
    limited = suite.model_copy(update={"max_new_tokens": {"smollm2_135m": 64, "default": 5}})
    assert (limited.token_limit("smollm2_135m"), limited.token_limit("other")) == (64, 5)


def test_baseline_and_varies_name_what_exists(tmp_path: Path) -> None:
    suite, load = plan_factory.suite(), plan_factory.load()
    experiment, _ = plan_factory.comparison(tmp_path, plan_factory.arm("plain", suite, load))
    data = experiment.model_dump()
    for change, told in (
        ({"baseline": "plan"}, "baseline: 'plan' is not an arm; arms: plain; nearest: plain"),
        (
            {"varies": ["draftr.block_size"]},
            "'draftr.block_size' is not a key that arms can differ in; .*nearest: drafter",
        ),
        ({"varies": ["drafter", "load"]}, "'load' cannot vary: .*under one load.* -m load=VALUE1,VALUE2"),
        ({"varies": ["suite.temperature"]}, "'suite.temperature' cannot vary: .* -m suite.temperature=VALUE1"),
    ):
        with pytest.raises(ValidationError, match=told):
            Experiment.model_validate(data | change)


def test_the_baseline_is_an_arm_without_a_drafter(tmp_path: Path) -> None:
    suite, load = plan_factory.suite(), plan_factory.load()
    arms = [plan_factory.arm(name, suite, load) for name in ("plain", "ngram")]
    data = plan_factory.comparison(tmp_path, *arms)[0].model_dump()
    assert Experiment.model_validate(data).baseline == "plain"
    with pytest.raises(ValidationError, match=r"'ngram' drafts \(drafter=ngram\).* drafter=none; allowed: plain"):
        Experiment.model_validate(data | {"baseline": "ngram"})
    with pytest.raises(ValidationError, match=r"drafter=none: \+arms.NAME="):
        plan_factory.comparison(tmp_path, arms[1])


def test_the_url_of_a_server_holds_no_password() -> None:
    from orchestrator.schema import AttachRunner

    fields = {"kind": "attach", "engine": "sglang", "threads": None, "ready_timeout_s": 1.0, "start_s": 1.0}
    with pytest.raises(ValueError, match="would be in every record"):
        AttachRunner(**fields, url="http://me:secret@gpu-3:30000")
    assert not AttachRunner(**fields, url="http://gpu-3:30000").here


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://x:abc",
        "http://x:99999",
        "http://a b:80",
        "http://x/\u00fc",
        "http://x/?token=s3cret",
        "http://x:0",
    ],
)
def test_the_url_of_a_server_that_is_no_address_is_refused_before_anyone_is_asked(url: str) -> None:
    fields = {"kind": "attach", "engine": "sglang", "threads": None, "ready_timeout_s": 1.0, "start_s": 1.0}
    with pytest.raises(ValidationError) as caught:
        AttachRunner.model_validate({**fields, "url": url})
    assert "s3cret" not in str(caught.value.errors()[0]["msg"])


def test_a_server_is_entered_with_some_program() -> None:
    fields = {"kind": "process", "command": [], "port": None, "ready_timeout_s": 1.0, "start_s": 1.0}
    with pytest.raises(ValidationError, match="at least 1"):
        ProcessRunner.model_validate(fields)
