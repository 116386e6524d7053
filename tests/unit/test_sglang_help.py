"""Flags against help texts of real versions, and the table of names against the same texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.sglang import known
from runners.sglang.add_version import extended, flag_rows, variable_rows
from runners.sglang.help_check import HelpFlag, parse_help, problems
from runners.sglang.moved import name_in, newest_name
from runners.sglang.version import KNOWN, Version, of, of_image, parse, treated_as

HELP = Path(__file__).parent / "sglang_help"
TEXT = """usage: sglang serve [-h] ...

options:
  -h, --help            show this help message and exit
  --model-path MODEL_PATH, --model MODEL_PATH
                        The path of the model. See --nothing for
  --trust-remote-code   Whether or not.
  --kv-cache-dtype {auto,fp8_e5m2,bf16}
  --cuda-graph-bs-decode CUDA_GRAPH_BS_DECODE [CUDA_GRAPH_BS_DECODE ...]
  --api-keys [API_KEYS ...]
  --enable-x, --no-enable-x
  --tp-size, --tensor-parallel-size TP_SIZE  The size, as Python 3.13 writes it.
"""


def test_what_a_help_text_says() -> None:
    found = parse_help(TEXT)
    assert found["model"] == HelpFlag("model", "model-path", "value", None)
    assert found["trust-remote-code"].takes == "switch"
    assert found["kv-cache-dtype"].choices == ("auto", "fp8_e5m2", "bf16")
    assert found["cuda-graph-bs-decode"].takes == found["api-keys"].takes == "list"
    assert found["no-enable-x"] == HelpFlag("no-enable-x", "enable-x", "switch", None)
    assert found["tp-size"].takes == found["tensor-parallel-size"].takes == "value"
    assert "nothing" not in found
    with pytest.raises(ValueError, match="lists no flag"):
        parse_help("docker: Error response from daemon")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--model-path /m --trust-remote-code --cuda-graph-bs-decode 1 2 --tp-size=2 --model -1", []),
        ("--kv-cache-dtyp bf16", ["--kv-cache-dtyp is no flag of this SGLang; nearest: --kv-cache-dtype"]),
        ("--kv-cache bf16", ["--kv-cache is no flag of this SGLang; nearest: --kv-cache-dtype"]),
        ("--zzz", ["--zzz is no flag of this SGLang"]),
        ("--trust-remote-code true", ["--trust-remote-code takes no value, got true"]),
        ("--model-path", ["--model-path takes one value, got none"]),
        ("--model-path a b", ["--model-path takes one value, got a b"]),
        ("--api-keys", ["--api-keys takes one value or more, got none"]),
        ("stray --model-path a", ["stray is no flag"]),
        (
            "--kv-cache-dtype fp8",
            ["--kv-cache-dtype fp8 is not allowed here; allowed: auto, fp8_e5m2, bf16; nearest: fp8_e5m2"],
        ),
    ],
)
def test_what_a_parser_would_refuse(words: str, told: list[str]) -> None:
    assert problems(words.split(), parse_help(TEXT)) == told


def test_the_recorded_mistakes_are_found_without_a_start() -> None:
    """Both were answered with exit code 2, after half a minute of imports."""
    oldest = parse_help((HELP / "0.5.16.txt").read_text(encoding="utf-8"))
    assert problems(["--no-such-flag", "1"], oldest)[0].startswith("--no-such-flag is no flag")
    (choice,) = problems(["--attention-backend", "nope"], oldest)
    assert choice.startswith("--attention-backend nope is not allowed here; allowed: triton, torch_native")
    newest = parse_help((HELP / "0.5.23.txt").read_text(encoding="utf-8"))
    assert problems(["--cuda-graph-max-bs", "16"], newest) == [
        "--cuda-graph-max-bs is no flag of this SGLang; nearest: --cuda-graph-max-bs-decode"
    ]


@pytest.mark.parametrize("version", ["0.5.16", "0.5.20", "0.5.23"])
def test_the_table_of_names_says_what_the_version_says(version: str) -> None:
    said = parse_help((HELP / f"{version}.txt").read_text(encoding="utf-8"))
    table = known.flags(of(version))
    assert set(table) - set(said) == set()
    assert {name for name in said if name not in table} <= {"help", "metrics-host", "metrics-port", "servicer-impl"}
    assert {name: (flag.canonical, flag.takes) for name, flag in table.items()} == {
        name: (said[name].canonical, said[name].takes) for name in table
    }


def test_names_that_moved() -> None:
    old, new = KNOWN[0], KNOWN[-1]
    assert newest_name("mamba-scheduler-strategy") == newest_name("mamba-radix-cache-strategy")
    assert newest_name("tensor-parallel-size") == "tp-size"
    assert newest_name("no-such-flag") == "no-such-flag" and name_in(new, "no-such-flag") is None
    assert name_in(old, "enable-linear-replayssm-spec") == "enable-gdn-replayssm-spec"
    assert name_in(new, "enable-linear-replayssm-spec") == "enable-linear-replayssm-spec"
    assert known.flag_versions("torchao-config") == (of("0.5.16"), of("0.5.17"))


def test_variables_of_a_version() -> None:
    assert {"SGLANG_RAGGED_VERIFY_MODE", "SGLANG_SIMULATE_ACC_LEN", "SGLANG_PLUGINS"} <= known.variables(KNOWN[0])
    assert "SGLANG_ENABLE_SPEC_V2" in known.variables(of("0.5.16"))
    assert "SGLANG_ENABLE_SPEC_V2" not in known.variables(of("0.5.23"))


def test_a_new_version_is_added() -> None:
    table = "# names\na-flag a-flag value 0.5.16 -\nb-flag b-flag switch 0.5.18 -\nc c value 0.5.16 0.5.19\n"
    added = extended(table, flag_rows("  --a-flag A\n  --b-flag B\n  --d\n"), "0.5.24", "0.5.23")
    assert added.splitlines() == [
        "# names",
        "a-flag a-flag value 0.5.16 -",
        "b-flag b-flag switch 0.5.18 0.5.23",
        "b-flag b-flag value 0.5.24 -",
        "c c value 0.5.16 0.5.19",
        "d d switch 0.5.24 -",
    ]
    assert variable_rows(["x = SGLANG_A_B\n'SGL_C' SGLANG_ MYSGLANG_D"]) == {
        "SGLANG_A_B": "SGLANG_A_B",
        "SGL_C": "SGL_C",
    }


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("lmsysorg/sglang:v0.5.23", "0.5.23"),
        ("lmsysorg/sglang:v0.5.19-cu129", "0.5.19"),
        ("registry:5000/sglang:0.5.20.post1@sha256:ab", "0.5.20"),
        ("registry:5000/sglang", None),
        ("lmsysorg/sglang:latest", None),
        ("lmsysorg/sglang@sha256:ab", None),
        (None, None),
    ],
)
def test_the_version_that_a_tag_names(image: str | None, version: str | None) -> None:
    assert of_image(image) == (of(version) if version else None)


def test_versions() -> None:
    assert parse("v0.5.15.post2") == Version(0, 5, 15) < KNOWN[0]
    assert parse("nightly") is None
    assert treated_as(of("0.5.20")) == (of("0.5.20"), None)
    assert treated_as(of("0.4.9"))[0] == KNOWN[0]
    with pytest.raises(ValueError, match="'latest' is no version"):
        of("latest")
