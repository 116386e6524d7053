"""DFlash2 in miniature: two-tap dynamic convolutions around each sublayer and a top-k path selector.

The checkpoint contract (config fields, tensor names) is that of ``DFlash2DraftModel`` in SGLang 0.5.20 and newer and
of the authors' package ``dflash`` 0.1.0.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runners.engine.drafters.block import Attend, BlockConfig, BlockLayer, BlockModel, Transition


class GroupedDynamicConv(nn.Module):
    """Depthwise causal convolution over a block's positions, before and after a sublayer.

    Tap t of channel c at a position is ``base[t, c] + dynamic[t, group(c)]``; the dynamic part of both sides comes
    from one projection of the sublayer's normed input. Zero before the block's start; the context is not touched.
    """

    def __init__(self, hidden_size: int, taps: int, group_size: int) -> None:
        super().__init__()
        self.taps, self.groups, self.group_size = taps, hidden_size // group_size, group_size
        base = torch.zeros(2, taps, hidden_size)
        base[:, 0] = 1.0
        self.base_kernel = nn.Parameter(base)
        self.kernel_projection = nn.Linear(hidden_size, 2 * taps * self.groups, bias=False)
        nn.init.normal_(self.kernel_projection.weight, std=0.01)

    def prepare(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Convolved input [M, b, H] and the kernel for ``finish``, [M, b, taps, groups]."""
        dynamic = self.kernel_projection(x).unflatten(-1, (2, self.taps, self.groups))
        return self._convolve(x, dynamic[..., 0, :, :], 0), dynamic[..., 1, :, :]

    def finish(self, x: Tensor, dynamic: Tensor) -> Tensor:
        return self._convolve(x, dynamic, 1)

    def _convolve(self, x: Tensor, dynamic: Tensor, side: int) -> Tensor:
        base = self.base_kernel[side].to(x.dtype).unflatten(-1, (self.groups, self.group_size))
        kernel = base + dynamic.unsqueeze(-1)  # [M, b, taps, groups, group_size]
        blocks = x.unflatten(-1, (self.groups, self.group_size))
        out = kernel[..., 0, :, :] * blocks
        for tap in range(1, self.taps):
            out = out + kernel[..., tap, :, :] * F.pad(blocks[:, :-tap], (0, 0, 0, 0, tap, 0))
        return out.flatten(-2)


class DFlash2Layer(BlockLayer):
    def __init__(self, config: BlockConfig, index: int) -> None:
        super().__init__(config, index)
        sizes = config.hidden_size, config.extra["conv_kernel_size"], config.extra["conv_group_size"]
        self.attention_conv = GroupedDynamicConv(*sizes)
        self.mlp_conv = GroupedDynamicConv(*sizes)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        h, kernel = self.attention_conv.prepare(self.input_layernorm(x))
        x = x + self.attention_conv.finish(self.self_attn(h, cos, sin, attend), kernel)
        h, kernel = self.mlp_conv.prepare(self.post_attention_layernorm(x))
        return x + self.mlp_conv.finish(self.mlp(h), kernel)


class DFlash2Model(BlockModel):
    section = "dflash_config"
    layer_class = DFlash2Layer
    renamed: ClassVar[dict[str, str]] = {
        "transition.predecessor": "candidate_selector.predecessor_codebook",
        "transition.successor": "candidate_selector.successor_codebook",
        "hidden_projection.weight": "candidate_selector.hidden_projection.weight",
    }

    def __init__(self, config: BlockConfig) -> None:
        super().__init__(config)
        rank = config.extra["selector_rank"]
        self.candidates = config.extra["selector_top_k"]
        self.transition = Transition(config.vocab_size, rank)
        self.hidden_projection = nn.Linear(config.hidden_size, rank, bias=False)

    def gate(self, hidden: Tensor) -> Tensor:
        return self.hidden_projection(hidden)
