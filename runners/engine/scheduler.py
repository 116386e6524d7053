"""Continuous batching: which tokens enter the next forward, and what becomes of the result.

A step is (1) one forward of waiting prompts, at most ``PREFILL_TOKENS`` at a time, then (2) one verification of all
running requests: one drafter forward proposes for all, one target forward scores anchor and drafts of all. Without a
drafter a verification is a plain decode of one token each.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from runners.engine import sampling
from runners.engine.drafters.base import Draft, Drafter, DraftSampling
from runners.engine.llama import KVCache, Llama
from runners.engine.request import Finish, Output, Request, SpecCounters
from runners.engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

PREFILL_TOKENS = 512
"""Prompt tokens per forward: bounds how long a long prompt holds up the others' next token, and the mask's memory."""


@dataclass(frozen=True)
class Verification:
    """How drafts are verified: ``static`` all of them, ``dynamic`` those the drafter is confident of, ``relaxed`` all
    of them with a lossy acceptance rule."""

    mode: str = "static"
    confidence_threshold: float = 0.3
    """dynamic: least probability that a draft is reached and accepted for it to be verified."""
    accept_threshold: float = 0.3
    """relaxed: a draft that the target gives at least this probability is accepted."""


@dataclass
class Totals:
    """Sums over requests."""

    verify_ct: int = 0
    correct: int = 0
    proposed: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0
    requests: int = 0

    def since(self, before: Totals) -> Totals:
        return Totals(**{f.name: getattr(self, f.name) - getattr(before, f.name) for f in fields(self)})


@dataclass(eq=False)
class _Running:
    """State of a request that has a cache."""

    request: Request
    output: Output
    cache: KVCache
    generator: torch.Generator
    draft_state: Any
    new: list[int] = field(default_factory=list)
    """Tokens that the step in progress brought."""

    @property
    def prefilled(self) -> bool:
        return bool(self.output.ids)


class Scheduler:
    """Single-threaded: every method is called by one thread. See ``worker.py`` for the thread."""

    def __init__(
        self,
        target: Llama,
        tokenizer: Tokenizer,
        drafter: Drafter | None,
        verification: Verification,
        max_running_requests: int,
        seed: int,
    ) -> None:
        """Raises ValueError for dynamic verification with a drafter that gives no confidence, or without one."""
        if verification.mode == "dynamic" and not (drafter and drafter.gives_confidence):
            raise ValueError(
                f"verification mode 'dynamic' needs a drafter with a confidence head; drafter "
                f"{drafter.name if drafter else 'none'!r} has none (use 'static')"
            )
        self.target, self.tokenizer, self.drafter, self.verification = target, tokenizer, drafter, verification
        self.max_running_requests = max_running_requests
        self._seed = seed
        self._admitted = 0
        self.waiting: deque[Output] = deque()
        self.running: list[_Running] = []
        self.totals = Totals()
        """Since the start; never set back, as Prometheus counters must not be."""
        self._flushed = Totals()

    # Requests ---------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request; its prompt plus ``max_new_tokens`` must fit the context length."""
        spec = SpecCounters(self.drafter.proposed + 1) if self.drafter else None
        vary = self.verification.mode == "dynamic" or bool(self.drafter and self.drafter.varies_window)
        self.waiting.append(Output(request, self.tokenizer.stream(), spec, vary))

    def abort(self, rid: str | None, finish: Finish) -> None:
        """End one request, or all of them where ``rid`` is None."""
        for output in [o for o in self.waiting if rid in (None, o.request.rid)]:
            self.waiting.remove(output)
            self._end(output, finish)
        for running in [r for r in self.running if rid in (None, r.request.rid)]:
            self.running.remove(running)
            self._end(running.output, finish)

    def flush(self) -> bool:
        """Let ``recent`` count from now. Refused (False) while a request waits or runs, as in SGLang."""
        if self.idle:
            self._flushed = replace(self.totals)
        return self.idle

    @property
    def recent(self) -> Totals:
        """Totals since the last flush."""
        return self.totals.since(self._flushed)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def cache_bytes(self) -> int:
        return sum(r.cache.nbytes for r in self.running)

    def _end(self, output: Output, finish: Finish) -> None:
        output.finish = finish
        output.finished = time.time()
        self.totals.requests += 1
        output.request.on_update(output)

    # One step ---------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> None:
        """One prefill forward, if a prompt waits, and one verification of every running request."""
        while self.waiting and len(self.running) < self.max_running_requests:
            self.running.append(self._admit(self.waiting.popleft()))
        if any(not r.prefilled for r in self.running):
            self._prefill()
        if decoding := [r for r in self.running if r.prefilled]:
            self._verify(decoding)

    def _admit(self, output: Output) -> _Running:
        request = output.request
        output.started = time.time()
        # A request without a seed of its own gets one from the server's, so that a run can be repeated.
        self._admitted += 1
        seed = self._seed + self._admitted if request.sampling.seed is None else request.sampling.seed
        window = self.drafter.proposed if self.drafter else 0
        return _Running(
            request=request,
            output=output,
            cache=self.target.new_cache(len(request.prompt) + min(request.max_new_tokens, 512) + window),
            generator=torch.Generator().manual_seed(seed),
            draft_state=self.drafter.open(request.prompt) if self.drafter else None,
        )

    def _prefill(self) -> None:
        batch: list[_Running] = []
        chunks: list[list[int]] = []
        room = PREFILL_TOKENS
        for running in self.running:
            if not running.prefilled and room:
                start = running.cache.length
                chunks.append(running.request.prompt[start : start + room])
                batch.append(running)
                room -= len(chunks[-1])
        hidden, features = self._forward(batch, chunks)
        if self.drafter:
            self.drafter.extend([r.draft_state for r in batch], chunks, features)
        ends = torch.tensor([len(chunk) for chunk in chunks]).cumsum(0) - 1
        complete = [i for i, r in enumerate(batch) if r.cache.length == len(r.request.prompt)]
        if not complete:
            return
        logits = self.target.logits(hidden[ends[complete]])
        for row, i in enumerate(complete):
            self.totals.prompt_tokens += len(batch[i].request.prompt)
            self._accept(batch[i], None, logits[row : row + 1])
            self._commit(batch[i], logits[row : row + 1])
        self._drop_finished()

    def _verify(self, batch: list[_Running]) -> None:
        drafts = self._propose(batch)
        rows = [[r.output.ids[-1], *(draft.tokens if draft else ())] for r, draft in zip(batch, drafts, strict=True)]
        bases = [r.cache.length for r in batch]
        hidden, features = self._forward(batch, rows)
        logits = self.target.logits(hidden)
        first = 0
        kept: list[Tensor] = []
        scored: list[list[int]] = []
        for r, draft, tokens, base in zip(batch, drafts, rows, bases, strict=True):
            end = first + len(tokens)
            correct = self._accept(r, draft, logits[first:end])
            r.cache.length = base + 1 + correct
            self._commit(r, logits[first:end])
            if r.output.finish is None:
                scored.append(tokens[: correct + 1])
                if features is not None:
                    kept.append(features[first : first + correct + 1])
            first = end
        self._drop_finished()
        if self.drafter and scored:
            states = [r.draft_state for r in batch if r.output.finish is None]
            self.drafter.extend(states, scored, torch.cat(kept) if kept else None)

    def _forward(self, batch: Sequence[_Running], tokens: list[list[int]]) -> tuple[Tensor, Tensor | None]:
        flat = torch.tensor([token for row in tokens for token in row])
        layers = self.drafter.capture_layers if self.drafter else ()
        result: tuple[Tensor, Tensor | None] = self.target(
            flat, [r.cache for r in batch], [len(row) for row in tokens], layers
        )
        return result

    def _propose(self, batch: list[_Running]) -> list[Draft | None]:
        """One draft per request, cut to what will be verified; None without a drafter and for a request that lacks one
        token only: drafting for it cannot pay, and the decode that it gets is not counted as a verification step."""
        drafts: list[Draft | None] = [None] * len(batch)
        drafter = self.drafter
        asked = [i for i, r in enumerate(batch) if drafter and r.request.max_new_tokens - len(r.output.ids) > 1]
        if drafter is None or not asked:
            return drafts
        proposals = drafter.propose(
            [batch[i].draft_state for i in asked],
            [batch[i].output.ids[-1] for i in asked],
            # The window stays full near the token limit, as in SGLang; only the context's end cuts it.
            [min(drafter.proposed, self.target.context_length - batch[i].cache.length - 1) for i in asked],
            [_draft_sampling(batch[i]) for i in asked],
        )
        for i, draft in zip(asked, proposals, strict=True):
            if self.verification.mode == "dynamic" and draft.confidence is not None:
                keep = sampling.window(draft.confidence, self.verification.confidence_threshold)
                draft.tokens = draft.tokens[:keep]
                if draft.q_ids is not None and draft.q_probs is not None:
                    draft.q_ids, draft.q_probs = draft.q_ids[:keep], draft.q_probs[:keep]
            drafts[i] = draft
        return drafts

    def _accept(self, r: _Running, draft: Draft | None, logits: Tensor) -> int:
        """Verify one request's drafts on [len(draft) + 1, vocab] logits; sets ``r.new``, returns the correct drafts."""
        params = r.request.sampling
        tokens = draft.tokens if draft else []
        relaxed = self.verification.accept_threshold if self.verification.mode == "relaxed" else None
        if not params.greedy:
            probs = sampling.target_probs(logits, params)
            q_ids, q_probs = (draft.q_ids, draft.q_probs) if draft else (None, None)
            correct, token = sampling.verify_sampled(tokens, probs, q_ids, q_probs, r.generator, relaxed)
        elif relaxed is not None:
            correct, token = sampling.verify_relaxed_greedy(tokens, logits, relaxed)
        else:
            correct, token = sampling.verify_greedy(tokens, logits.argmax(-1).tolist())
        r.new = [*tokens[:correct], token]
        if draft is not None and r.output.spec is not None:
            r.output.spec.add(len(tokens), correct)
            self.totals.verify_ct += 1
            self.totals.correct += correct
            self.totals.proposed += len(tokens)
        return correct

    def _commit(self, r: _Running, logits: Tensor) -> None:
        """Append ``r.new`` up to the request's end and tell the client. logits: the rows the tokens came from."""
        output = r.output
        taken = output.extend(r.new)
        self.totals.output_tokens += taken
        if r.request.top_logprobs is not None:
            _add_logprobs(output, r.new[:taken], logits[:taken], r.request.top_logprobs)
        if output.first_token is None:
            output.first_token = time.time()
        if output.finish is not None:
            self._end(output, output.finish)
        else:
            output.request.on_update(output)

    def _drop_finished(self) -> None:
        self.running = [r for r in self.running if r.output.finish is None]


def _draft_sampling(r: _Running) -> DraftSampling:
    params = r.request.sampling
    return DraftSampling(0.0 if params.greedy else params.temperature, r.generator)


def _add_logprobs(output: Output, tokens: list[int], logits: Tensor, top: int) -> None:
    logprobs = logits.float().log_softmax(-1)
    chosen = logprobs[torch.arange(len(tokens)), torch.tensor(tokens)].tolist()
    output.logprobs += [[value, token, None] for value, token in zip(chosen, tokens, strict=True)]
    if top:
        values, ids = logprobs.topk(top, -1)
        output.top_logprobs += [
            [[value, token, None] for value, token in zip(*pair, strict=True)]
            for pair in zip(values.tolist(), ids.tolist(), strict=True)
        ]
