"""Prompt lookup: the continuation of the longest earlier match of the last tokens.

The method is prompt lookup decoding (Saxena 2023), as in transformers' ``prompt_lookup_num_tokens``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from runners.engine.drafters.base import Draft, Drafter, DraftSampling


@dataclass
class _History:
    tokens: list[int] = field(default_factory=list)
    ends: dict[tuple[int, ...], int] = field(default_factory=dict)
    """n-gram -> index just past its latest occurrence that has a continuation."""


class NgramDrafter(Drafter):
    name = "ngram"
    varies_window = True  # nothing is proposed without a match

    def __init__(self, block_size: int, longest: int = 3, shortest: int = 1) -> None:
        self.proposed = block_size - 1
        self._sizes = range(longest, shortest - 1, -1)

    def open(self, prompt: Sequence[int]) -> _History:
        return _History()

    def extend(self, states: Sequence[_History], token_ids: Sequence[Sequence[int]], features: Tensor | None) -> None:
        for state, new in zip(states, token_ids, strict=True):
            for token in new:
                self._index_end(state)
                state.tokens.append(token)

    def _index_end(self, state: _History) -> None:
        # Called before a token is appended: the n-grams that end here now get a continuation.
        end = len(state.tokens)
        for size in self._sizes:
            if end >= size:
                state.ends[tuple(state.tokens[end - size :])] = end

    def propose(
        self,
        states: Sequence[_History],
        anchors: Sequence[int],
        limits: Sequence[int],
        sampling: Sequence[DraftSampling],
    ) -> list[Draft]:
        return [
            Draft(self._lookup(state, anchor)[: min(limit, self.proposed)])
            for state, anchor, limit in zip(states, anchors, limits, strict=True)
        ]

    def _lookup(self, state: _History, anchor: int) -> list[int]:
        tail = [*state.tokens[-(self._sizes.start - 1) :], anchor] if self._sizes.start > 1 else [anchor]
        known = [*state.tokens, anchor]
        for size in self._sizes:
            end = state.ends.get(tuple(tail[-size:])) if len(tail) >= size else None
            if end is not None:
                for i in range(self.proposed):  # a match near the end goes on into its own copy
                    known.append(known[end + i])
                return known[-self.proposed :]
        return []
