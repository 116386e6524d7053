"""What an engine says, and the state it leaves, become a cause and what to do. The texts are real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runners.base import ServerFailure
from runners.docker import failures

LOG = Path("server.log")

REFUSALS = [
    line.split(" | ", maxsplit=4)
    for line in Path(__file__).with_name("docker_errors.txt").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize(("kind", "status", "cause", "told", "text"), REFUSALS)
def test_a_refusal_names_its_cause_and_what_to_do(kind: str, status: str, cause: str, told: str, text: str) -> None:
    failure = failures.refused(kind, None if status == "-" else int(status), text, "the container of x:1")
    assert failure.cause == cause
    assert "the container of x:1" in str(failure) and text in str(failure) and "{1}" not in str(failure)
    assert told == "-" or told in str(failure)


def test_every_cause_that_is_told_has_a_real_text() -> None:
    assert {one.cause for one in failures._REFUSALS} <= {row[2] for row in REFUSALS}


def state(**facts: Any) -> dict[str, Any]:
    running = {
        "Status": "exited", "Running": False, "Paused": False, "Restarting": False, "OOMKilled": False, "Dead": False,
        "Pid": 0, "ExitCode": 1, "Error": "", "StartedAt": "2026-11-30T21:30:32.191251865Z",
    }  # fmt: skip
    return running | facts


def said(cause: str) -> ServerFailure:
    return ServerFailure(cause, f"the log says {cause}", LOG, served=True, detail="its last lines")


@pytest.mark.parametrize(
    ("facts", "of_log", "cause"),
    [
        ({}, "weights", "weights"),
        ({}, "died", "died"),
        ({"ExitCode": 137, "OOMKilled": True}, "killed", "memory"),
        ({"ExitCode": 1, "OOMKilled": True}, "died", "memory"),  # a child was killed: the code is the server's own
        ({"ExitCode": 137}, "killed", "killed"),
        ({"ExitCode": 137}, "memory", "memory"),  # SGLang ends itself with SIGKILL: its log knows why
        ({"ExitCode": 137}, "died", "died"),  # its log has an error, if not a known one
        ({"ExitCode": 143}, "died", "stopped"),
        ({"ExitCode": 127}, "died", "command"),
        ({"ExitCode": 127, "Error": 'exec: "x": executable file not found in $PATH'}, "died", "command"),
    ],
)
def test_a_state_tells_where_the_log_does_not(facts: dict[str, Any], of_log: str, cause: str) -> None:
    failure = failures.ended(state(**facts), said(of_log), LOG)
    assert (failure.cause, failure.log, failure.served) == (cause, LOG, True)
    assert failure.detail == "its last lines"


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 1), (128, 128), (137, -9), (143, -15), (255, 255)])
def test_an_exit_code_above_128_is_a_signal(code: int, expected: int) -> None:
    assert failures.code_of(state(ExitCode=code)) == expected


def test_podman_s_first_process_ends_with_1_for_a_program_that_is_not_there() -> None:
    log = ServerFailure("died", "", LOG, False, "ERROR (catatonit:6): failed to exec pid1: No such file or directory")
    assert failures.ended(state(ExitCode=1), log, LOG).cause == "command"


def test_a_removed_container_is_told_from_one_that_ended() -> None:
    failure = failures.removed(LOG, True, "its last lines")
    assert failure.cause == "container_gone" and failure.served and failure.detail == "its last lines"
