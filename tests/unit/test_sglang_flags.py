"""The command line of every shipped drafter on every supported version, held word by word and taken by its parser."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from orchestrator.config.names import ConfigError
from runners.sglang.config import ServerConfig
from runners.sglang.flags import launch
from runners.sglang.help_check import parse_help, problems
from runners.sglang.version import KNOWN, of
from tests.unit import sglang_golden as golden
from tests.unit.sglang_arms import PAIRS, SMALL, config, server

HELP = Path(__file__).parent / "sglang_help"
HELP_VERSIONS = ("0.5.16", "0.5.20", "0.5.23")
KNOWN_VERSIONS = [str(version) for version in KNOWN]


@pytest.mark.parametrize("version", KNOWN_VERSIONS)
def test_the_command_lines_are_what_they_were(version: str) -> None:
    """UPDATE_GOLDEN=1 writes the files anew; what changed is then for the reviewer to see."""
    file = golden.path(version)
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(golden.render(version), encoding="utf-8")
    assert golden.render(version) == file.read_text(encoding="utf-8")


def test_every_version_has_its_golden_file_and_no_other_is_left_over() -> None:
    assert {file.name for file in golden.FOLDER.iterdir()} == {f"{version}.txt" for version in KNOWN_VERSIONS}


@pytest.mark.parametrize("version", HELP_VERSIONS)
def test_the_version_s_own_help_takes_every_golden_line(version: str) -> None:
    """Choices included; the nightly test asks the parsers themselves."""
    known = parse_help((HELP / f"{version}.txt").read_text(encoding="utf-8"))
    lines = golden.lines(version)
    assert set(lines) == {golden.title(*pair) for pair in PAIRS}
    assert {title: problems(words, known) for title, words in lines.items()} == {title: [] for title in lines}


def test_names_that_moved_are_told_and_used_where_they_are_known() -> None:
    read = config("+server_args.mamba-scheduler-strategy=extra_buffer", *SMALL)
    for version in HELP_VERSIONS:
        flags = launch(read, of(version), "127.0.0.1", 1, "n").flags
        assert flags["mamba-radix-cache-strategy"] == "extra_buffer" and "mamba-scheduler-strategy" not in flags
    replay = config(drafter="dspine")
    old, new = (launch(replay, of(version), "127.0.0.1", 1, "n") for version in ("0.5.16", "0.5.17"))
    assert "enable-gdn-replayssm-spec" in old.flags and "enable-linear-replayssm-spec" in new.flags
    assert any("--enable-linear-replayssm-spec is called --enable-gdn-replayssm-spec" in note for note in old.notes)
    lists = config("+server_args.cuda-graph-bs='1 2 4'")
    words = launch(lists, of("0.5.23"), "127.0.0.1", 1, "n").words()
    position = words.index("--cuda-graph-bs-decode")
    assert words[position : position + 4] == ["--cuda-graph-bs-decode", "1", "2", "4"]


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("tensor-parallel-size=2", "is --tp-size, which the configuration sets"),
        ("speculative-draft-model=x", "is --speculative-draft-model-path, which the configuration sets"),
        ("served-model-name=x", "is --served-model-name, which the configuration sets"),
    ],
)
def test_an_alias_cannot_set_what_has_a_key_of_its_own(flag: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        launch(config(f"+server_args.{flag}", drafter="dflash2"), of("0.5.23"), "127.0.0.1", 1, "n")


def test_two_names_of_one_flag_are_refused() -> None:
    twice = config("+server_args.mamba-scheduler-strategy=no_buffer")
    with pytest.raises(ConfigError, match="another name of --mamba-radix-cache-strategy"):
        launch(twice, of("0.5.18"), "127.0.0.1", 1, "n")


def test_flags_that_a_version_does_not_have() -> None:
    with pytest.raises(ConfigError, match="nearest: max-mamba-cache-size"):
        launch(config("+server_args.max-mamba-cache-sizes=1"), of("0.5.23"), "127.0.0.1", 1, "n")
    newer = config("+server_args.speculative-use-block-verification=true", drafter="dflash2")
    assert "speculative-use-block-verification" in launch(newer, of("0.5.23"), "127.0.0.1", 1, "n").flags
    with pytest.raises(ConfigError, match=r"0\.5\.20 does not have .*: 0\.5\.2\d to 0\.5\.23 do"):
        launch(newer, of("0.5.20"), "127.0.0.1", 1, "n")
    vendor = config("+server_args.dspine-depth=3", drafter="dspine")
    start = launch(vendor, of("0.5.23"), "127.0.0.1", 1, "n")
    assert start.flags["dspine-depth"] == 3 and any("vendor's code has to take it" in note for note in start.notes)


def test_a_newer_version_is_treated_as_the_newest_known_one() -> None:
    read = config(drafter="dspark")
    newest, newer = (launch(read, of(version), "127.0.0.1", 1, "n") for version in ("0.5.23", "0.6.1"))
    assert newer.flags == newest.flags and newer.env == newest.env
    assert newer.notes[0] == "SGLang 0.6.1 is newer than what is known here; it is treated as 0.5.23"


def test_what_is_pinned_gives_way_to_the_config_and_to_pipelines() -> None:
    def flags(*overrides: str) -> dict[str, object]:
        return dict(launch(config(*overrides, *SMALL), of("0.5.23"), "127.0.0.1", 1, "n").flags)

    assert flags()["min-free-slots-delay"] == 1
    assert flags("+server_args.min-free-slots-delay=4")["min-free-slots-delay"] == 4
    assert "min-free-slots-delay" not in flags("+server_args.pp-size=2")
    assert flags("+server_args.disable-radix-cache=false").get("disable-radix-cache") is None


def test_the_environment() -> None:
    def env(*overrides: str, drafter: str) -> dict[str, str]:
        return launch(config(*overrides, drafter=drafter), of("0.5.23"), "127.0.0.1", 1, "n").env

    assert env(drafter="none") == {"SGLANG_PLUGINS": "none"}
    assert env("verification=cap_accept", drafter="dspark")["SGLANG_RAGGED_VERIFY_MODE"] == "cap-accept"
    compact = env("verification=compact", "verification.sps_table=/t.json", drafter="dspark")
    assert compact["SGLANG_RAGGED_VERIFY_MODE"] == "compact"
    assert env("verification=relaxed", drafter="mtp")["SGLANG_RAGGED_VERIFY_MODE"] == "static"
    assert env(drafter="dspine")["SGLANG_PLUGINS"] == "dspine"
    own = env("+env.SGLANG_PLUGINS=mine", "+env.TORCH_BLAS_PREFER_CUBLASLT=1", drafter="dflash2")
    assert own["SGLANG_PLUGINS"] == "mine" and own["TORCH_BLAS_PREFER_CUBLASLT"] == "1"
    assert "SGLANG_RAGGED_VERIFY_MODE" not in env("verification=dynamic", drafter="dspine")


def test_the_shell_line_is_ready_for_a_shell() -> None:
    spaced = config("+env.NOTE='a b'", "target.path='/models/my model'")
    line = launch(spaced, of("0.5.23"), "0.0.0.0", "FREE_PORT", "n").shell(("python", "-m", "sglang.launch_server"))
    words = shlex.split(line)
    assert words[1:5] == ["NOTE=a b", "python", "-m", "sglang.launch_server"]
    assert words[words.index("--model-path") + 1] == "/models/my model"


def test_a_key_that_nobody_maps_is_an_error() -> None:
    with pytest.raises(ValueError, match="new_knob"):
        ServerConfig.model_validate({**server(), "new_knob": 1})
