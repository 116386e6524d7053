"""The block drafters: what is trained is what is run, and their checkpoints keep the public contract."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from runners.engine.drafters import lattice
from runners.engine.drafters.base import DraftSampling
from runners.engine.drafters.block import BlockConfig, BlockModel, rope_tables
from runners.engine.drafters.block_drafter import MODELS, BlockDrafter, load_block_model
from runners.engine.drafters.ngram import NgramDrafter
from runners.engine.drafters.storage import compress, expand
from runners.engine.training import objective

HIDDEN, VOCAB, BLOCK = 64, 640, 6
EXTRA = {
    "dflash2": {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 4},
    "dspine": {"transition_rank": 8, "candidates": 4},
}
ARCHITECTURE = {"dflash2": "DFlash2DraftModel", "dspine": "DSpineDraftModel"}


def random_model(name: str) -> BlockModel:
    torch.manual_seed(7)
    config = BlockConfig(
        architecture=ARCHITECTURE[name], hidden_size=HIDDEN, vocab_size=VOCAB, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=96, rope_theta=1e4,
        rms_norm_eps=1e-5, block_size=BLOCK, target_layer_ids=(1, 3), mask_token_id=5, num_target_layers=6,
        extra=EXTRA[name],
    )  # fmt: skip
    model = MODELS[name](config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval().requires_grad_(False)


def bound(name: str, folder: Path, embedding: Tensor, context_length: int = 64) -> BlockDrafter:
    """The checkpoint's drafter for a target whose embedding, tied to its head, is given."""
    return BlockDrafter(
        name, folder, lambda ids: F.embedding(ids, embedding), lambda h: h @ embedding.T, torch.float32, context_length
    )


@pytest.fixture(params=sorted(MODELS))
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, BlockModel, Path]:
    model = random_model(request.param)
    save_file(model.export(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(model.config.dump(model.section)))
    return request.param, model, tmp_path


def test_a_checkpoint_round_trips(checkpoint: tuple[str, BlockModel, Path]) -> None:
    name, model, folder = checkpoint
    loaded, _ = load_block_model(name, folder)
    assert loaded.config == model.config
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[key]), key


def test_a_checkpoint_that_does_not_fit_is_refused(checkpoint: tuple[str, BlockModel, Path]) -> None:
    name, _, folder = checkpoint
    tensors = load_file(folder / "model.safetensors")
    del tensors["fc.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"fc\.weight"):
        load_block_model(name, folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        load_block_model(name, folder)


def test_what_is_trained_is_what_is_run(checkpoint: tuple[str, BlockModel, Path]) -> None:
    """Masked training forward over many blocks against the cached one-block forward, batched over two requests."""
    name, model, folder = checkpoint
    embedding = torch.randn(VOCAB, HIDDEN)
    length = 24
    tokens, features = torch.randint(0, VOCAB, (2, length)), torch.randn(2, length, 2 * HIDDEN)
    anchors = torch.tensor([[4, 9, 17], [7, 8, 12]])
    batch = objective.Batch(tokens, torch.tensor([length, length]), torch.tensor([3, 3]), features, features)
    tables = rope_tables(model.config, 64)
    hidden = objective.block_hidden(model, batch, anchors, BLOCK, embedding, tables)
    model.transition.bind(lambda ids: embedding[ids])
    paths = lattice.build(
        model, hidden.flatten(0, 1), hidden.flatten(0, 1) @ embedding.T, tokens.gather(1, anchors).flatten()
    )
    expected = lattice.greedy_rows(paths)[0].view(2, 3, BLOCK - 1)

    drafter = bound(name, folder, embedding)
    states, done = [drafter.open([]), drafter.open([])], [0, 0]
    for step in range(3):
        ends = anchors[:, step].tolist()
        new = [tokens[i, done[i] : ends[i]].tolist() for i in range(2)]
        drafter.extend(states, new, torch.cat([features[i, done[i] : ends[i]] for i in range(2)]))
        drafts = drafter.propose(states, [int(tokens[i, ends[i]]) for i in range(2)], [99, 99], [DraftSampling()] * 2)
        assert [d.tokens for d in drafts] == expected[:, step].tolist()
        if drafter.gives_confidence:
            assert all(0 <= c <= 1 for d in drafts for c in d.confidence or [2])
        done = ends


def test_sampled_drafts_follow_their_own_q(checkpoint: tuple[str, BlockModel, Path]) -> None:
    name, _, folder = checkpoint
    embedding = torch.randn(VOCAB, HIDDEN) * 0.05
    drafter = bound(name, folder, embedding)
    state = drafter.open([])
    drafter.extend([state], [[1, 2, 3]], torch.randn(3, 2 * HIDDEN))
    how = DraftSampling(1.0, torch.Generator().manual_seed(3))
    counts = torch.zeros(4)
    for _ in range(400):
        draft = drafter.propose([state], [9], [1], [how])[0]
        assert draft.q_ids is not None and draft.q_probs is not None
        counts[(draft.q_ids[0] == draft.tokens[0]).nonzero()[0, 0]] += 1
    error = (counts / 400 - draft.q_probs[0]).abs().max()
    assert draft.q_probs[0].sum() == pytest.approx(1, abs=1e-5)
    assert error < 0.1  # four standard deviations of a share of 400 draws


def test_a_block_is_drafted_up_to_the_end_of_the_context(checkpoint: tuple[str, BlockModel, Path]) -> None:
    name, model, folder = checkpoint
    context = model.config.dump(model.section)["max_position_embeddings"] + 1  # what a target has, not the checkpoint
    embedding = torch.randn(VOCAB, HIDDEN)
    drafter = bound(name, folder, embedding, context)
    state = drafter.open([])
    drafter.extend([state], [[1] * (context - 1)], torch.randn(context - 1, 2 * HIDDEN))
    assert len(drafter.propose([state], [9], [99], [DraftSampling()])[0].tokens) == BLOCK - 1


def test_topk_is_exact() -> None:
    logits = torch.randn(3, 5, 64 * 40)
    values, ids = lattice.topk(logits, 16)
    expected = logits.topk(16, dim=-1)
    assert torch.equal(values, expected.values) and torch.equal(ids, expected.indices)


def test_greedy_path_is_the_walk_by_hand() -> None:
    scores, ids = torch.randn(2, 4, 3, 3), torch.randint(0, 99, (2, 4, 3))
    scores[:, 0] = scores[:, 0, :1]
    tokens, rows = lattice.greedy_rows(lattice.Lattice(ids, scores))
    for m in range(2):
        index = 0
        for position in range(4):
            row = scores[m, position, index]
            assert torch.equal(rows[m, position], row)
            index = int(row.argmax())
            assert tokens[m, position] == ids[m, position, index]


def test_ngram_continues_the_longest_latest_match() -> None:
    drafter = NgramDrafter(block_size=4)
    state = drafter.open([])
    drafter.extend([state], [[1, 2, 3, 4, 5, 9, 2, 3, 7, 1, 2]], None)
    draft = drafter.propose([state], [3], [99], [DraftSampling()])[0]
    assert draft.tokens == [4, 5, 9]  # "1 2 3" beats the later "2 3"
    assert drafter.propose([state], [3], [1], [DraftSampling()])[0].tokens == [4]
    assert drafter.propose([state], [42], [99], [DraftSampling()])[0].tokens == []


def test_ngram_may_copy_from_what_it_is_continuing() -> None:
    drafter = NgramDrafter(block_size=6)
    state = drafter.open([])
    drafter.extend([state], [[8, 8]], None)
    assert drafter.propose([state], [8], [99], [DraftSampling()])[0].tokens == [8] * 5


def test_matrices_are_kept_as_int8_to_half_a_step_of_their_row() -> None:
    torch.manual_seed(1)
    tensors = {
        "matrix": torch.randn(5, 300) * torch.tensor([[1e-9], [0.01], [1.0], [30.0], [1e-3]]),
        "bias": torch.randn(7),
    }
    tensors["matrix"][0] = 0
    kept = compress(tensors, torch.int8)
    assert {name: tensor.dtype for name, tensor in kept.items()} == {
        "matrix": torch.int8, "matrix_scale": torch.float16, "bias": torch.float16,
    }  # fmt: skip
    back = expand(kept)
    assert set(back) == set(tensors)
    step = kept["matrix_scale"].float()[:, None]
    # The scale's own rounding may push the largest weight of a row a little past 127 steps.
    assert ((back["matrix"] - tensors["matrix"]).abs() <= 0.57 * step).all()
    assert torch.equal(back["bias"], tensors["bias"].half().float())
    assert torch.equal(expand(compress(tensors, torch.float16))["matrix"], tensors["matrix"].half().float())


def test_the_losss_gradient_is_that_of_the_chain_of_operations() -> None:
    torch.manual_seed(2)
    logits, teacher, label = torch.randn(6, 40), torch.randn(6, 40), torch.randint(0, 40, (6,))
    counts = torch.tensor([True, True, False, True, True, False])

    def gradients(of: Tensor, leaf: Tensor) -> Tensor:
        return torch.autograd.grad(2 * of, leaf)[0]

    def expected(leaf: Tensor, share: float) -> Tensor:
        logprobs = leaf.log_softmax(-1)
        text = -logprobs.gather(1, label[:, None])[:, 0]
        soft = -(teacher.softmax(-1) * logprobs).sum(-1)
        return ((share * text + (1 - share) * soft) * counts).sum() / counts.sum()

    leaf = logits.requires_grad_()
    for given, share in ((teacher, 0.5), (None, 1.0)):
        loss = objective.cross_entropy(leaf, label, counts, given)
        assert torch.allclose(loss, expected(leaf, 1.0), atol=1e-6)  # what is told is the text's loss
        assert torch.allclose(gradients(loss, leaf), gradients(expected(leaf, share), leaf), atol=1e-6)
