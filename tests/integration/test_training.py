"""The training script at a tiny scale: the target writes text, both drafters learn it, the checkpoints load."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from runners.engine.drafters import WEIGHTS
from runners.engine.drafters.block_drafter import load_block_model

NEW_TOKENS = 10


def train(*arguments: str) -> str:
    command = [sys.executable, "-m", "runners.engine.train", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def text(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("text") / "text.npz"
    train(
        "generate", "--model", str(target_folder), "--out", str(out), "--seconds", "1", "--own-seconds", "0",
        "--rows", "6", "--prompts", "24", "--prompt-tokens", "64", "--new-tokens", str(NEW_TOKENS), "--seed", "5",
    )  # fmt: skip
    return out


def test_greedy_text_is_the_targets_own(text: Path, target_folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    made = np.load(text)
    greedy = np.flatnonzero(made["temperatures"] == 0)[:3]
    assert len(greedy)
    model = AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.float32)
    for row in greedy:
        start, end = made["prompt_lengths"][row], made["lengths"][row]
        tokens = torch.from_numpy(made["tokens"][row].astype(np.int64))
        expected = model.generate(tokens[None, :start], max_new_tokens=NEW_TOKENS, do_sample=False)[0]
        assert tokens[:end].tolist() == expected[:end].tolist()
        assert 4 <= end - start <= NEW_TOKENS


def test_both_drafters_learn_and_their_checkpoints_load(text: Path, target_folder: Path, tmp_path: Path) -> None:
    said = train(
        "fit", "--model", str(target_folder), "--text", str(text), "--out", str(tmp_path), "--steps", "8",
        "--batch", "2", "--anchors", "4", "--rows", "16", "--held-out", "2", "--eval-rows", "2", "--log-every", "1",
        "--warm-up", "1", "--start", str(WEIGHTS / "{}_smollm2_135m"),
    )  # fmt: skip
    for name in ("dflash2", "dspine"):
        losses = [float(value) for value in re.findall(rf"{name} \d+ .*'path': ([\d.]+)", said)]
        assert len(losses) == 8
        assert np.mean(losses[-3:]) < np.mean(losses[:3])  # a handful of sequences is learnt by heart at once
        model, _ = load_block_model(name, tmp_path / name)
        shipped, sha256 = load_block_model(name, WEIGHTS / f"{name}_smollm2_135m")
        assert not torch.equal(model.fc.weight, shipped.fc.weight)
        for (key, here), (_, before) in zip(
            model.transition.named_parameters(), shipped.transition.named_parameters(), strict=True
        ):
            assert not torch.equal(here, before), key
        summary = json.loads((tmp_path / name / "training.json").read_text())
        assert (summary["steps"], summary["started_from"]) == (8, sha256)
        assert [line["block"] for line in summary["held_out"]] == [4, 8, 16]


def test_a_new_drafter_starts_from_nothing(text: Path, target_folder: Path, tmp_path: Path) -> None:
    train(
        "fit", "--drafter", "dspine", "--model", str(target_folder), "--text", str(text), "--out", str(tmp_path),
        "--steps", "1", "--batch", "2", "--anchors", "2", "--rows", "8", "--held-out", "1", "--eval-rows", "1",
    )  # fmt: skip
    model, _ = load_block_model("dspine", tmp_path / "dspine")
    assert model.config == load_block_model("dspine", WEIGHTS / "dspine_smollm2_135m")[0].config
