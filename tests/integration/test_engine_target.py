"""The packaged target, as it is served, against transformers: tokenizer, chat template and greedy output."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from runners.engine.drafters.ngram import NgramDrafter
from runners.engine.linear import pack
from runners.engine.llama import Llama
from runners.engine.request import Output, Request
from runners.engine.sampling import SamplingParams
from runners.engine.scheduler import Scheduler, Verification
from runners.engine.tokenizer import Tokenizer

TOKENS = 64
QUESTIONS = [
    "Describe how a bicycle stays upright, in one paragraph.",
    "def running_mean(values):\n    # complete this function and explain each line",
    "Count from 1 to 30, and write every multiple of 7 twice.",
]
TEXTS = [
    "Prices rose 12.5% to €1,234,567 - or so they said…",
    "日本語とemoji 🙂🎉, naïve café\n\n\n\tindented   spaces ",
    "<|im_start|>user\nA special token in a text<|im_end|>",
    "",
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine would take most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_tokenizer_and_chat_template(target_folder: Path) -> None:
    ours, reference = Tokenizer(target_folder), AutoTokenizer.from_pretrained(target_folder)
    for text in TEXTS:
        assert ours.encode(text) == reference(text)["input_ids"]
    for messages in (
        [{"role": "user", "content": QUESTIONS[0]}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    ):
        expected = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        assert ours.encode_chat(messages) == expected


def serve(scheduler: Scheduler, prompts: list[list[int]]) -> list[list[int]]:
    outputs: dict[str, Output] = {}

    def keep(output: Output) -> None:
        outputs[output.request.rid] = output

    for i, prompt in enumerate(prompts):
        scheduler.add(Request(str(i), prompt, SamplingParams(0.0), TOKENS, keep, stop_token_ids=frozenset([2])))
    while not scheduler.idle:
        scheduler.step()
    return [outputs[str(i)].ids for i in range(len(prompts))]


def test_greedy_output_is_that_of_transformers(target_folder: Path) -> None:
    tokenizer = Tokenizer(target_folder)
    prompts = [tokenizer.encode_chat([{"role": "user", "content": question}]) for question in QUESTIONS]
    reference = AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.float32)
    expected = [
        reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=TOKENS,
            do_sample=False,
        )[0, len(prompt) :].tolist()
        for prompt in prompts
    ]
    del reference
    target = Llama.load(target_folder)
    pack(target)  # as the server does
    alone = Scheduler(target, tokenizer, None, Verification(), 1, seed=0)
    assert serve(alone, prompts) == expected
    drafting = Scheduler(target, tokenizer, NgramDrafter(block_size=8), Verification(), len(prompts), seed=0)
    assert serve(drafting, prompts) == expected
    assert drafting.totals.correct > 0
