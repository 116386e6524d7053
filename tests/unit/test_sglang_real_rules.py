"""What SGLang itself refuses when it resolves its arguments, and when: wheels of the oldest and the newest version, on
the shapes of the shipped checkpoints."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runners.sglang.flags import launch
from runners.sglang.version import NEWEST, OLDEST, of
from tests import vendor_plugin
from tests.unit import sglang_golden as golden
from tests.unit import sglang_shapes
from tests.unit.sglang_arms import config
from tests.unit.sglang_wheels import environment, install_imports, unpacked
from tests.unit.test_sglang_rules import CASES

pytestmark = pytest.mark.nightly
SCRIPT = Path(__file__).parent / "sglang_real_rules.py"
AT_ONCE = {
    # Case of test_sglang_rules.py that SGLang refuses before it starts a process -> part of what it says.
    "replayssm with a tree": "requires a linear draft chain",
    "replayssm with another decode backend": "requires the triton or flashinfer linear-attn decode backend",
    "both replayssm": "requires --mamba-radix-cache-strategy no_buffer",
    "replayssm-decode with extra_buffer": "requires --mamba-radix-cache-strategy no_buffer",
    "no_buffer with overlap": "no_buffer do not support overlap schedule",
    "extra_buffer without a state": "extra_buffer needs mamba state",
    "track interval": "AssertionError",
    "pipelines": "pipeline parallelism requires PD prefill",
    "ngram in pages": "speculative_eagle_topk(10) > 1 with page_size(16) > 1",
    "relaxed rejection sampling": "rejection sampling ignores the accept thresholds",
    "a window below the block": "must be >= --speculative-num-draft-tokens",
}
LATE_OR_NEVER = (
    # It would start, load the weights, and fail then; or serve, and not do what was asked.
    "replayssm with dflash on qwen3.8", "replayssm with dspark on qwen3.8", "replayssm with ngram",
    "too few state slots", "a name of a variable", "fa3 with e5m2", "relaxed and greedy", "relaxed dspark",
    "relaxed dflash2", "dynamic without a switch", "a drafter's precision", "a window that dspark ignores",
    "made-up acceptance of ngram", "made-up acceptance in a cut window",
)  # fmt: skip


def refusals(version: str, place: Path, lines: Mapping[str, tuple[list[str], dict[str, str]]]) -> dict[str, str]:
    """Line -> what SGLang says against it, "" if nothing."""
    checkpoints = sglang_shapes.write(place / "checkpoints")
    vendor_plugin.install(place / "vendor", "right")
    asked = {
        name: {"words": [checkpoints.get(word, word) for word in words], "env": env}
        for name, (words, env) in lines.items()
    }
    imports = install_imports(place / "imports")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(unpacked(version, place))],
        input=json.dumps(asked),
        env=environment(place, imports, place / "vendor"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return told


def shipped(version: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    plugins = {title: "dspine" if title.startswith("dspine ") else "none" for title in golden.lines(version)}
    return {title: (words, {"SGLANG_PLUGINS": plugins[title]}) for title, words in golden.lines(version).items()}


def test_the_newest_takes_every_shipped_arm_and_refuses_at_once_what_is_said_of_it(tmp_path: Path) -> None:
    def line(case: str) -> tuple[list[str], dict[str, str]]:
        arguments, overrides, *_ = CASES[case]
        made: Any = launch(config(*overrides, drafter=arguments["drafter"]), NEWEST, "127.0.0.1", 1, "name")
        return made.words()[2:], made.env

    cases = {case: line(case) for case in (*AT_ONCE, *LATE_OR_NEVER)}
    told = refusals(str(NEWEST), tmp_path, {**shipped(str(NEWEST)), **cases})
    assert {case: told.pop(case) for case in LATE_OR_NEVER} == dict.fromkeys(LATE_OR_NEVER, "")
    for case, said in AT_ONCE.items():
        assert said in told.pop(case), case
    assert told == dict.fromkeys(shipped(str(NEWEST)), "")


def test_the_oldest_refuses_what_the_golden_file_says(tmp_path: Path) -> None:
    """DFlash2 is refused by it too, but only when the weights are to be loaded."""
    told = refusals(str(OLDEST), tmp_path, shipped(str(OLDEST)))
    assert "not yet compatible with mamba extra_buffer" in told.pop("dspine on qwen3_8_27b")
    assert set(told.values()) == {""} and of("0.5.16") == OLDEST
