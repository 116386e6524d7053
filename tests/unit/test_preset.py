from __future__ import annotations

import pytest

from orchestrator.config.names import ConfigError
from orchestrator.config.preset import place
from orchestrator.planning.hardware import Gpus

EXPERIMENT = "+experiment=dspine_vs_dflash2"


def none() -> Gpus:
    return Gpus()


def one() -> Gpus:
    return Gpus(("NVIDIA H100 80GB HBM3",), "580.1")


def never() -> Gpus:
    raise AssertionError("the machine was asked though it does not decide")


def test_a_visible_gpu_takes_containers_and_none_the_embedded_engine() -> None:
    overrides, said = place([EXPERIMENT], one)
    assert overrides == ["preset=gpu", EXPERIMENT]
    assert said == (
        "runner=auto: NVIDIA H100 80GB HBM3 is visible here: preset=gpu (the published target on SGLang in containers)"
    )
    overrides, said = place([EXPERIMENT, "runner=auto"], none)
    assert overrides == ["preset=embedded", EXPERIMENT], "before the user's own, which win"
    assert said is not None
    assert said.startswith("runner=auto: no NVIDIA GPU is visible here: preset=embedded")


@pytest.mark.parametrize("chosen", [["node=ssh", "node.host=a"], ["node=h100"], ["hydra/launcher=submitit_slurm"]])
def test_another_machine_is_never_asked_and_never_embedded(chosen: list[str]) -> None:
    assert place([EXPERIMENT, *chosen], never)[0][0] == "preset=gpu"


def test_local_launchers_ask_this_machine() -> None:
    assert place([EXPERIMENT, "hydra/launcher=joblib"], none)[0][0] == "preset=embedded"


@pytest.mark.parametrize(
    ("runner", "preset"), [("embedded", "embedded"), ("docker", "gpu"), ("process", "gpu"), ("attach", "gpu")]
)
def test_a_chosen_runner_takes_its_preset(runner: str, preset: str) -> None:
    overrides, said = place([EXPERIMENT, f"runner={runner}"], never)
    assert overrides == [f"preset={preset}", EXPERIMENT, f"runner={runner}"]
    assert said is not None
    assert ("in containers" in said) == (runner == "docker")


def test_a_chosen_preset_is_kept_in_silence() -> None:
    assert place([EXPERIMENT, "preset=gpu", "runner=auto"], never) == ([EXPERIMENT, "preset=gpu"], None)


def test_a_sweep_over_runners_needs_a_preset() -> None:
    with pytest.raises(ConfigError, match="a sweep over runners needs a preset"):
        place([EXPERIMENT, "runner=embedded,docker"], none)
