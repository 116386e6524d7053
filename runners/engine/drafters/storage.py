"""How a drafter's checkpoint keeps its tensors: float16 throughout, or matrices as int8 with a scale for each row."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

SCALE = "_scale"
"""Ending of the tensor, float16 [rows], that goes with a matrix kept as int8 [rows, columns]."""


def compress(tensors: Mapping[str, Tensor], storage: torch.dtype) -> dict[str, Tensor]:
    """Tensors as a checkpoint keeps them; ``storage`` is float16 or int8 and means matrices, the rest is float16."""
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if storage == torch.int8 and tensor.ndim == 2:
            scale = (tensor.float().abs().amax(1).clamp_min(1e-6) / 127).half()
            kept[name] = (tensor.float() / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8).cpu()
            kept[name + SCALE] = scale.cpu()
        else:
            kept[name] = tensor.half().cpu()
    return kept


def expand(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What ``compress`` kept, in float32."""
    return {
        name: tensor.float() * tensors[name + SCALE].float()[:, None] if name + SCALE in tensors else tensor.float()
        for name, tensor in tensors.items()
        if not name.endswith(SCALE)
    }
