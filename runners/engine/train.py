"""Train the miniature drafters: the target writes text, a block model learns to draft it.

    python -m runners.engine.train generate --model FOLDER --out text-0.npz --seconds 240 --seed 0
    python -m runners.engine.train fit --model FOLDER --text text-0.npz --out DIR --seconds 900

Meant for one GPU (minutes); both run on a CPU at a small scale, which the tests use. Prompts are those of
``training/prompts.py``, ones about the words of WordNet where its folder is given, and ones that the target makes up
itself; whatever overlaps with a shipped suite is dropped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from runners.engine.drafters.block import BlockConfig, BlockModel, rope_tables
from runners.engine.drafters.block_drafter import MODELS, load_block_model
from runners.engine.drafters.storage import compress
from runners.engine.training import objective
from runners.engine.training.generate import device_of
from runners.engine.training.writing import write

SIZES: dict[str, dict[str, Any]] = {
    "dflash2": {
        "architecture": "DFlash2DraftModel", "num_hidden_layers": 4, "intermediate_size": 768, "block_size": 8,
        "num_attention_heads": 6, "num_key_value_heads": 2,
        "extra": {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 22, "selector_top_k": 16},
    },
    "dspine": {
        "architecture": "DSpineDraftModel", "num_hidden_layers": 5, "intermediate_size": 1536, "block_size": 16,
        "num_attention_heads": 9, "num_key_value_heads": 3,
        "extra": {"transition_rank": 64, "candidates": 16},
    },
}  # fmt: skip
"""Both under 24 MB as they are kept: DFlash2 in float16 with two vocabulary-sized codebooks, DSpine in int8."""

BLOCK_MIX: dict[str, dict[int, float]] = {
    "dflash2": {8: 0.8, 4: 0.1, 16: 0.1},
    "dspine": {16: 0.5, 8: 0.4, 4: 0.1},
}
"""Each most often at the block it is run at; the rest keeps a swept block size meaningful."""

DECAY = 2.5
"""Positions over which a draft's weight in the loss falls to 1/e: about as fast as the share of steps that reach it."""


def capture_layers(count: int) -> tuple[int, ...]:
    """Four target layers from early to late; the last one is left out, since SGLang captures what enters a layer."""
    return tuple(round(count * share) for share in (0.1, 0.4, 0.7, 0.93))


class Text:
    """Generated sequences; the first ``held_out`` greedy ones are never trained on."""

    def __init__(self, files: list[Path], device: str, held_out: int) -> None:
        loaded = [np.load(f) for f in files]
        width = max(z["tokens"].shape[1] for z in loaded)
        self.tokens = torch.from_numpy(
            np.concatenate(
                [np.pad(z["tokens"].astype(np.int32), ((0, 0), (0, width - z["tokens"].shape[1]))) for z in loaded]
            )
        ).to(device)
        self.prompt_lengths, self.lengths = (
            torch.from_numpy(np.concatenate([z[name] for z in loaded])).long().to(device)
            for name in ("prompt_lengths", "lengths")
        )
        greedy = torch.from_numpy(np.concatenate([z["temperatures"] for z in loaded])) == 0
        self.lengths_here = self.lengths.cpu()
        self.held_out = greedy.nonzero()[:held_out, 0]
        training = torch.ones(len(greedy), dtype=torch.bool)
        training[self.held_out] = False
        self.training = training.nonzero()[:, 0]

    def order(self, batch: int) -> Tensor:
        """The training sequences, shuffled; those of one batch are of like length, so that little is padded."""
        shuffled = self.training[torch.randperm(len(self.training))]
        pools = [pool[self.lengths_here[pool].argsort()] for pool in shuffled.split(16 * batch)]
        batches = [b for pool in pools for b in pool.split(batch) if len(b) == batch] or [shuffled]
        return torch.cat([batches[i] for i in torch.randperm(len(batches))])

    def rows(self, index: Tensor, states: Any) -> objective.Batch:
        """``index`` and the lengths stand on the CPU too, so that the width is known without waiting for the device."""
        width = -(-int(self.lengths_here[index].max()) // 16) * 16
        index = index.to(self.tokens.device, non_blocking=True)
        tokens = self.tokens[index, :width].long()
        return objective.Batch(tokens, self.lengths[index], self.prompt_lengths[index], *states(tokens))


def target_states(folder: Path, layer_ids: tuple[int, ...], device: str) -> tuple[Any, Tensor, Any]:
    """(tokens [B, S] -> features [B, S, layers * H] and final hidden [B, S, H], embedding [V, H], config)."""
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval().requires_grad_(False)

    @torch.no_grad()
    def states(tokens: Tensor) -> tuple[Tensor, Tensor]:
        out = model.model(tokens, output_hidden_states=True, use_cache=False)
        return torch.cat([out.hidden_states[i + 1] for i in layer_ids], -1), out.last_hidden_state

    graphs: dict[torch.Size, tuple[Any, Tensor, tuple[Tensor, Tensor]]] = {}

    def replayed(tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The same from a CUDA graph a shape, valid until the next call: launching takes longer than computing."""
        if tokens.shape not in graphs:
            static = tokens.clone()
            states(static)  # warm-up outside the capture
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = states(static)
            graphs[tokens.shape] = graph, static, out
        graph, static, out = graphs[tokens.shape]
        static.copy_(tokens)
        graph.replay()
        return out

    return (replayed if device == "cuda" else states), model.get_input_embeddings().weight.data, model.config


def new_model(name: str, target: Any) -> BlockModel:
    layers = target.num_hidden_layers
    theta = target.rope_parameters["rope_theta"] if getattr(target, "rope_parameters", None) else target.rope_theta
    size = SIZES[name]
    model = MODELS[name](
        BlockConfig(
            hidden_size=target.hidden_size, vocab_size=target.vocab_size, head_dim=64,
            rope_theta=float(theta), rms_norm_eps=target.rms_norm_eps, mask_token_id=16,
            target_layer_ids=capture_layers(layers), num_target_layers=layers,
            **size,
        )
    )  # fmt: skip
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module.weight.std() > 0.015:
            torch.nn.init.normal_(module.weight, std=0.02)
    torch.nn.init.constant_(model.norm.weight, 0.3)  # else the mask token's own embedding dominates the first logits
    for layer in model.decoder:  # depth enters gently
        for out in (layer.self_attn.o_proj, layer.mlp.down_proj):
            torch.nn.init.normal_(out.weight, std=0.02 / math.sqrt(2 * len(model.decoder)))
    return model


def evaluate(model: BlockModel, text: Text, states: Any, embedding: Tensor, block: int, rows: int) -> dict[str, Any]:
    """Held-out acceptance at temperature 0: tau and per-position conditional rates."""
    device = embedding.device
    tables = rope_tables(model.config, 1024, device)
    steps: list[int] = []
    for start in range(0, len(text.held_out), rows):
        batch = text.rows(text.held_out[start : start + rows], states)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            for own in objective.accepted_lengths(model, batch, block, embedding, embedding, tables):
                steps += own
    counts = np.bincount(steps, minlength=block)
    reached = counts[::-1].cumsum()[::-1]
    return {
        "block": block, "sequences": len(text.held_out), "verify_steps": len(steps),
        "tau": round(1 + float(np.mean(steps)), 4),
        "position_rates": [round(float(b / a), 4) if a else None for a, b in itertools.pairwise(reached)],
    }  # fmt: skip


def save(model: BlockModel, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(compress(model.export(), model.storage), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(model.config.dump(model.section), indent=2) + "\n")


class Learner:
    """One drafter in training: model, optimiser and its block mix."""

    def __init__(self, name: str, target: Any, embedding: Tensor, args: argparse.Namespace, device: str) -> None:
        self.name, self.args, self.device, self.embedding = name, args, device, embedding
        self.started_from: str | None = None
        self.before: dict[str, Any] | None = None
        if args.start:
            start = Path(args.start.format(name))
            self.model, self.started_from = load_block_model(name, start)
            with suppress(FileNotFoundError):
                self.before = json.loads((start / "training.json").read_text())
            self.model.train().requires_grad_(True)
        else:
            self.model = new_model(name, target)
        self.model.to(device)
        self.codebooks = objective.codebooks(self.model.transition, embedding)
        self.mix = BLOCK_MIX[name]
        self.rng = random.Random(args.seed)
        self.blocks = 0
        # Hidden matrices take orthogonalised steps (Muon, Jordan 2024), which need fewer of them; the rest AdamW.
        matrices: list[Tensor] = [
            m.weight for m in self.model.modules() if isinstance(m, torch.nn.Linear) and min(m.weight.shape) > 64
        ]
        rest: list[Tensor] = [p for p in self.model.parameters() if not any(p is m for m in matrices)]
        rest += [p for p in self.codebooks.parameters() if not any(p is q for q in rest)]
        self.parameters = [*matrices, *rest]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, betas=(0.9, 0.95), weight_decay=0.0, fused=device == "cuda"),
        ]
        self.tables = rope_tables(self.model.config, 1024, device)

    def step(self, batch: objective.Batch, rate: float) -> dict[str, Tensor]:
        block = self.rng.choices(list(self.mix), list(self.mix.values()))[0]
        room = (batch.lengths - batch.prompt_lengths - 1)[:, None]
        shape = len(room), max(self.args.anchors * self.model.config.block_size // block, 1)
        anchors = batch.prompt_lengths[:, None] + (torch.rand(shape, device=self.device) * room).long()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            parts = objective.loss(
                self.model, self.codebooks, batch, anchors, block, self.embedding, self.tables, DECAY,
                self.args.rows * len(room),
            )  # fmt: skip
        total = parts["path"] + 0.5 * parts["unary"] + parts.get("confidence", 0.0)
        self.model.zero_grad(set_to_none=True)
        self.codebooks.zero_grad(set_to_none=True)
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        self.blocks += anchors.numel()
        return parts


def fit(args: argparse.Namespace) -> None:
    """Train the drafters named side by side: they read the same hidden states, so the target runs once for all."""
    device = device_of()
    torch.manual_seed(args.seed)
    started = time.monotonic()
    layer_count = json.loads((args.model / "config.json").read_text())["num_hidden_layers"]
    states, embedding, target = target_states(args.model, capture_layers(layer_count), device)
    text = Text(args.text, device, args.held_out)
    learners = [Learner(name, target, embedding, args, device) for name in args.drafter]
    print(f"{len(text.training)} sequences", flush=True)
    order, cursor, step = text.order(args.batch), 0, 0
    began = time.monotonic()
    last: dict[str, dict[str, float]] = {}
    while (share := (time.monotonic() - began) / args.seconds) < 1 and step < args.steps:
        if cursor + args.batch > len(order):
            order, cursor = text.order(args.batch), 0
        batch = text.rows(order[cursor : cursor + args.batch], states)
        cursor += args.batch
        rate = args.learning_rate * min(1.0, (step + 1) / args.warm_up) * (0.5 + 0.5 * math.cos(math.pi * share))
        step += 1
        for learner in learners:
            parts = learner.step(batch, rate)
            if step % args.log_every == 0 or step == args.steps:
                last[learner.name] = {k: round(v.item(), 4) for k, v in parts.items()}
                print(learner.name, step, f"{time.monotonic() - started:.0f} s", last[learner.name], flush=True)
                if step % (10 * args.log_every) == 0:
                    with learner.codebooks.folded():
                        save(learner.model, args.out / learner.name)
    seconds = round(time.monotonic() - began)
    for learner in learners:
        folder = args.out / learner.name
        figures = []
        with learner.codebooks.folded():
            save(learner.model, folder)
        stored = load_block_model(learner.name, folder)[0].to(device)  # what is measured is what is kept
        stored.transition.bind(lambda ids: embedding[ids.to(device)])
        for block in sorted(learner.mix):
            figures.append(evaluate(stored, text, states, embedding, block, args.eval_rows))
            print(learner.name, figures[-1], flush=True)
        summary = {
            "steps": step, "blocks": learner.blocks, "sequences": len(text.training),
            "answer_tokens": int((text.lengths - text.prompt_lengths).sum()), "seed": args.seed, "batch": args.batch,
            "anchors": args.anchors, "rows": args.rows, "learning_rate": args.learning_rate, "seconds": seconds,
            "started_from": learner.started_from, "before": learner.before,
            "trained_beside": [other.name for other in learners if other is not learner],
            "parameters": sum(p.numel() for p in learner.model.parameters()),
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
            "last_loss": last.get(learner.name), "held_out": figures,
        }  # fmt: skip
        (folder / "training.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"done: {step} steps in {seconds} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    text = commands.add_parser("generate", help="let the target write training text")
    text.add_argument("--model", type=Path, required=True)
    text.add_argument("--out", type=Path, required=True)
    text.add_argument("--seconds", type=float, default=240, help="time for the answers")
    text.add_argument("--own-seconds", type=float, default=40, help="time for prompts that the target makes up")
    text.add_argument("--seed", type=int, default=0)
    text.add_argument("--rows", type=int, default=4096)
    text.add_argument("--prompts", type=int, default=200_000)
    text.add_argument("--wordnet", type=Path, help="folder with WordNet's data.noun and data.verb")
    text.add_argument("--wordnet-prompts", type=int, default=200_000)
    text.add_argument("--prompt-tokens", type=int, default=176)
    text.add_argument("--new-tokens", type=int, default=96)
    text.set_defaults(run=write)
    train = commands.add_parser("fit", help="train drafters")
    train.add_argument("--drafter", choices=sorted(MODELS), nargs="+", default=sorted(MODELS))
    train.add_argument("--model", type=Path, required=True)
    train.add_argument("--text", type=Path, nargs="+", required=True)
    train.add_argument("--out", type=Path, required=True)
    train.add_argument("--seconds", type=float, default=900)
    train.add_argument("--start", help="checkpoint to go on from; {} stands for the drafter's name")
    train.add_argument("--steps", type=int, default=10**9)
    train.add_argument("--batch", type=int, default=128)
    train.add_argument(
        "--anchors", type=int, default=20, help="blocks per sequence and step, at the drafter's own size"
    )
    train.add_argument("--rows", type=int, default=96, help="draft positions per sequence and step that are scored")
    train.add_argument("--held-out", type=int, default=512)
    train.add_argument("--eval-rows", type=int, default=32)
    train.add_argument("--learning-rate", type=float, default=2e-3)
    train.add_argument("--warm-up", type=int, default=200, help="steps over which the learning rate rises")
    train.add_argument("--log-every", type=int, default=200)
    train.add_argument("--seed", type=int, default=0)
    train.set_defaults(run=fit)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
