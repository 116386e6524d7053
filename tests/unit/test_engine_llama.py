"""The target against transformers' Llama on random weights, and its caches against a forward without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from runners.engine.llama import Llama, LlamaConfig
from tests import tiny_llama

TOKENS = [1, 9, 33, 17, 40, 5, 61, 22, 8, 50, 3, 12]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Llama:
    return Llama.load(tiny_llama.write(tmp_path_factory.mktemp("tiny")))


@torch.inference_mode()
def whole(target: Llama, tokens: list[int], layers: tuple[int, ...] = ()) -> tuple[Tensor, Tensor | None]:
    """(logits, features) of a sequence in one forward."""
    hidden, features = target(torch.tensor(tokens), [target.new_cache()], [len(tokens)], layers)
    return target.logits(hidden), features


def distance(ours: Tensor, expected: Tensor) -> float:
    """Largest relative error of a row."""
    return float(((ours - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": False},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1, "head_dim": 16},
        {"rope_scaling": tiny_llama.LLAMA3_ROPE},
        {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}},
    ],
    ids=["gqa", "untied", "mha", "mqa_wide_heads", "llama3_rope", "rope_parameters"],
)
def test_agrees_with_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = tiny_llama.write(tmp_path, **changes)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = [*TOKENS * 7]  # past the context that llama3 scaling starts from
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens]), output_hidden_states=True)
    logits, features = whole(Llama.load(folder), tokens, (0, 1))
    assert features is not None
    assert distance(logits, expected.logits[0]) < 1e-5
    # The output of layer l is what transformers calls hidden_states[l + 1].
    assert distance(features, torch.cat([expected.hidden_states[1][0], expected.hidden_states[2][0]], -1)) < 1e-5


def test_features_come_in_the_order_asked_for(target: Llama) -> None:
    _, ascending = whole(target, TOKENS, (0, 2))
    _, descending = whole(target, TOKENS, (2, 0))
    assert ascending is not None and descending is not None
    torch.testing.assert_close(descending, ascending.roll(target.config.hidden_size, -1))


@torch.inference_mode()
def test_requests_in_one_forward_do_not_see_each_other(target: Llama) -> None:
    sequences = [TOKENS, TOKENS[::-1][:5], [7]]
    caches = [target.new_cache() for _ in sequences]
    hidden, _ = target(torch.tensor([token for s in sequences for token in s]), caches, [len(s) for s in sequences])
    expected = torch.cat([whole(target, s)[0] for s in sequences])
    assert distance(target.logits(hidden), expected) < 1e-5
    assert [cache.length for cache in caches] == [len(s) for s in sequences]


@torch.inference_mode()
def test_pieces_and_rejected_tokens_leave_no_trace(target: Llama) -> None:
    cache = target.new_cache()
    target(torch.tensor(TOKENS[:4]), [cache], [4])
    target(torch.tensor([60, 61, 62]), [cache], [3])  # drafts that are rejected
    cache.length = 4
    rows = [target(torch.tensor([token]), [cache], [1])[0] for token in TOKENS[4:]]
    assert distance(target.logits(torch.cat(rows)), whole(target, TOKENS)[0][4:]) < 1e-5


@torch.inference_mode()
def test_a_cache_grows_without_losing_tokens(tmp_path: Path) -> None:
    target = Llama.load(tiny_llama.write(tmp_path, max_position_embeddings=1024))
    tokens = (TOKENS * 60)[:600]
    cache = target.new_cache()
    before = cache.nbytes
    hidden = [target(torch.tensor(piece), [cache], [len(piece)])[0] for piece in (tokens[:250], tokens[250:])]
    assert cache.nbytes > before
    assert distance(target.logits(torch.cat(hidden)), whole(target, tokens)[0]) < 1e-5


def test_bfloat16_is_close_to_float32(tmp_path: Path) -> None:
    folder = tiny_llama.write(tmp_path)
    exact, rounded = (whole(Llama.load(folder, dtype), TOKENS)[0].float() for dtype in (torch.float32, torch.bfloat16))
    assert 0 < distance(rounded, exact) < 0.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_type"),
    ],
)
def test_a_model_it_cannot_compute_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = tiny_llama.write(tmp_path)
    config = (
        (folder / "config.json").read_text()[:-1] + ", " + repr(changes)[1:].replace("'", '"').replace("True", "true")
    )
    (folder / "config.json").write_text(config)
    with pytest.raises(ValueError, match=message):
        LlamaConfig.read(folder)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = tiny_llama.write(tmp_path)
    config = (folder / "config.json").read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 4')
    (folder / "config.json").write_text(config)
    with pytest.raises(ValueError, match=r"model\.layers\.3\..* is missing"):
        Llama.load(folder)


def test_context_length_is_bounded_by_the_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="128"):
        Llama.load(tiny_llama.write(tmp_path), context_length=129)
