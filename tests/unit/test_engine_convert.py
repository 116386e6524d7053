"""From GGUF to a Hugging Face folder: names, shapes, the order of rotary rows, quantised tensors, the tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer, pre_tokenizers

from runners.engine.convert import convert_gguf
from runners.engine.llama import Llama

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER = 64, 4, 2, 16, 96


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp stores them: (first half, second half) of a head become (pair, pair, ...)."""
    first, second = np.split(weight.reshape(heads, -1, weight.shape[1]), 2, axis=1)
    return np.stack([first, second], 2).reshape(weight.shape)


def tokens() -> list[str]:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return ["<|endoftext|>", "<|im_start|>", *alphabet, "Ġa", "ab"]


def write_gguf(path: Path, weights: dict[str, np.ndarray], pre: str = "smollm") -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens()))
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens())
    writer.add_token_types([3, 3] + [1] * (len(tokens()) - 2))
    writer.add_token_merges(["Ġ a", "a b"])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_unk_token_id, writer.add_pad_token_id):
        add(1)
    writer.add_chat_template("{{ messages[0].content }}")
    for name, weight in weights.items():
        if name == "token_embd.weight":  # the one quantised tensor: a block of 32 numbers shares a scale
            quantised = gguf.quants.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {
        "token_embd": (len(tokens()), HIDDEN),
        "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.attn_q": (HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HEADS * HEAD_DIM),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.ffn_gate": (INNER, HIDDEN),
        "blk.0.ffn_up": (INNER, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, INNER),
    }
    return {f"{name}.weight": rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def convert(tmp_path: Path, weights: dict[str, np.ndarray], pre: str = "smollm") -> Path:
    write_gguf(tmp_path / "m.gguf", weights, pre)
    folder = tmp_path / "model"
    folder.mkdir()
    convert_gguf(tmp_path / "m.gguf", folder, lambda text, share: None)
    return folder


def test_weights_come_out_as_they_were(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    stored = weights | {
        "blk.0.attn_q.weight": permuted(weights["blk.0.attn_q.weight"], HEADS),
        "blk.0.attn_k.weight": permuted(weights["blk.0.attn_k.weight"], KV_HEADS),
    }
    folder = convert(tmp_path, stored)
    found = load_file(folder / "model.safetensors")
    assert all(tensor.dtype == np.float32 for tensor in found.values())
    layer = "model.layers.0."
    for name, own in {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }.items():
        np.testing.assert_array_equal(found[f"{layer}{name}.weight"], weights[f"blk.0.{own}.weight"])
    np.testing.assert_array_equal(found["model.norm.weight"], weights["output_norm.weight"])
    table = found["model.embed_tokens.weight"]
    np.testing.assert_allclose(table, weights["token_embd.weight"], atol=0.02)  # Q8_0 keeps about 7 bits
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is True
    assert Llama.load(folder).config.rms_norm_eps == 1e-5


def test_the_tokenizer_splits_digits_and_knows_special_tokens(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    tokenizer = Tokenizer.from_file(str(convert(tmp_path, weights) / "tokenizer.json"))
    ids = tokenizer.encode("<|im_start|>12 ab é").ids
    assert [tokenizer.id_to_token(i) for i in ids] == ["<|im_start|>", "1", "2", "Ġa", "b", "Ġ", "Ã", "©"]
    assert tokenizer.decode(ids) == "12 ab é"


def test_what_cannot_be_converted_is_named(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    with pytest.raises(ValueError, match="pre-tokenizer 'qwen2'"):
        convert(tmp_path, weights, pre="qwen2")
