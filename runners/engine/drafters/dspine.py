"""DSpine in miniature: predecessor features at every layer, a table of transitions and a confidence head.

At every layer a position receives the features that its predecessor in the block had in the layer before, so the
block stays parallel within a layer while dependency travels one position per layer through the depth. At the end
tokens are resolved left to right with a low-rank table of transitions. The vendor's code is not public; this follows
the published description, and its checkpoint layout is this project's own: the table's two sides are projections of
the target's embedding, so that the vocabulary costs no parameters, and matrices are kept as int8 with a scale a row.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runners.engine.drafters.block import Attend, BlockConfig, BlockLayer, BlockModel, ProjectedTransition, RMSNorm


class DSpineLayer(BlockLayer):
    def __init__(self, config: BlockConfig, index: int) -> None:
        super().__init__(config, index)
        self.predecessor_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.predecessor_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        predecessor = F.pad(self.predecessor_norm(x[:, :-1]), (0, 0, 1, 0))
        return super().forward(x + self.predecessor_proj(predecessor), cos, sin, attend)


class DSpineModel(BlockModel):
    section = "dspine_config"
    layer_class = DSpineLayer
    storage: ClassVar[torch.dtype] = torch.int8

    def __init__(self, config: BlockConfig) -> None:
        super().__init__(config)
        self.candidates = config.extra["candidates"]
        rank = config.extra["transition_rank"]
        self.transition = ProjectedTransition(config.vocab_size, config.hidden_size, rank)
        self.transition_gate = nn.Linear(config.hidden_size, rank, bias=False)
        self.confidence = nn.Linear(config.hidden_size + 2, 1)

    def gate(self, hidden: Tensor) -> Tensor:
        return 1 + self.transition_gate(hidden)

    def confidence_logits(self, hidden: Tensor, chosen_logprob: Tensor, margin: Tensor) -> Tensor:
        """Logit of P(accepted | all before accepted).

        hidden [..., H]; the chosen token's log probability among the candidates and its lead over the runner-up [...].
        """
        extra = [chosen_logprob.unsqueeze(-1), margin.unsqueeze(-1).clamp(max=10.0)]
        return self.confidence(torch.cat([hidden, *extra], -1)).squeeze(-1)
