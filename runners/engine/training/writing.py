"""The training text: prompts are gathered, the target answers them, what overlaps with a shipped suite is dropped."""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import numpy as np
import torch

from runners.engine.training.generate import BatchDecoder, Generated, batches_by_length, device_of
from runners.engine.training.overlap import SuiteFilter
from runners.engine.training.prompts import prompts as written_prompts
from runners.engine.training.prompts import stdlib_prompts
from runners.engine.training.wordnet import wordnet_prompts

END_OF_TURN = "<|im_end|>"
TEMPERATURES = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.6, 0.8, 1.0)
"""Greedy text weighs most, since acceptance is measured at temperature 0; the rest keeps sampling covered."""


def own_prompts(
    decoder: BatchDecoder, tokenizer: Any, prefix: list[int], end: int, seconds: float, seed: int
) -> list[str]:
    """Prompts that the target makes up itself after the opening of a user's turn (the Magpie method)."""
    torch.manual_seed(seed)
    found: dict[str, None] = {}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        made = decoder.run([prefix] * decoder.rows, [1.0] * decoder.rows, min(72, decoder.columns - len(prefix)), end)
        for row in range(decoder.rows):
            ids = made.tokens[row, made.prompt_lengths[row] : made.lengths[row]]
            if ids[-1] == end and len(ids) > 4:
                found[tokenizer.decode(ids[:-1]).strip()] = None
    return list(found)


def write(args: argparse.Namespace) -> None:
    """``python -m runners.engine.train generate``: answers of the target, with their prompts, into ``args.out``."""
    from transformers import AutoTokenizer

    device = device_of()
    started = time.monotonic()
    pool = [("written", p) for p in written_prompts(args.seed, args.prompts)]
    pool += [("stdlib", p) for p in stdlib_prompts(args.seed, args.prompts // 5)]
    if args.wordnet:
        pool += [("wordnet", p) for p in wordnet_prompts(args.wordnet, args.seed, args.wordnet_prompts)]
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    end = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    columns = args.prompt_tokens + args.new_tokens
    decoder = BatchDecoder(args.model, device, args.rows, columns, dtype)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "\x00"}], tokenize=False, add_generation_prompt=True
    )
    before, after = chat.split("\x00")
    opening = tokenizer(before, add_special_tokens=False)["input_ids"]
    overlap = SuiteFilter()
    made_up = own_prompts(decoder, tokenizer, opening, end, args.own_seconds, args.seed)
    pool += [("own", p) for p in made_up]
    pool = [(kind, p) for kind, p in pool if not overlap.overlaps(p)]
    random.Random(args.seed).shuffle(pool)
    print(f"{len(made_up)} own prompts, pool {len(pool)}, {time.monotonic() - started:.0f} s", flush=True)
    until = time.monotonic() + args.seconds
    parts: list[Generated] = []
    kinds: list[str] = []
    cursor, rng = 0, random.Random(args.seed)
    while cursor < len(pool) and (not parts or time.monotonic() < until):
        group = pool[cursor : cursor + 8 * args.rows]
        cursor += len(group)
        ids = tokenizer([before + p + after for _, p in group], add_special_tokens=False)["input_ids"]
        kept = [i for i, row in enumerate(ids) if len(row) <= args.prompt_tokens]
        chosen = [ids[i] for i in kept]
        for batch in batches_by_length(chosen, args.rows):
            if parts and time.monotonic() > until:
                break
            temperatures = [rng.choice(TEMPERATURES) for _ in batch]
            parts.append(decoder.run([chosen[i] for i in batch], temperatures, args.new_tokens, end))
            kinds += [group[kept[i]][0] for i in batch]
    tokens = np.concatenate([p.tokens for p in parts])
    prompt_lengths = np.concatenate([p.prompt_lengths for p in parts])
    lengths = np.concatenate([p.lengths for p in parts])
    answers = tokenizer.batch_decode([t[a:b] for t, a, b in zip(tokens, prompt_lengths, lengths, strict=True)])
    keep = np.array([length - prompt >= 4 for prompt, length in zip(prompt_lengths, lengths, strict=True)])
    keep &= ~np.array([overlap.overlaps(answer) for answer in answers])
    order = np.random.default_rng(args.seed).permutation(np.flatnonzero(keep))
    np.savez(
        args.out, tokens=tokens[order].astype(np.uint16), prompt_lengths=prompt_lengths[order], lengths=lengths[order],
        temperatures=np.concatenate([p.temperatures for p in parts])[order], kinds=np.array(kinds)[order],
    )  # fmt: skip
    total = int((lengths - prompt_lengths)[order].sum())
    print(
        f"{len(order)} sequences, {total} answer tokens, {len(keep) - len(order)} dropped, "
        f"{time.monotonic() - started:.0f} s"
    )
