"""Turns a Llama GGUF file into a Hugging Face folder (config, float32 weights, tokenizer)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Progress = Callable[[str, float | None], None]
"""Called with a text and the share done (0..1, None where unknown)."""

_CONTROL_TOKEN = 3  # tokenizer.ggml.token_type of tokens that are never produced by merging text

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_gguf(gguf_path: Path, folder: Path, progress: Progress) -> None:
    """Write config.json, model.safetensors (float32), tokenizer.json and its companions into ``folder``.

    Raises ValueError for a GGUF of another architecture or pre-tokenizer than the one known here (Llama, ``smollm``).
    """
    from gguf import GGUFReader

    reader = GGUFReader(gguf_path)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    if (architecture := meta["general.architecture"]) != "llama":
        raise ValueError(f"{gguf_path.name}: architecture {architecture!r}; only 'llama' can be converted")
    if (pre := meta["tokenizer.ggml.pre"]) != "smollm":
        raise ValueError(f"{gguf_path.name}: pre-tokenizer {pre!r}; only 'smollm' can be converted")
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    _write_weights(
        reader.tensors,
        meta["llama.attention.head_count"],
        meta["llama.attention.head_count_kv"],
        folder / "model.safetensors",
        progress,
    )
    _write_json(folder / "config.json", _model_config(meta, tied))
    special = {name: meta[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos")}
    pad = meta["tokenizer.ggml.padding_token_id"]
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": special["bos"], "eos_token_id": special["eos"], "pad_token_id": pad},
    )
    _write_tokenizer(meta, folder)


def _model_config(meta: dict[str, Any], tied: bool) -> dict[str, Any]:
    heads = meta["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": meta["llama.embedding_length"] // heads,
        "max_position_embeddings": meta["llama.context_length"],
        # The GGUF keeps it as float32; rounding gives back the decimal number the model was published with.
        "rms_norm_eps": float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": float(meta["llama.rope.freq_base"]),
        "rope_scaling": None,
        "vocab_size": meta["llama.vocab_size"],
        "tie_word_embeddings": tied,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "float32",
    }


def _write_weights(tensors: Any, heads: int, kv_heads: int, path: Path, progress: Progress) -> None:
    from gguf.quants import dequantize
    from safetensors.numpy import save_file

    weights: dict[str, np.ndarray] = {}
    progress("unpacking the weights to float32", 0)
    for done, tensor in enumerate(tensors):
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        weight = weight.reshape([int(n) for n in reversed(tensor.shape)])  # GGUF lists the fastest dimension first
        name = _hf_name(tensor.name)
        if ".q_proj." in name:
            weight = _unpermute(weight, heads)
        elif ".k_proj." in name:
            weight = _unpermute(weight, kv_heads)
        weights[name] = np.ascontiguousarray(weight)
        progress("unpacking the weights to float32", (done + 1) / len(tensors))
    progress("writing the weights", None)
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors makes it private, but a cache may be shared or mounted


def _hf_name(name: str) -> str:
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    _, layer, part, suffix = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{suffix}"


def _unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF interleaves the two rotary halves of each head's rows ([out, in]); Hugging Face keeps them apart."""
    out, width = weight.shape
    return weight.reshape(heads, out // heads // 2, 2, width).swapaxes(1, 2).reshape(out, width)


def _write_tokenizer(meta: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = meta["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            # The generic class takes tokenizer.json as it is; model-specific ones rebuild parts of it.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
            "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
            "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
            "pad_token": tokens[meta["tokenizer.ggml.padding_token_id"]],
            "model_max_length": meta["llama.context_length"],
            "clean_up_tokenization_spaces": False,
            "chat_template": meta["tokenizer.chat_template"],
        },
    )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
