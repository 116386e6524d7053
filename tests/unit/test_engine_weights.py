"""The shipped drafters: their model card says what the files say, and DFlash2 keeps its public contract."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from runners.engine import train
from runners.engine.drafters import WEIGHTS
from runners.engine.drafters.block_drafter import MODELS, load_block_model

LIMIT = 24_000_000
"""Bytes of one weights file, so that the repository stays light."""


def folder_of(name: str) -> Path:
    return WEIGHTS / f"{name}_smollm2_135m"


def card() -> str:
    return (WEIGHTS / "README.md").read_text(encoding="utf-8")


def training(name: str) -> dict[str, Any]:
    return dict(json.loads((folder_of(name) / "training.json").read_text()))


def trainings(name: str) -> list[dict[str, Any]]:
    """One record for each time it was trained, the last one first."""
    found: list[dict[str, Any]] = [training(name)]
    while before := found[-1].get("before"):
        found.append(before)
    return found


def rows(name: str) -> list[str]:
    """The card's table rows, made from the files; a failure of the test below shows what to write."""
    weights = folder_of(name) / "model.safetensors"
    cells = [[f"{weights.stat().st_size:,}", f"`{hashlib.sha256(weights.read_bytes()).hexdigest()}`"]]
    for made in trainings(name):
        counts = (made[key] for key in ("parameters", "sequences", "answer_tokens", "steps", "blocks"))
        rate = f"{made['learning_rate']:g}"
        cells.append([*(f"{count:,}" for count in counts), rate, f"{made['seconds']} s, {made['device']}"])
    for held in training(name)["held_out"]:
        rates = " ".join("-" if rate is None else f"{rate:.2f}" for rate in held["position_rates"])
        cells.append([str(held["block"]), f"{held['verify_steps']:,}", f"{held['tau']:.2f}", rates])
    return [f"| `{folder_of(name).name}` | " + " | ".join(row) + " |" for row in cells]


def test_the_card_says_what_the_files_say() -> None:
    told = [line for line in card().splitlines() if line.startswith("| `")]
    assert sorted(told) == sorted(row for name in MODELS for row in rows(name))


def test_the_cards_sentences_hold() -> None:
    for name in MODELS:
        made, config = trainings(name), json.loads((folder_of(name) / "config.json").read_text())
        assert {held["sequences"] for held in made[0]["held_out"]} == {192}
        assert all([one[key] for key in ("batch", "anchors", "rows")] == [128, 20, 96] for one in made)
        assert made[-1]["started_from"] is None and all(one["started_from"] for one in made[:-1])
        assert made[-1]["trained_beside"] == [other for other in MODELS if other != name]
        assert len({one["seed"] for one in made}) == len(made) == {"dflash2": 1, "dspine": 2}[name]
        assert config[MODELS[name].section]["target_layer_ids"] == [3, 12, 21, 28]


def test_the_card_tells_the_commands_of_the_script() -> None:
    commands = [line.strip() for line in (train.__doc__ or "").splitlines() if line.strip().startswith("python -m")]
    assert len(commands) == 2
    assert [command for command in commands if command not in card()] == []


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_shipped_drafter_is_light_and_loads(name: str) -> None:
    weights = folder_of(name) / "model.safetensors"
    assert weights.stat().st_size <= LIMIT
    model, digest = load_block_model(name, folder_of(name))
    assert digest == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert sum(parameter.numel() for parameter in model.parameters()) == training(name)["parameters"]
    assert model.config.block_size == {"dflash2": 8, "dspine": 16}[name]


def test_dflash2_keeps_the_public_configuration() -> None:
    config = json.loads((folder_of("dflash2") / "config.json").read_text())
    assert config["architectures"] == ["DFlash2DraftModel"]
    own = config["dflash_config"]
    assert set(own) == {
        "block_size", "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k", "mask_token_id",
        "target_layer_ids",
    }  # fmt: skip
    assert own["block_size"] == config["block_size"] == 8
    assert own["conv_kernel_size"] == 2 and config["hidden_size"] % own["conv_group_size"] == 0
    assert own["selector_top_k"] == 16 and own["selector_rank"] > 0
    assert 0 <= own["mask_token_id"] < config["vocab_size"]
    assert config["num_target_layers"] == 30
    # The last layer's output is not among them: SGLang captures what enters the layer after.
    assert all(0 <= layer < config["num_target_layers"] - 1 for layer in own["target_layer_ids"])
    assert own["target_layer_ids"] == sorted(set(own["target_layer_ids"]))
    assert config["layer_types"] == ["full_attention"] * config["num_hidden_layers"]
    assert config["num_attention_heads"] % config["num_key_value_heads"] == 0
    assert not config["attention_bias"]


def test_dflash2_keeps_the_public_tensors() -> None:
    """Names and shapes as the authors' package ``dflash`` 0.1.0 and SGLang's ``DFlash2DraftModel`` load them."""
    config = json.loads((folder_of("dflash2") / "config.json").read_text())
    own = config["dflash_config"]
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    taps, groups = own["conv_kernel_size"], hidden // own["conv_group_size"]
    expected = {
        "fc.weight": [hidden, len(own["target_layer_ids"]) * hidden],
        "hidden_norm.weight": [hidden],
        "norm.weight": [hidden],
        "candidate_selector.predecessor_codebook": [config["vocab_size"], own["selector_rank"]],
        "candidate_selector.successor_codebook": [config["vocab_size"], own["selector_rank"]],
        "candidate_selector.hidden_projection.weight": [own["selector_rank"], hidden],
    }
    layer = {
        "self_attn.q_proj.weight": [q, hidden],
        "self_attn.k_proj.weight": [kv, hidden],
        "self_attn.v_proj.weight": [kv, hidden],
        "self_attn.o_proj.weight": [hidden, q],
        "self_attn.q_norm.weight": [head],
        "self_attn.k_norm.weight": [head],
        "mlp.gate_proj.weight": [inner, hidden],
        "mlp.up_proj.weight": [inner, hidden],
        "mlp.down_proj.weight": [hidden, inner],
        "input_layernorm.weight": [hidden],
        "post_attention_layernorm.weight": [hidden],
        "attention_conv.base_kernel": [2, taps, hidden],
        "attention_conv.kernel_projection.weight": [2 * taps * groups, hidden],
        "mlp_conv.base_kernel": [2, taps, hidden],
        "mlp_conv.kernel_projection.weight": [2 * taps * groups, hidden],
    }
    for index in range(config["num_hidden_layers"]):
        expected |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    with safe_open(folder_of("dflash2") / "model.safetensors", framework="pt") as file:
        assert {name: file.get_slice(name).get_shape() for name in file.keys()} == expected  # noqa: SIM118
