"""What action=plan tells of arms on SGLang, through the configuration that a user composes."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from orchestrator.config.compose import load
from orchestrator.planning import preflight
from orchestrator.planning.plan_text import launch_lines
from runners.sglang import planned
from tests.unit.sglang_arms import SMALL, server

GPU = ["preset=gpu", "+experiment=dspine_vs_dflash2"]


def test_a_user_sees_what_would_be_started_and_what_would_not_run() -> None:
    replay = 'arms.dflash2=["drafter=dflash2","+server_args.enable-linear-replayssm-spec=true"]'
    experiment = load([*GPU, replay])
    image, line, *notes = launch_lines(experiment.configs["dflash2"])
    assert image == "image lmsysorg/sglang:v0.5.23: SGLang 0.5.23 by its tag" and notes == []
    words = shlex.split(line)
    assert words[:4] == ["SGLANG_PLUGINS=none", "SGLANG_RAGGED_VERIFY_MODE=static", "sglang", "serve"]
    assert words[words.index("--served-model-name") + 1] == "qwen3_8_27b-NONCE"
    missing = preflight.missing_arms(experiment)
    assert missing["dflash2"].startswith("server_args.enable-linear-replayssm-spec: DFLASH with it needs a KDA target")
    assert "plain" not in missing
    assert "no image with the vendor's code" in missing["dspine"]
    image, line, note = launch_lines(experiment.configs["dspine"])
    assert image == "no image is named: taken for SGLang 0.5.23, asked before a start"
    assert "--speculative-draft-model-path DRAFT_WEIGHTS" in line
    assert note.startswith("note: DSPINE is vendor code")


def test_the_arms_of_these_tests_are_those_that_hydra_composes() -> None:
    arms = load(GPU).configs
    assert arms["plain"].server == server()
    assert arms["dflash2"].server == server(drafter="dflash2")


def test_a_lack_and_a_rule_are_told_together() -> None:
    small = "+drafter.server_args.max-mamba-cache-size=16"
    experiment = load([*GPU, "runner.image=lmsysorg/sglang:v0.5.18", f'arms.dspine=["drafter=dspine","{small}"]'])
    missing = preflight.missing_arms(experiment)
    assert missing["dflash2"].startswith("runner.image: SGLang 0.5.18 does not have the architecture of DFlash2")
    lack, rule = missing["dspine"].split("; also ")
    assert "no image with the vendor's code" in lack and rule.startswith("server_args.max-mamba-cache-size: 16 slots")


def test_where_a_version_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    process = server("runner.image=lmsysorg/sglang:latest", *SMALL)
    assert planned.told(process, None)[0] == (
        "image lmsysorg/sglang:latest, whose tag names no version: taken for SGLang 0.5.23, asked before a start"
    )
    process["runner"] = {"kind": "process", "command": ["python", "-m", "sglang.launch_server"]}

    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(planned, "installed_version", absent)
    source, line = planned.told(process, None)
    assert source == "sglang is not installed here: taken for SGLang 0.5.23"
    assert "python -m sglang.launch_server --host 127.0.0.1 --port FREE_PORT " in line
    monkeypatch.setattr(planned, "installed_version", lambda name: "0.5.16.post1")
    source, line = planned.told(process, 31000)
    assert source == "SGLang 0.5.16 as installed here" and "--port 31000 " in line


def test_a_command_that_cannot_be_formed_is_told_and_refused() -> None:
    wrong = server("+server_args.max-mamba-cache-sizes=1")
    _, line = planned.told(wrong, None)
    assert line == "(no command: --max-mamba-cache-sizes is no flag of SGLang 0.5.23)"
    assert planned.refusals(wrong, 0.0) == [
        "server_args.max-mamba-cache-sizes: --max-mamba-cache-sizes is no flag of SGLang 0.5.23; nearest that runs: "
        "max-mamba-cache-size"
    ]


def test_folders_at_hand_are_looked_into(tmp_path: Path) -> None:
    for name, content in (
        ("target", {"model_type": "qwen3", "num_hidden_layers": 36, "vocab_size": 151936, "hidden_size": 4096}),
        ("draft", {"architectures": ["DFlashDraftModel"], "hidden_size": 4096, "target_layer_ids": [1, 40]}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(content), encoding="utf-8")
    local = server(
        f"target.path={tmp_path}/target", f"drafter.checkpoints.qwen3_8b.path={tmp_path}/draft", drafter="dflash"
    )
    (told,) = planned.refusals(local, 0.0)
    assert told.startswith("drafter.checkpoints.qwen3_8b.path: it reads layers [1, 40] of a target that has 36")


def test_a_server_of_someone_else_has_no_command_and_no_rules() -> None:
    experiment = load(
        ["preset=gpu", "runner=attach", "runner.url=http://127.0.0.1:1", "name=one", '+arms.plain=["seed=1"]']
    )
    arm = experiment.configs["plain"]
    assert launch_lines(arm) == ["(already running: http://127.0.0.1:1)"]
    assert preflight.missing_arms(experiment) == {}
