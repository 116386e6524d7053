"""A Llama of a few thousand random weights with a byte-level tokenizer, as a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

# Products this small gain nothing from a second thread, and on a busy machine wait for it.
torch.set_num_threads(1)

EOS = 2
LETTERS = "abcdefghijklmnopqrstuvwxyz .,!?\n"
VOCAB = 64
"""Three special tokens, one token per letter, and pairs of letters up to the end."""

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def write(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Write config, weights and tokenizer into ``folder``; ``changes`` go into config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": EOS,
    } | changes
    (folder / "config.json").write_text(json.dumps(config))
    _write_weights(folder, config, seed)
    _write_tokenizer(folder)
    return folder


def _write_weights(folder: Path, config: dict[str, Any], seed: int) -> None:
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        # Wide enough that next tokens differ with the context and top-2 margins are far above rounding.
        return torch.randn(*shape, generator=generator) * 0.6

    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q, kv = (config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    weights = {
        "model.embed_tokens.weight": normal(config["vocab_size"], hidden),
        "model.norm.weight": torch.ones(hidden),
    }
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = normal(config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        shapes = {
            "self_attn.q_proj": (q, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        weights |= {f"model.layers.{i}.{name}.weight": normal(*shape) for name, shape in shapes.items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{i}.{name}.weight"] = 1 + 0.1 * normal(hidden)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    special = ["<|unk|>", "<|start|>", "<|end|>"]
    letters = [pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(c)[0][0] for c in LETTERS]
    merges = [(a, b) for a in letters[:6] for b in letters[:6]][: VOCAB - len(special) - len(letters)]
    tokens = special + letters + [a + b for a, b in merges]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges, unk_token="<|unk|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}{{ '<|start|>' + m.content + '<|end|>' }}{% endfor %}<|start|>"
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "chat_template": template})
    )
