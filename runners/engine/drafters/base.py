"""What the scheduler asks of a drafter, and what it gets back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class DraftSampling:
    """How one request samples. At temperature 0 a drafter proposes its best path; above it draws from its q."""

    temperature: float = 0.0
    generator: torch.Generator | None = None


@dataclass
class Draft:
    """Proposed tokens of one request for one verification step, left to right."""

    tokens: list[int]
    q_ids: Tensor | None = None
    """[n, k] candidate ids per position; None where the proposal is a point mass."""
    q_probs: Tensor | None = None
    """[n, k] probabilities the drafter drew from, over ``q_ids``."""
    confidence: list[float] | None = None
    """P(draft i accepted | all before it accepted), in [0, 1]; None without a confidence head."""


class Drafter(ABC):
    """Proposes tokens. Holds no request state itself: that lives in what ``open`` returns."""

    name: str
    capture_layers: tuple[int, ...] = ()
    """Target layers (0-based) whose output ``extend`` must be given; empty for drafters that read tokens only."""
    proposed: int
    """Most draft tokens per step."""
    varies_window: bool = False
    """Whether it may propose fewer than ``proposed`` tokens of its own accord."""
    gives_confidence: bool = False
    weights_sha256: str | None = None

    @abstractmethod
    def open(self, prompt: Sequence[int]) -> Any:
        """State of one request. ``prompt`` is handed over for drafters that look up tokens."""

    @abstractmethod
    def extend(self, states: Sequence[Any], token_ids: Sequence[Sequence[int]], features: Tensor | None) -> None:
        """Take in tokens that are committed and scored by the target.

        ``token_ids[i]`` are the n_i new tokens of request i, in order and without gaps from position 0 on;
        ``features`` is [sum n_i, len(capture_layers) * hidden], rows in the same order (None without capture layers).
        """

    @abstractmethod
    def propose(
        self, states: Sequence[Any], anchors: Sequence[int], limits: Sequence[int], sampling: Sequence[DraftSampling]
    ) -> list[Draft]:
        """Drafts that follow ``anchors[i]``, the last committed token, which the target has not scored yet.

        At most ``limits[i]`` tokens of request i are worth proposing. One forward serves the whole list.
        """
