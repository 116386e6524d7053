"""Why a server failed, from what its log says.

The exit code tells nothing: a crash ends as 0, 1, -9 or 137 depending on who is process 1, and a healthy stop as -9.
The log tells nearly all, though not always truly: the advice that SGLang prints when a graph cannot be captured (less
memory) is wrong for most of the reasons that a capture fails for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from runners.sglang.failure_signatures import SIGNATURES, Cause
from runners.sglang.ready import read

_RULE_ERROR = re.compile(r"^(ValueError|AssertionError|NotImplementedError)\b")
_ANY_ERROR = re.compile(r"^(\w+\.)*\w*(Error|Exception)\b")
_FRACTION = re.compile(r"Raise --mem-fraction-static above (\d*\.\d+)")
_SCHEDULER = "Scheduler hit an exception"
_SIGTERM = "SIGTERM received"
_ECHO = "server_args=ServerArgs("
"""SGLang repeats every setting in one line: whatever stands there is no error."""
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST = 300


@dataclass(frozen=True)
class Failure:
    cause: Cause
    advice: str
    """What to do."""
    said: str
    """The line of the log that tells, "" where none does."""
    served: bool
    """It had been ready."""
    stage: str
    """What it was doing."""

    def __str__(self) -> str:
        when = "while it served" if self.served else f"while {self.stage}"
        return f"the server failed {when}{f' ({self.said})' if self.said else ''}: {self.advice}"


def classify(log: str) -> Failure:
    """The failure of a server that has ended or does not become ready, from the whole text of its log."""
    lines = [_ANSI.sub("", line).rstrip() for line in log.replace("\r", "\n").splitlines()]
    start = read(lines)
    told = [line for line in lines if line and not line[0].isspace() and _ECHO not in line]
    cause, advice, said = _signature(told) or _error(told, start.ready)
    if (fraction := _FRACTION.search(said)) is not None:
        advice = f"set target.mem_fraction_static above {fraction[1]}, in every arm"
    elif cause == "memory" and "CUDA graphs" in start.stage:
        advice = f"{advice}; or lower server_args.cuda-graph-max-bs-decode"
    return Failure(cause, advice, said[:_LONGEST], start.ready, start.stage)


def _signature(lines: list[str]) -> tuple[Cause, str, str] | None:
    for cause, pattern, advice in SIGNATURES:
        if (line := next((line for line in lines if pattern.search(line)), None)) is not None:
            return cause, advice, line
    return None


def _error(lines: list[str], served: bool) -> tuple[Cause, str, str]:
    """No known line: the error that ended it, or none at all."""
    crashed = [index for index, line in enumerate(lines) if _SCHEDULER in line]
    if any(_SIGTERM in line for line in lines) and not crashed:
        return "stopped", "it was asked to stop (SIGTERM) and did", ""
    # A server that serves prints the errors of single requests too; only those of a crash are its end.
    relevant = lines[crashed[-1] :] if crashed else ([] if served else lines)
    if (rule := next((line for line in relevant if _RULE_ERROR.match(line)), None)) is not None:
        return "setting", "SGLang refuses a setting: see what it says", rule
    if (error := next((line for line in reversed(relevant) if _ANY_ERROR.match(line)), None)) is not None:
        return "died", "see its log", error
    return (
        "killed",
        "its log has no error: it was ended from outside (a signal, its container, the kernel for memory)",
        "",
    )
