"""Builds requests and their records for tests, field by field; what a test does not name has a plain default."""

from __future__ import annotations

from typing import Any

from orchestrator.load.request import Request, Sampling
from orchestrator.measuring.records import RequestRecord, SpecCounters


def request(tokens: int = 7, **fields: Any) -> Request:
    """A measured request for ``tokens`` tokens, or with ``sampling`` of its own."""
    defaults: dict[str, Any] = {
        "text": "prompt",
        "sampling": Sampling(max_new_tokens=tokens),
        "trial_key": "t0",
        "arm": "plain",
        "session_index": 0,
        "phase": "measure",
        "prompt_id": "p0",
        "category": "short",
        "repeat": 0,
    }
    return Request(**(defaults | fields))


def record(**fields: Any) -> RequestRecord:
    """A well-ended request of four tokens, one per 0.1 s after a first at 0.2 s, from a plain server."""
    ids = fields.get("output_ids", [11, 12, 13, 14])
    defaults: dict[str, Any] = {
        "trial_key": "t0",
        "arm": "plain",
        "session_index": 0,
        "phase": "measure",
        "prompt_id": "p0",
        "category": "short",
        "prompt_sha256": "0" * 64,
        "repeat": 0,
        "sent_wall_time": 1000.0,
        "sent_at": 0.0,
        "chunks": [(0.2 + 0.1 * place, place + 1) for place in range(len(ids))],
        "e2e_s": 0.1 + 0.1 * len(ids),
        "prompt_tokens": 5,
        "completion_tokens": len(ids),
        "cached_tokens": 0,
        "output_ids": ids,
        "text": "text",
        "finish_reason": "length",
        "spec": None,
        "outcome": "ok",
    }
    return RequestRecord.model_validate(defaults | fields)


def counters(histogram: list[int], proposed: int, windows: list[int] | None = None) -> SpecCounters:
    """Counters of steps with the given histogram of correct drafts."""
    return SpecCounters(
        spec_verify_ct=sum(histogram),
        spec_num_correct_drafts=sum(index * count for index, count in enumerate(histogram)),
        spec_num_proposed_drafts=proposed,
        spec_correct_drafts_histogram=histogram,
        spec_cap_lens_histogram=windows,
    )
