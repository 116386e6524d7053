"""SGLang as a runner is told of it, over recorded logs, answers and help texts; a real one is in tests/integration."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runners.base import ServerFailure
from runners.sglang.software import SglangSoftware
from tests.unit.sglang_arms import LOGS, log, server, server_info

HELP = Path(__file__).parent / "sglang_help"
COMMAND = ("/opt/sglang/bin/sglang", "serve")
PYTHON = ("/opt/sglang/bin/python",)


class Place:
    """Where SGLang is installed: answers what it is asked, and remembers it."""

    def __init__(self, version: str = "0.5.23", digest: str = "-") -> None:
        self.about = f"some package says hello\n{version} {digest}\n"
        self.help = (HELP / f"{version}.txt").read_text(encoding="utf-8")
        self.asked: list[Sequence[str]] = []

    def __call__(self, words: Sequence[str]) -> str:
        self.asked.append(words)
        return self.help if words[-1] == "--help" else self.about


def software(*overrides: str, drafter: str = "none") -> SglangSoftware:
    return SglangSoftware(server(*overrides, drafter=drafter), COMMAND, PYTHON)


def flags(words: Sequence[str]) -> dict[str, str]:
    assert tuple(words[:2]) == COMMAND
    pairs = zip(words[2:], [*words[3:], ""], strict=True)
    return {word: value for word, value in pairs if word.startswith("--")}


def test_the_command_line_is_that_of_the_version_which_is_there() -> None:
    place = Place()
    launch = software(drafter="dflash2").launch("127.0.0.1", 4321, place)
    made = flags(launch.words)
    assert (made["--host"], made["--port"], made["--speculative-algorithm"]) == ("127.0.0.1", "4321", "DFLASH")
    assert made["--served-model-name"].startswith("qwen3_8_27b-") and launch.env["PYTHONUNBUFFERED"] == "1"
    (first, second) = place.asked
    assert first[0] == PYTHON[0] and first[1] == "-c" and second == [*COMMAND, "--help"]


def test_no_two_starts_have_the_same_name() -> None:
    names = {flags(software().launch("127.0.0.1", 1, Place()).words)["--served-model-name"] for _ in range(3)}
    assert len(names) == 3


@pytest.mark.parametrize(
    ("overrides", "drafter", "cause", "says"),
    [
        (["+server_args.moe-runner-backend=tritonn"], "none", "argument", "nearest: triton"),
        (["+server_args.enable-lora-x=true"], "none", "argument", "--enable-lora-x"),
        (["+server_args.enable-linear-replayssm-spec=true"], "dflash2", "setting", "would refuse"),
    ],
)
def test_what_it_would_refuse_is_told_before_it_starts(
    overrides: list[str], drafter: str, cause: str, says: str
) -> None:
    with pytest.raises(ServerFailure) as caught:
        software(*overrides, drafter=drafter).launch("127.0.0.1", 1, Place())
    assert caught.value.cause == cause and says in str(caught.value) and "0.5.23" in str(caught.value)


def test_an_older_sglang_gets_its_own_flags_or_says_that_it_lacks_them() -> None:
    with pytest.raises(ServerFailure, match="DFlash2"):
        software(drafter="dflash2").launch("127.0.0.1", 1, Place("0.5.16"))
    made = software("target=qwen3_8b", drafter="dflash").launch("127.0.0.1", 1, Place("0.5.16"))
    assert flags(made.words)["--speculative-algorithm"] == "DFLASH"


@pytest.mark.parametrize("about", ["", "No module named sglang\n", "0.5.23\n", "unknown -\n"])
def test_a_version_that_cannot_be_told_is_no_start(about: str) -> None:
    place = Place()
    place.about = about
    with pytest.raises(ServerFailure, match="version of SGLang cannot be told"):
        software().launch("127.0.0.1", 1, place)


def test_the_help_of_an_installation_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEC_ORCHESTRATOR_CACHE", str(tmp_path))
    helps = []
    for digest in ("one", "one", "another", "-", "-"):
        place = Place(digest=digest)
        software().launch("127.0.0.1", 1, place)
        helps.append(sum(words[-1] == "--help" for words in place.asked))
    assert helps == [1, 0, 1, 1, 1], "a source tree, which may have changed unseen, is asked each time"
    assert len(list(tmp_path.rglob("*.txt"))) == 2


READY = {"qwen3-8b-baseline": "none", "qwen3-8b-dflash": "dflash", "qwen3-8b-dspark": "dspark"}


@contextmanager
def answering(info: dict[str, Any]) -> Iterator[str]:
    """A server that says of itself what was recorded."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(info).encode() if self.path == "/server_info" else b"{}"
            self.send_response(200 if self.path == "/server_info" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    one = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=one.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{one.server_address[1]}"
    finally:
        one.shutdown()
        one.server_close()


def started(name: str) -> tuple[SglangSoftware, dict[str, Any]]:
    """The software of a recorded start, at the end of its log, and what that server says of itself."""
    info = server_info(name)
    drafter = READY[name]
    overrides = ["target=qwen3_8b", f"target.max_running_requests={info['max_running_requests']}"]
    if drafter != "none":
        overrides.append(f"drafter.checkpoints.qwen3_8b.path={info['speculative_draft_model_path']}")
    config = server(*overrides, drafter=drafter) | {"seed": info["random_seed"]}
    one = SglangSoftware(config, COMMAND, PYTHON)
    words = one.launch("127.0.0.1", info["port"], Place()).words
    assert not one.ready("")
    for line in log(f"ready-{name}").splitlines():
        one.feed([line])
    return one, info | {"served_model_name": flags(words)["--served-model-name"]}


@pytest.mark.parametrize("name", READY)
def test_a_recorded_start_is_ready_and_proven(name: str) -> None:
    one, info = started(name)
    assert one.ready("nobody is asked") and one.feed([]) == "ready"
    with answering(info | {"api_key": "s3cret", "admin_api_key": None}) as url:
        known = one.identify(url, None)
    assert known["tokenizer_path"] == "Qwen/Qwen3-8B", "what was recorded is shortened: the config's own"
    assert known["version"] == info["version"]
    assert (known["api_key"], known["admin_api_key"]) == ("***", None)
    said = known["server_log"]
    assert said["memory_gib"]["target_weights"] == 15.28 and said["token_capacity"] > 0
    assert (said["draft_architecture"] is None) == (READY[name] == "none")


def test_what_answers_and_is_another_is_refused_with_all_that_differs() -> None:
    one, info = started("qwen3-8b-dflash")
    wrong = {"served_model_name": "qwen3_8b-00000000", "speculative_algorithm": "DSPARK", "random_seed": 99}
    with answering(info | wrong) as url, pytest.raises(ServerFailure) as caught:
        one.identify(url, [1, 2])
    assert caught.value.cause == "identity"
    for part in ("served_model_name", "speculative_algorithm is DSPARK", "random_seed", "none of those that were"):
        assert part in str(caught.value)
    with pytest.raises(ServerFailure, match="/server_info fails"):
        one.identify("http://127.0.0.1:9", None)


def test_a_drafter_of_another_kind_is_refused_though_the_server_says_what_was_asked() -> None:
    one, info = started("qwen3-8b-dflash")
    one._lines = log("dflash-given-dspark-draft").splitlines()
    with answering(info) as url, pytest.raises(ServerFailure, match="weights are a Qwen3DSparkModel"):
        one.identify(url, None)


@pytest.mark.parametrize(
    ("name", "code", "cause", "served"),
    [
        ("unknown-flag", 2, "argument", False),
        ("port-in-use", 0, "port_in_use", False),
        ("parent-sigkill-while-serving", -9, "killed", True),
    ],
)
def test_why_it_ended_is_read_from_its_log(name: str, code: int, cause: str, served: bool) -> None:
    found = software().failure(code, LOGS / f"{name}.log", served=False)
    assert (found.cause, found.served) == (cause, served) and found.log == LOGS / f"{name}.log"
    assert found.detail == "\n".join(line for line in found.detail.splitlines() if line.strip()) != ""


def test_a_log_that_was_never_written_is_no_second_error(tmp_path: Path) -> None:
    assert software().failure(1, tmp_path / "none.log", served=False).cause == "killed"
