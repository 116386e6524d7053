"""What is shipped can be planned as it is: every experiment, and every drafter on each of its targets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.config.compose import hydra, load
from orchestrator.paths import conf_dir
from orchestrator.planning import preflight
from orchestrator.planning.identity import gather
from orchestrator.planning.plan import make_plan
from orchestrator.planning.plan_text import render
from orchestrator.schema import Experiment
from runners.sglang.memory_estimate import Checkpoint, estimate, free_gib
from tests.unit.sglang_arms import PAIRS, config
from tests.unit.sglang_shapes import CONFIGS

EXPERIMENTS = sorted(file.stem for file in (conf_dir() / "experiment").glob("*.yaml"))
NO_VENDOR = (
    "drafter=dspine: no image with the vendor's code and no public weights for target=qwen3_8_27b; name what there "
    'is in the arm: \'arms.dspine=["drafter=dspine","drafter.plugin.image=<tag>",'
    '"drafter.checkpoints.qwen3_8_27b.path=<folder or id>"]\''
)
LACKS = {"dspine_vs_dflash2": {"dspine": NO_VENDOR}, "embedded_drafters": {"dspine": NO_VENDOR}}
"""What cannot run on a GPU node without the user's doing: what is not public."""
REPLAY = "server_args.enable-linear-replayssm-spec"


@pytest.fixture(scope="module", autouse=True)
def _one_hydra() -> Iterator[None]:
    with hydra():
        yield


def pair(preset: str, drafter: str, *more: str) -> Experiment:
    """A plain arm, and one with the drafter."""
    arms = ('+arms.plain=["drafter=none"]', f'+arms.arm=["drafter={drafter}","seed=1"]')
    return load([f"preset={preset}", "name=pair", *arms, *more])


def plan(experiment: Experiment) -> str:
    return render(
        experiment, make_plan(experiment, gather(experiment.configs.values(), {})), preflight.missing_arms(experiment)
    )


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_plans_on_a_gpu_node(name: str) -> None:
    experiment = load(["preset=gpu", f"+experiment={name}"])
    missing = preflight.missing_arms(experiment)
    assert missing == LACKS.get(name, {})
    text = plan(experiment)
    for arm in experiment.arms:
        assert f"  {arm}  key " in text and (f"arm {arm} cannot run: " in text) == (arm in missing)
    assert text.count("sglang serve --host 0.0.0.0") == len(experiment.arms)
    assert "no command" not in text and "differs and is not in varies" not in text
    readme = conf_dir().parent / "experiments" / name / "README.md"
    assert f"+experiment={name}" in readme.read_text(encoding="utf-8")


def test_a_vendor_s_arm_runs_once_its_image_and_weights_are_named() -> None:
    """As containers/dspine/README.md says; both are of that arm only."""
    named = '"drafter.plugin.image=dspine:v0.5.23","drafter.checkpoints.qwen3_8_27b.path=vendor/DSpine"'
    experiment = load(["preset=gpu", "+experiment=dspine_vs_dflash2", f'arms.dspine=["drafter=dspine",{named}]'])
    assert preflight.missing_arms(experiment) == {}
    text = plan(experiment)
    assert "image dspine:v0.5.23: SGLang 0.5.23 by its tag" in text
    assert "SGLANG_PLUGINS=dspine " in text and "--speculative-draft-model-path vendor/DSpine " in text


@pytest.mark.parametrize(("drafter", "target"), PAIRS)
def test_every_drafter_plans_on_each_of_its_targets(drafter: str, target: str) -> None:
    experiment = pair("gpu", drafter, f"target={target}")
    own = NO_VENDOR.replace("arms.dspine", "arms.arm").replace('drafter=dspine",', 'drafter=dspine","seed=1",')
    missing = {"arm": own} if drafter == "dspine" else {}
    assert preflight.missing_arms(experiment) == missing
    assert "sglang serve" in plan(experiment)


@pytest.mark.parametrize("drafter", ["ngram", "dflash2", "dspine"])
def test_every_drafter_of_the_embedded_engine_plans_on_its_target(drafter: str) -> None:
    experiment = pair("embedded", drafter)
    assert preflight.missing_arms(experiment) == {} and f"--drafter {drafter}" in plan(experiment)


@pytest.mark.parametrize(
    ("drafter", "target", "has"),
    [("dflash2", "qwen3_8b", "qwen3_8_27b"), ("eagle3", "qwen3_8_27b", "qwen3_8b"), ("mtp", "qwen3_8b", "qwen3_8_27b")],
)
def test_a_pair_without_weights_is_named_with_the_targets_that_have_them(drafter: str, target: str, has: str) -> None:
    experiment = pair("gpu", drafter, f"target={target}")
    assert f"arm arm cannot run: drafter={drafter}: has no weights for target={target}; it has weights for" in (
        plan(experiment)
    )
    assert f"target={has}" in preflight.missing_arms(experiment)["arm"]


def test_a_combination_that_sglang_refuses_is_in_the_plan_with_what_runs_instead() -> None:
    """SGLang says it of DFLASH and DSPARK minutes later, when the weights are loaded; of MTP it does not."""
    experiment = load(["preset=gpu", "+experiment=drafters_27b", f"+{REPLAY}=true"])
    missing = preflight.missing_arms(experiment)
    assert list(missing) == ["dflash2", "dspark", "ngram"]
    assert missing["dspark"] == (
        f"{REPLAY}: DSPARK with it needs a KDA target, and this one is GDN (all of Qwen3.5 to 3.8); SGLang says so "
        "only after it has loaded the weights; nearest that runs: leave enable-linear-replayssm-spec out of this arm "
        "(recorded as a difference); of the drafters, mtp runs with it"
    )
    late = "SGLang says so only after it has loaded the weights"
    assert f"proposes a tree; {late}; nearest that runs: leave enable-linear-replayssm-spec out" in missing["ngram"]
    text = plan(experiment)
    assert all(f"  arm {arm} cannot run: {reason}" in text for arm, reason in missing.items())


def test_what_the_refusal_advises_runs() -> None:
    dropped = [f'arms.{arm}=["drafter={arm}","++{REPLAY}=false"]' for arm in ("dflash2", "dspark", "ngram")]
    experiment = load(["preset=gpu", "+experiment=drafters_27b", f"+{REPLAY}=true", *dropped])
    assert preflight.missing_arms(experiment) == {}


def test_more_requests_than_state_slots_are_refused_with_how_many_it_takes() -> None:
    more = ["preset=gpu", "+experiment=drafters_27b", "target.max_running_requests=8"]
    missing = preflight.missing_arms(load(more))
    assert set(missing) == {"plain", "dflash2", "dspark", "mtp", "ngram"}
    assert missing["plain"].endswith("not target.max_running_requests=8; nearest that runs: 40")
    assert preflight.missing_arms(load([*more, "target.server_args.max-mamba-cache-size=40"])) == {}


EIGHT = ("target.max_running_requests=8", "target.server_args.max-mamba-cache-size=40")


@pytest.mark.parametrize("drafter", [drafter for drafter, target in PAIRS if target == "qwen3_8_27b"])
def test_the_large_target_has_room_in_every_arm_on_the_machine_of_the_published_figures(drafter: str) -> None:
    """One H100 80 GB. The largest drafter's 3.85 GB are counted for each that has weights."""
    target = Checkpoint(54_000_000_000, CONFIGS["Qwen/Qwen3.8-27B"])
    weights = Checkpoint(3_850_000_000, CONFIGS["incoai/Qwen3.8-27B-DFlash2"])
    draft = None if drafter in ("none", "mtp", "ngram") else weights

    def room(gpu: str, *overrides: str) -> int:
        found = estimate(config(*overrides, drafter=drafter), target, draft, free_gib(gpu) or 0.0)
        assert found is not None
        return found.tokens

    assert room("NVIDIA H100 80GB HBM3") > 2 * 16384, "tokens for more than two requests of the whole context"
    assert room("NVIDIA H200", *EIGHT) > 8 * 16384
    if drafter in ("dflash2", "dspark"):
        assert room("NVIDIA H100 80GB HBM3", *EIGHT) < 0, "why four is what is shipped"
