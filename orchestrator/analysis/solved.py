"""How many answers were right, by the checks of the suite, and what a right one cost.

Judged is the text as it was recorded, so a changed check needs no new measurement. Where an answer begins with the
model's reasoning, what follows the last ``</think>`` is the answer.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn

from orchestrator.frozen import Frozen
from orchestrator.measuring.records import RequestRecord
from orchestrator.schema.check import Check, Contains, Json, Number, Regex

Verdict = Literal["solved", "wrong", "malformed", "failed"]
"""``malformed``: a `Json` check whose answer is no JSON, or lacks keys; ``failed``: the request did not end well."""

_END_OF_THINKING = "</think>"
_FENCE = re.compile(r"\A```[\w+-]*[ \t]*\n(.*?)\n?[ \t]*```\Z", re.DOTALL)
_NUMBER = re.compile(r"(?:(?<![\w.])[-\u2212])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")
"""A sign counts where no word or number stands before it; thousands may be set off by commas."""


class Answer(Frozen):
    """One request whose prompt has a check."""

    prompt_id: str
    repeat: int
    verdict: Verdict


class Solved(Frozen):
    """The checked requests of one arm under one load."""

    answers: list[Answer]
    """By prompt and repeat."""
    json_checked: int
    """Of them, those whose answer is to be JSON."""
    seconds: float
    """Their end-to-end times, summed; of one that did not end well the time until its last chunk."""
    energy_j: float | None
    """Their share of the energy of the trials, by time; None where the energy of a trial is not known."""

    @property
    def checked(self) -> int:
        return len(self.answers)

    def count(self, verdict: Verdict) -> int:
        return sum(answer.verdict == verdict for answer in self.answers)

    @property
    def solved(self) -> int:
        return self.count("solved")

    @property
    def share(self) -> float:
        return self.solved / self.checked

    @property
    def seconds_per_solved(self) -> float | None:
        """Time of all checked requests per solved one; None where none is."""
        return self.seconds / self.solved if self.solved else None

    @property
    def energy_per_solved_j(self) -> float | None:
        return self.energy_j / self.solved if self.solved and self.energy_j is not None else None


def solved(
    records: Iterable[RequestRecord], checks: Mapping[str, Check], energy_j: Mapping[str, float | None]
) -> Solved | None:
    """``checks``: prompt id -> its check; ``energy_j``: trial key -> energy. None where no measured prompt has a check.

    Energy is known per trial only, and a trial has prompts without a check: its requests share it by their time.
    """
    trials: defaultdict[str, list[RequestRecord]] = defaultdict(list)
    for record in records:
        if record.phase == "measure":
            trials[record.trial_key].append(record)
    answers, seconds, energy, known = [], [], [], True
    for key, trial in trials.items():
        asked = [record for record in trial if record.prompt_id in checks]
        answers += [
            Answer(prompt_id=one.prompt_id, repeat=one.repeat, verdict=verdict(one, checks[one.prompt_id]))
            for one in asked
        ]
        own, whole = math.fsum(map(_seconds, asked)), math.fsum(map(_seconds, trial))
        seconds.append(own)
        joules = energy_j.get(key)
        known = known and (joules is not None or not asked)
        energy.append((joules or 0.0) * own / whole if whole else 0.0)
    if not answers:
        return None
    return Solved(
        answers=sorted(answers, key=lambda answer: (answer.prompt_id, answer.repeat)),
        json_checked=sum(isinstance(checks[answer.prompt_id], Json) for answer in answers),
        seconds=math.fsum(seconds),
        energy_j=math.fsum(energy) if known else None,
    )


def verdict(record: RequestRecord, check: Check) -> Verdict:
    return judge(record.text, check) if record.outcome == "ok" else "failed"


def judge(text: str, check: Check) -> Verdict:
    """Whether one answer is right."""
    answer = text.rpartition(_END_OF_THINKING)[2].strip()
    match check:
        case Contains():
            right = all(_has_word(answer, word) for word in check.all)
        case Regex():
            right = re.search(check.pattern, answer) is not None
        case Number():
            found = _NUMBER.findall(answer)
            right = bool(found) and _equal(float(found[-1].replace(",", "").replace("\u2212", "-")), check.value)
        case Json():
            try:
                value = _parsed(answer)
            except ValueError:
                return "malformed"
            if not _has_keys(value, check.keys):
                return "malformed"
            right = check.holds is None or _holds(value, check.holds)
    return "solved" if right else "wrong"


def differing(one: Solved, other: Solved) -> tuple[list[str], list[str]]:
    """Prompts that only the one solved, and that only the other did, in the same repeat; failed requests count not."""
    theirs = {(answer.prompt_id, answer.repeat): answer.verdict for answer in other.answers}
    mine: set[str] = set()
    their_own: set[str] = set()
    for answer in one.answers:
        verdicts = (answer.verdict, theirs.get((answer.prompt_id, answer.repeat), "failed"))
        if "failed" in verdicts or (answer.verdict == "solved") == (verdicts[1] == "solved"):
            continue
        (mine if answer.verdict == "solved" else their_own).add(answer.prompt_id)
    return sorted(mine), sorted(their_own)


def _seconds(record: RequestRecord) -> float:
    if record.e2e_s is not None:
        return record.e2e_s
    return record.chunks[-1][0] if record.chunks else 0.0


def _has_word(answer: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word.strip())}(?!\w)", answer, re.IGNORECASE) is not None


def _parsed(answer: str) -> Any:
    """Raises ValueError. A fence is taken off where it is all there is: programs would stumble over words around it."""
    fenced = _FENCE.match(answer)
    try:
        return json.loads(fenced.group(1) if fenced else answer, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _has_keys(value: Any, keys: Sequence[str]) -> bool:
    if not keys:
        return True
    items = value if isinstance(value, list) else [value]
    return bool(items) and all(isinstance(item, dict) and item.keys() >= set(keys) for item in items)


def _holds(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(value, dict) and all(key in value and _holds(value[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list | tuple):
        return isinstance(value, list) and len(value) == len(wanted) and all(map(_holds, value, wanted))
    if isinstance(wanted, str):
        return isinstance(value, str) and value.strip().casefold() == wanted.strip().casefold()
    if isinstance(wanted, bool) or wanted is None:
        return value is wanted
    return not isinstance(value, bool) and isinstance(value, int | float) and _equal(value, wanted)


def _equal(one: float, other: float) -> bool:
    try:
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    except OverflowError:  # an integer beyond the floats
        return one == other
