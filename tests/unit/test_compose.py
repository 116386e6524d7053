"""Everything shipped in conf/ composes and fits the schema; every kind of typo gets a message that helps."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.config.compose import expand, hydra, hydra_settings, load
from orchestrator.config.names import ConfigError
from orchestrator.paths import conf_dir
from orchestrator.planning.plan import unexpected_differences
from orchestrator.planning.plan_text import launch_lines
from orchestrator.schema import ARM_GROUPS

EMBEDDED = ("preset=embedded", "+experiment=dspine_vs_dflash2")
GPU = ("preset=gpu", "+experiment=dspine_vs_dflash2")
ONE = ("preset=embedded", "suite=smoke_2", "name=one", '+arms.plain=["drafter=none"]')
"""The smallest experiment."""


@pytest.fixture(scope="module", autouse=True)
def _one_hydra() -> Iterator[None]:
    with hydra():
        yield


def options(group: str) -> list[str]:
    return sorted(file.stem for file in (conf_dir() / group).glob("*.yaml"))


NEEDED = {
    # What an option needs beside itself, since it is meant for it.
    "target=hf_folder": ["target.path=/models/mine"],
    "runner=attach": ["runner.url=http://127.0.0.1:30000"],
    "node=tls": ["node.url=tcp://gpu:2376"],
    "node=ssh": ["node.host=me@gpu"],  # with runner=docker, which the preset has
    "verification=compact": ["verification.sps_table=/tables/a.json", "drafter=dspark"],
    "verification=cap_accept": ["drafter=dspark"],
    "verification=dynamic": ["drafter=dspine"],
    "load=concurrency": ["target.max_running_requests=8"],
}
OF_EMBEDDED = {"attention=sdpa", "runner=embedded"}
OF_ONE_TARGET = {"drafters_27b": "qwen3_8_27b", "drafters_8b": "qwen3_8b"}
"""Experiments that choose their target themselves, whatever the machine."""


def combinations() -> list[list[str]]:
    """Choices that cover every option of every group, a few at a time; each combination is one that can be meant."""
    left = {group: options(group) for group in (*ARM_GROUPS, "tracking")}
    left["runner"].remove("auto")
    embedded = ["preset=embedded", *OF_EMBEDDED]
    for choice in OF_EMBEDDED:
        group, _, option = choice.partition("=")
        left[group].remove(option)
    made = [embedded, ["preset=embedded", "runner=docker_embedded"]]
    left["runner"].remove("docker_embedded")
    for option in left.pop("node"):
        made.append(["preset=gpu", f"node={option}", *NEEDED.get(f"node={option}", [])])
    while any(left.values()):
        chosen = [f"{group}={names.pop()}" for group, names in left.items() if names]
        needed = [text for choice in chosen for text in NEEDED.get(choice, [])]
        made.append(["preset=gpu", *chosen, *needed])
    return made


@pytest.mark.parametrize("chosen", combinations(), ids=" ".join)
def test_every_option_of_every_group_composes_and_fits_the_schema(chosen: list[str]) -> None:
    experiment = load([*chosen, "name=one", '+arms.plain=["drafter=none"]', '+arms.one=["seed=1"]'])
    arm = experiment.configs["one"]
    typed = dict(text.split("=", 1) for text in chosen)  # the last of a group, as in Hydra
    for group in ("target", "drafter", "suite", "load"):
        if group in typed:
            assert getattr(arm, group).name == typed[group], "the name in a file is the file's name"
    assert arm.seed == 1


def test_the_combinations_above_hold_every_option() -> None:
    held = {choice for chosen in combinations() for choice in chosen}
    for group in (*ARM_GROUPS, "tracking", "preset"):
        assert {f"{group}={option}" for option in options(group)} - {"runner=auto"} <= held


def test_every_group_has_options() -> None:
    groups = {folder.name for folder in conf_dir().iterdir() if folder.is_dir()}
    assert groups == {*ARM_GROUPS, "tracking", "preset", "experiment"}
    assert all(options(group) for group in groups)


@pytest.mark.parametrize(("name", "preset"), list(itertools.product(options("experiment"), options("preset"))))
def test_every_experiment_composes_under_every_preset(name: str, preset: str) -> None:
    experiment = load([f"preset={preset}", f"+experiment={name}"])
    assert experiment.name == name, "the name in a file is the file's name"
    assert experiment.baseline == "plain"
    assert list(experiment.arms) == list(experiment.configs)
    assert not experiment.configs["plain"].drafter.speculates
    assert unexpected_differences(experiment) == {}, "nothing but what varies differs"
    chosen = {
        (arm.target.name, arm.attention.backend, arm.runner.kind, arm.target.dtype)
        for arm in experiment.configs.values()
    }
    of_preset, *how = (
        ("smollm2_135m", "sdpa", "embedded", "float32")
        if preset == "embedded"
        else ("qwen3_8_27b", "fa3", "docker", "bfloat16")
    )
    assert chosen == {(OF_ONE_TARGET.get(name, of_preset), *how)}


def test_the_command_line_wins_over_the_preset_and_an_arm_over_the_command_line() -> None:
    experiment = load([*EMBEDDED, "target.dtype=bfloat16", "drafter.block_size=4", "seed=3",
                       '+arms.mine=["drafter=dspine","drafter.block_size=6","seed=5"]'])  # fmt: skip
    arms = experiment.configs
    assert {arm.target.dtype for arm in arms.values()} == {"bfloat16"}
    assert {name: arm.drafter.block_size for name, arm in arms.items()} == {
        "plain": 4, "dflash2": 4, "dspine": 4, "mine": 6,
    }  # fmt: skip
    assert {name: arm.seed for name, arm in arms.items()} == {"plain": 3, "dflash2": 3, "dspine": 3, "mine": 5}
    assert "block_size" not in arms["plain"].server["drafter"], "plain does not use it"
    assert arms["mine"].overrides == ("drafter=dspine", "drafter.block_size=6", "seed=5")


def test_the_server_config_is_what_is_documented() -> None:
    experiment = load([*EMBEDDED, 'arms.dspine=["drafter=dspine","verification=dynamic"]', "runner.threads=2"])
    assert experiment.configs["dspine"].server == {
        "engine": "embedded",
        "target": {
            "name": "smollm2_135m", "path": "smollm2_135m", "revision": None,
            "sha256": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", "dtype": "float32",
            "context_length": 2048, "max_running_requests": 8, "tokenizer_path": None, "chat_template": None,
        },
        "drafter": {
            "name": "dspine", "algorithm": "dspine", "block_size": 16, "proposed_tokens": 15, "verify_window": 16,
            "path": str(conf_dir().parent / "runners/engine/weights/dspine_smollm2_135m"), "revision": None,
        },
        "attention": {"backend": "sdpa"},
        "verification": {"mode": "dynamic", "confidence_threshold": 0.3},
        "runner": {"kind": "embedded", "threads": 2},
        "seed": 0,
    }  # fmt: skip


def test_flags_and_environment_come_from_target_drafter_and_the_top_in_this_order() -> None:
    experiment = load([*GPU, "+server_args.max-mamba-cache-size=64", "+drafter.env.A=1", "+target.env.A=0", "+env.B=2"])
    server = experiment.configs["dspine"].server
    assert server["server_args"] == {
        "mamba-radix-cache-strategy": "extra_buffer", "mamba-ssm-dtype": "float32", "enable-metrics": True,
        "enable-linear-replayssm-spec": True, "linear-replayssm-cache-len": 32, "max-mamba-cache-size": 64,
    }  # fmt: skip
    assert server["env"] == {"A": "1", "B": "2"}
    assert experiment.configs["plain"].server["env"] == {"A": "0", "B": "2"}


def test_a_plugin_brings_its_image() -> None:
    experiment = load(
        ["preset=gpu", "name=one", '+arms.plain=["drafter=none"]',
         '+arms.dspine=["drafter=dspine","drafter.plugin.image=vendor:1"]']
    )  # fmt: skip
    assert experiment.configs["dspine"].server["runner"]["image"] == "vendor:1"
    assert experiment.configs["plain"].server["runner"]["image"].startswith("lmsysorg/sglang:")


def told(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(list(overrides))
    return str(caught.value)


def golden() -> list[tuple[str, str]]:
    """(command line, message) pairs of config_errors.txt."""
    text = (Path(__file__).parent / "config_errors.txt").read_text()
    cases = (case.partition("\n") for case in text.split("\n$ ")[1:])
    return [(command, message.strip("\n")) for command, _, message in cases]


@pytest.mark.parametrize(("command", "message"), golden(), ids=[command for command, _ in golden()])
def test_typos_of_each_kind(command: str, message: str) -> None:
    words = [word for text in shlex.split(command) for word in (ONE if text == "@one" else [text])]
    assert told(*words) == message


def test_a_sweep_expands_as_hydra_does() -> None:
    jobs = expand([*EMBEDDED, "drafter.block_size=4,8", "seed=range(0,2)"])
    assert [job[2:] for job in jobs] == [
        ["drafter.block_size=4", "seed=0"], ["drafter.block_size=4", "seed=1"],
        ["drafter.block_size=8", "seed=0"], ["drafter.block_size=8", "seed=1"],
    ]  # fmt: skip
    assert [job[:2] for job in jobs] == [list(EMBEDDED)] * 4
    assert [job[-1] for job in expand(["preset=embedded", "+experiment=glob(*)"])] == [
        "+experiment=drafters_27b", "+experiment=drafters_8b", "+experiment=dspine_vs_dflash2",
        "+experiment=embedded_drafters",
    ]  # fmt: skip


def test_a_folder_of_one_s_own_adds_options_and_an_experiment_may_bring_its_sweep(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nname: mine\narms: {plain: [drafter=none]}\nhydra: {sweeper: {params: {seed: '1,2'}}}\n"
    )
    own = [f"hydra.searchpath=['file://{tmp_path}']", "preset=embedded", "+experiment=mine"]
    assert [job[0] for job in expand(own)] == ["seed=1", "seed=2"]
    experiment = load(own)
    assert experiment.name == "mine"
    assert experiment.command_line == ("preset=embedded", "+experiment=mine"), "Hydra's own are not the experiment's"


def test_hydra_keeps_its_hands_off_logging_and_the_working_directory() -> None:
    settings = hydra_settings([*EMBEDDED])
    assert settings.job.chdir is False
    assert settings.run.dir == "runs/job"
    assert settings.job_logging.root is None, "no handlers: a line would stand twice, and a file beside each result"


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("suite.repeats=100000000", "suite.repeats: 100000000: must be less than or equal to 1000"),
        ("load.warmup_requests=99999999", "must be less than or equal to 10000"),
        (f"name={'x' * 300}", "at most 100 characters"),
        ("runner.shm_size=5x", "a size: digits and b, k, m or g"),
        ("runner.image=''", "runner.image: ''"),
        ("++runner.mounts={/x: here}", "runner.mounts./x: 'here'"),
        ("node.gpus=[0,0]", "a GPU occurs twice"),
        ("node.gpus=[-1]", "-1 is no index"),
        ("tracking.uri=/tmp/runs", "tracking.uri: '/tmp/runs': must be sqlite:///FILE"),
        ("varies=drafter", "varies: 'drafter': must be a list, such as [a,b]"),
        ("~arms", "arms: the experiment has no arms"),
    ],
)
def test_a_value_that_would_fail_only_later_is_refused_by_its_key(typed: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(["preset=gpu", "suite=smoke_2", "name=one", '+arms.plain=["drafter=none"]', typed])
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["runner=process", "load.client=node"], "runner=process; allowed: here, or runner=docker or docker_embedded"),
        (
            ["node=ssh", "node.host=a", "runner=docker", "runner.network=host"],
            "host on another machine needs runner.port",
        ),
        (["node=tls", "runner=docker", "runner.network=host"], "which node=tls does not reach; allowed: bridge"),
        (["runner=docker", "runner.network=hots"], "runner.network: 'hots' is not allowed"),
    ],
)
def test_a_place_that_cannot_be_reached_is_refused(typed: list[str], told: str) -> None:
    tls = ["node.url=tcp://a:2376", "node.certs=/certs"] if "node=tls" in typed else []
    with pytest.raises(ConfigError) as caught:
        load(["preset=gpu", "suite=smoke_2", "name=one", '+arms.plain=["drafter=none"]', *typed, *tls])
    assert told in str(caught.value)
    fine = ["node=ssh", "node.host=a", "runner=docker", "runner.network=host", "runner.port=31000"]
    load(["preset=gpu", "suite=smoke_2", "name=one", '+arms.plain=["drafter=none"]', *fine])


def test_a_plan_of_the_small_engine_in_a_container_shows_the_containers_command() -> None:
    overrides = [
        "preset=embedded",
        "runner=docker_embedded",
        "suite=smoke_2",
        "name=one",
        '+arms.plain=["drafter=none"]',
    ]
    image, line = launch_lines(load(overrides).configs["plain"])
    assert image == "image spec-orchestrator/embedded:latest"
    assert line.startswith("python -m runners.engine ")
    assert "--host 0.0.0.0 --port 30000" in line
