"""What prompts found of themselves in the server's prefix cache, which is emptied before every trial.

Prompts of one trial share the beginning that the chat template gives them, and a server with a prefix cache rightly
computes it once. More than that means that a prompt was there before: the cache was not emptied, or prompts repeat.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from orchestrator.measuring.records import RequestRecord


def beyond_the_template(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Measured requests of one arm that found more cached than prompts can share.

    The first request of a trial meets an empty cache, so it finds nothing. The others find at most what all prompts
    begin with, which is no longer than the shortest of them.
    """
    trials: defaultdict[str, list[RequestRecord]] = defaultdict(list)
    for record in records:
        if record.outcome == "ok" and record.prompt_tokens:
            trials[record.trial_key].append(record)
    found = []
    for trial in trials.values():
        shortest = min(record.prompt_tokens or 0 for record in trial)
        first = min(trial, key=lambda record: record.sent_at)
        found += [record for record in trial if (record.cached_tokens or 0) > (0 if record is first else shortest - 1)]
    return found


def unequal(by_arm: Mapping[str, Sequence[RequestRecord]]) -> dict[str, int]:
    """Arm -> cached prompt tokens of its measured requests, where arms differ by more than 1% of the prompt tokens;
    over the prompts, repeats and loads that every arm has. Empty where they agree."""
    sums = {
        arm: {
            (record.prompt_id, record.repeat): (record.cached_tokens or 0, record.prompt_tokens or 0)
            for record in records
            if record.outcome == "ok"
        }
        for arm, records in by_arm.items()
    }
    shared = set.intersection(*map(set, sums.values())) if sums else set()
    cached = {arm: sum(own[key][0] for key in shared) for arm, own in sums.items()}
    prompt = max((sum(own[key][1] for key in shared) for own in sums.values()), default=0)
    spread = max(cached.values(), default=0) - min(cached.values(), default=0)
    return cached if spread > 0.01 * prompt else {}
