"""The shapes of the shipped checkpoints: what SGLang's start-up rules read of them, without weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_EOS = 151645
_DENSE = {
    "model_type": "qwen3", "attention_bias": False, "head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-06,
    "rope_theta": 1000000, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 151936,
    "max_position_embeddings": 40960, "num_attention_heads": 32, "num_key_value_heads": 8, "eos_token_id": _EOS,
}  # fmt: skip
_8B: dict[str, Any] = {**_DENSE, "hidden_size": 4096, "intermediate_size": 12288}
_27B: dict[str, Any] = {
    **_DENSE, "hidden_size": 5120, "intermediate_size": 17408, "max_position_embeddings": 262144, "vocab_size": 248320,
}  # fmt: skip
_DRAFT = {"num_hidden_layers": 5, "layer_types": ["full_attention"] * 5, "max_window_layers": 5}
_MARKOV = {"markov_rank": 256, "markov_head_type": "vanilla", "enable_confidence_head": True, "block_size": 7}
_HYBRID = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "tie_word_embeddings": False,
    "image_token_id": 248056,
    "video_token_id": 248057,
    "vision_start_token_id": 248053,
    "vision_end_token_id": 248054,
    "text_config": {
        "model_type": "qwen3_5_text", "attention_bias": False, "attn_output_gate": True, "dtype": "bfloat16",
        "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 5120,
        "intermediate_size": 17408, "layer_types": [*["linear_attention"] * 3, "full_attention"] * 16,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
        "linear_num_value_heads": 48, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144, "mtp_num_hidden_layers": 1, "num_attention_heads": 24,
        "num_hidden_layers": 64, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "vocab_size": 248320,
        "eos_token_id": _EOS,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
    },
    "vision_config": {
        "model_type": "qwen3_5", "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2,
        "out_hidden_size": 5120, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
    },
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-8B": {**_8B, "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 36},
    "Qwen/Qwen3-0.6B": {
        **_DENSE, "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 28, "hidden_size": 1024,
        "intermediate_size": 3072, "num_attention_heads": 16,
    },
    "Qwen/Qwen3.8-27B": _HYBRID,
    "z-lab/Qwen3-8B-DFlash-b16": {
        **_8B, **_DRAFT, "architectures": ["DFlashDraftModel"], "block_size": 16, "num_target_layers": 36,
        "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
    },
    "deepseek-ai/dspark_qwen3_8b_block7": {
        **_8B, **_DRAFT, **_MARKOV, "architectures": ["Qwen3DSparkModel"], "num_target_layers": 36,
        "mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33],
    },
    "Tengyunw/qwen3_8b_eagle3": {
        **_8B, "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1,
        "draft_vocab_size": 32000,
    },
    "incoai/Qwen3.8-27B-DFlash2": {
        **_27B, **_DRAFT, "architectures": ["DFlash2DraftModel"], "num_target_layers": 64,
        "layer_types": ["sliding_attention"] * 5, "sliding_window": 2048, "use_sliding_window": True,
        "dflash_config": {
            "block_size": 8, "conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16,
            "mask_token_id": 248070, "target_layer_ids": [5, 19, 33, 47, 61],
        },
    },
    "RadixArk/Qwen3.8-27B-DSpark": {
        **_27B, **_DRAFT, **_MARKOV, "architectures": ["Qwen3DSparkModel"], "num_target_layers": 64,
        "mask_token_id": 248070, "target_layer_ids": [5, 19, 33, 47, 61],
    },
    "/models/dspine": {**_27B, **_DRAFT, "architectures": ["DSpineDraftModel"], "block_size": 16},
}  # fmt: skip


def write(folder: Path) -> dict[str, str]:
    """Makes a folder with ``config.json`` for each; name or path of the checkpoint -> that folder."""
    places = {}
    for number, (name, config) in enumerate(CONFIGS.items()):
        place = folder / f"{number}-{name.rpartition('/')[2]}"
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
        places[name] = str(place)
    return places
