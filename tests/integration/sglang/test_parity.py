"""The shipped DFlash2 drafts the same under SGLang as under this project's own engine, step by step.

Both run in bfloat16. SGLang writes; the engine follows it over the same token ids, drafts at each of its steps, and
must have as many drafts accepted. The two add up in another order, so where two tokens are as good as each other to
bfloat16's last digits, they may take different ones: that is asserted of every difference, and few there may be.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tokenizers import Tokenizer

from orchestrator.measuring.template import ChatTemplate
from runners.engine.drafters import lattice, load_drafter
from runners.engine.drafters.base import DraftSampling
from runners.engine.linear import pack
from runners.engine.llama import Llama
from tests.sglang_cpu import rig

pytestmark = [pytest.mark.sglang, pytest.mark.nightly]
PROMPTS = (
    "Write the letters: a b c d e f g a b c d e f g a b c d e f g and go on.",
    "Write a Python function that adds two numbers.",
    "What is the capital of France?",
)
OUTPUT_TOKENS = 24
LAST_DIGITS = 0.25
"""Two steps of bfloat16 from 16 to 32, where the largest logits of this target lie."""


class Written(NamedTuple):
    ids: list[int]
    steps: list[int]
    """Tokens that each verification brought: accepted drafts + 1, the last cut at the limit."""
    correct: int
    """SGLang's own count of accepted drafts, those past the limit included."""


def write(url: str, prompt: list[int]) -> Written:
    """Greedily. Every chunk of the stream is one step, and says all tokens so far."""
    sampling = {"temperature": 0, "max_new_tokens": OUTPUT_TOKENS, "ignore_eos": True}
    body = json.dumps({"input_ids": prompt, "sampling_params": sampling, "stream": True}).encode()
    request = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        chunks = [json.loads(line.removeprefix(b"data: ")) for line in answer if line.startswith(b"data: {")]
    ends = [len(chunk["output_ids"]) for chunk in chunks]
    meta = chunks[-1]["meta_info"]
    assert len(chunks) == meta["spec_verify_ct"] + 1, "a chunk held more than one step"
    steps = [end - start for start, end in pairwise(ends)]
    return Written(chunks[-1]["output_ids"], steps, meta["spec_num_correct_drafts"])


class Followed(NamedTuple):
    steps: list[int]
    """Tokens that the engine's drafts would have brought at each of SGLang's steps."""
    draft_gaps: list[float]
    """Where the two drafted differently: how much better the engine finds its own draft (score of the path)."""
    token_gaps: list[float]
    """At each token: how much better the engine's target finds its own choice (logit); 0 where it is SGLang's."""


@torch.inference_mode()
def follow(target: Llama, prompt: list[int], written: Written, monkeypatch: pytest.MonkeyPatch) -> Followed:
    paths: list[lattice.Lattice] = []
    build = lattice.build
    monkeypatch.setattr(lattice, "build", lambda *args: paths.append(build(*args)) or paths[-1])
    drafter = load_drafter("dflash2", target)
    cache, state = target.new_cache(), drafter.open(prompt)

    def score(tokens: list[int], chosen: list[int]) -> None:
        """Give both models committed tokens; ``chosen`` came after the last of them, in order."""
        hidden, features = target(torch.tensor(tokens), [cache], [len(tokens)], drafter.capture_layers)
        drafter.extend([state], [tokens], features)
        logits = target.logits(hidden[-len(chosen) :]).float()
        found.token_gaps.extend((row.max() - row[token]).item() for row, token in zip(logits, chosen, strict=True))

    found = Followed([], [], [])
    score(prompt, written.ids[:1])
    done = 1
    for size in written.steps:
        anchor, coming = written.ids[done - 1], written.ids[done:]
        (draft,) = drafter.propose([state], [anchor], [drafter.proposed], [DraftSampling(0.0, None)])
        same = [one == other for one, other in zip(draft.tokens, coming, strict=False)]
        accepted = same.index(False) if False in same else len(same)
        found.steps.append(min(accepted + 1, len(coming)))
        if found.steps[-1] != size:
            place = min(accepted, size - 1)
            row, ids = lattice.greedy_rows(paths[-1])[1][0, place], paths[-1].ids[0, place]
            # SGLang's draft is known where it was accepted; else it was any other than the engine's.
            other = row[ids == coming[place]] if accepted < size - 1 else row[ids != draft.tokens[place]]
            found.draft_gaps.append((row.max() - other.max()).item() if len(other) else float("inf"))
        score([anchor, *coming[: size - 1]], coming[:size])
        done += size
    return found


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, target_folder: Path) -> Iterator[str]:
    """SGLang with the drafter that is shipped."""
    # Triton has no CPU: its interpreter runs DFLASH's kernels.
    more = ("target.dtype=bfloat16", "attention.draft_backend=intel_amx", "+env.TRITON_INTERPRET='1'")
    runner, config = rig.one_server(target_folder, ["drafter=dflash2"], *more)
    handle = runner.start(config, tmp_path_factory.mktemp("parity"), lambda text: None)
    try:
        assert handle.identity["speculative_algorithm"] == "DFLASH"
        assert handle.identity["server_log"]["draft_architecture"] == "DFlash2DraftModel"
        yield handle.url
    finally:
        runner.stop(handle)


def test_every_step_accepts_the_same_drafts(url: str, target_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Llama.load(target_folder, torch.bfloat16, 2048)
    pack(target)
    tokenizer, template = Tokenizer.from_file(str(target_folder / "tokenizer.json")), ChatTemplate(target_folder)
    steps, accepted, draft_gaps, token_gaps = 0, 0, [], []
    for prompt in PROMPTS:
        text = template.render([{"role": "user", "content": prompt}], None)
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        written = write(url, ids)
        found = follow(target, ids, written, monkeypatch)
        print(written, found, sep="\n")  # shown where it fails
        assert sum(one != other for one, other in zip(found.steps, written.steps, strict=True)) == len(found.draft_gaps)
        steps, accepted = steps + len(written.steps), accepted + written.correct
        draft_gaps += found.draft_gaps
        token_gaps += found.token_gaps
    assert steps >= 20 and accepted >= 20, "too little was drafted to compare"
    assert max(token_gaps) <= LAST_DIGITS and sum(gap > 0 for gap in token_gaps) <= 5, token_gaps
    assert len(draft_gaps) <= steps / 10 and all(gap <= LAST_DIGITS for gap in draft_gaps), draft_gaps
