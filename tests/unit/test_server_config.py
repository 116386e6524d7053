"""What no engine can do is refused, and an override that no arm takes is; pure, on arms made without Hydra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.config.names import ConfigError
from orchestrator.config.overrides import Override, check_taken, last_value
from orchestrator.config.server_config import check_combination, start_options
from orchestrator.paths import conf_dir
from orchestrator.schema import ArmConfig, Attention, LocalNode, Verification
from tests import plan_factory
from tests.unit.test_preflight import DOCKER
from tests.unit.test_schema import drafter


def arm(name: str = "plain", **changes: Any) -> ArmConfig:
    return plan_factory.arm(name, plan_factory.suite(), plan_factory.load()).model_copy(update=changes)


def sglang(**changes: Any) -> ArmConfig:
    return arm(runner=DOCKER, attention=Attention(backend="fa3", draft_backend=None), **changes)


def mode(name: str) -> Verification:
    return Verification.model_validate(yaml.safe_load((conf_dir() / f"verification/{name}.yaml").read_text()))


def target(**changes: Any) -> Any:
    return arm().target.model_copy(update=changes)


def told(one: ArmConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        check_combination(one)
    return str(caught.value)


def test_what_an_engine_cannot_do_is_refused() -> None:
    assert told(arm(attention=Attention(backend="fa3", draft_backend=None))) == (
        "attention=fa3: the embedded engine does not have this attention backend\n  allowed: attention=sdpa"
    )
    assert told(arm(runner=DOCKER)) == (
        "attention=sdpa: SGLang does not have this attention backend\n"
        "  allowed: attention=fa3, attention=flashinfer, attention=triton, attention=intel_amx\n"
        "  hint: sdpa is the embedded engine's: runner=embedded"
    )
    assert told(arm(target=target(dtype="float16"))) == (
        "target.dtype=float16: the embedded engine cannot compute in it\n  allowed: float32, bfloat16"
    )
    assert told(arm(node=LocalNode(kind="local", gpus=(0,), expect_gpu=None))) == (
        "node: the embedded engine uses no GPU\n  allowed: node.gpus=null node.expect_gpu=null"
    )
    assert told(arm(target=target(context_length=22))) == (
        "target.context_length: 22 leaves no room for a prompt beside 7 new tokens\n"
        "  hint: 23 or more, or a lower suite.max_new_tokens.smollm2_135m"
    )
    check_combination(arm(target=target(context_length=23)))
    assert told(arm(load=plan_factory.load((1, 16)))) == (
        "load.concurrency=16: is above target.max_running_requests=8: requests would queue\n"
        "  hint: target.max_running_requests=16"
    )
    assert told(sglang(server_args={"context-length": 1024})) == (
        "server_args.context-length: has a key of its own\n  hint: set target.context_length instead"
    )


@pytest.mark.parametrize(
    ("name", "verification", "start"),
    [
        ("dflash2", "dynamic", "verification=dynamic: SGLang does not have this mode with drafter=dflash2"),
        ("dflash2", "cap_accept", "verification=cap_accept: SGLang acts on this mode for DSPARK only; DFLASH would "
         "silently verify the whole block"),
        ("dspine", "cap_accept", "verification=cap_accept: SGLang does not have this mode with drafter=dspine"),
        ("dspark", "dynamic", "verification=dynamic: SGLang does not have this mode with drafter=dspark"),
    ],
)  # fmt: skip
def test_a_mode_that_sglang_would_ignore_is_refused(name: str, verification: str, start: str) -> None:
    assert told(sglang(drafter=drafter(name), verification=mode(verification))).startswith(start)


def test_modes_that_work_pass() -> None:
    for name, verification in (
        ("dspine", "dynamic"),
        ("dspark", "cap_accept"),
        ("dspark", "static"),
        ("mtp", "relaxed"),
    ):
        check_combination(sglang(drafter=drafter(name), verification=mode(verification)))
    for name, verification in (("dspine", "dynamic"), ("dflash2", "relaxed"), ("ngram", "static")):
        check_combination(arm("x", drafter=drafter(name), verification=mode(verification)))


def test_the_embedded_engine_has_no_dynamic_window_without_a_confidence_head() -> None:
    assert told(arm("x", drafter=drafter("dflash2"), verification=mode("dynamic"))) == (
        "verification=dynamic: drafter=dflash2 has no confidence head that could cut its window\n"
        '  hint: choose it in the arms that have one: \'arms.dspine=["drafter=dspine","verification=dynamic"]\''
    )
    check_combination(arm(verification=mode("dynamic")))  # a plain arm verifies nothing


def test_the_server_config_holds_what_its_mode_uses() -> None:
    one = arm("x", drafter=drafter("ngram"), verification=mode("relaxed"))
    assert one.server["verification"] == {"mode": "relaxed", "accept_threshold_single": 0.3}
    assert one.server["drafter"]["ngram_max"] == 3
    served = sglang(drafter=drafter("ngram"), verification=mode("relaxed")).server
    assert served["verification"] == {"mode": "relaxed", "accept_threshold_single": 0.3, "accept_threshold_acc": 1.0}
    assert "ngram_max" not in served["drafter"], "SGLang's lookup has knobs of its own"
    assert "verification" not in arm().server
    assert start_options(one) == {"port": None, "ready_timeout_s": 60.0}


TAKEN = [
    "drafter.block_size=4", "drafter.uses=[block_size]", "target.dtype=bfloat16", "suite.temperature=1",
    "load=concurrency", "runner.threads=1", "seed=1", "drafter.checkpoints.smollm2_135m.path=/a", "~suite.stop",
    "order=once", "hydra.verbose=true", "+experiment=x", "preset=embedded", "verification.mode=static",
]  # fmt: skip
NOT_TAKEN = [
    "drafter.draft_window=4", "drafter.topk=1", "drafter.dtype=float32", "target.mem_fraction_static=0.5",
    "verification.confidence_threshold=0.1", "+server_args.page-size=1", "+env.A=1", "node.expect_gpu=H100",
    "attention.draft_backend=fa3", "drafter.checkpoints.qwen3_8b.path=/a", "drafter.plugin.image=a", "drafter=dflash",
]  # fmt: skip


@pytest.mark.parametrize("override", [*TAKEN, *NOT_TAKEN])
def test_an_override_that_no_arm_takes_is_refused(override: str) -> None:
    arms = [arm(overrides=("drafter=none",)), arm("b", drafter=drafter("dflash2"), overrides=("drafter=dflash2",))]
    experiment, _ = plan_factory.comparison(Path("runs"), *arms)
    experiment = experiment.model_copy(update={"command_line": (override,)})
    if override in TAKEN:
        check_taken(experiment)
    else:
        with pytest.raises(ConfigError) as caught:
            check_taken(experiment)
        assert caught.value.key == override
        assert "no arm takes it" in caught.value.problem


def test_an_arm_s_own_value_hides_the_command_line_s() -> None:
    own = arm("b", overrides=("drafter=ngram", "drafter.block_size=8"))
    experiment, _ = plan_factory.comparison(Path("runs"), arm(overrides=("drafter=none",)), own)
    with pytest.raises(ConfigError, match=r"b has its own drafter\.block_size=8"):
        check_taken(experiment.model_copy(update={"command_line": ("drafter.block_size=4",)}))


def test_overrides_are_read_without_hydra() -> None:
    assert Override.of("++drafter.block_size=4") == Override("++drafter.block_size=4", "++", "drafter.block_size", "4")
    assert Override.of("~arms.x").value is None
    assert Override.of("+db@backup=mysql").key == "db"
    assert Override.of("a=b=c").value == "b=c"
    assert last_value(["runner=docker", "runner=embedded"], "runner") == "embedded"
    assert last_value([], "runner") is None
