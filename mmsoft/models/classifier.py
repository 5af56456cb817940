"""SOFT with a classification head: the backbone itself plus a class token and a linear layer."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mmsoft.ops.checks import whole

from .archs import Arch
from .backbone import init_linear
from .soft import SOFT


class SOFTClassifier(SOFT):
    """Images to logits through a class token in stage 4.

    Parameters are those of the backbone plus ``cls_token``, ``cls_position`` and ``head``: a
    backbone loads a classifier's weights as they are. Options are those of :class:`SOFT` and
    ``num_classes``.
    """

    def __init__(self, arch: 'str | Mapping | Arch' = 'small', *, num_classes: int = 1000, **options: Any) -> None:
        super().__init__(arch, **options)
        if self.out_indices != (0, 1, 2, 3):
            raise ValueError(f'a classifier needs all four stages; got out_indices {self.out_indices}')
        whole('num_classes', num_classes)
        dim = self.arch.dims[-1]
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        self.cls_position = nn.Parameter(torch.empty(1, 1, dim))
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.cls_position, std=0.02)
        self.head = nn.Linear(dim, num_classes)
        init_linear(self.head)

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) -> normalised tokens (B, 1 + N, dim) of stage 4, the class token first."""
        x = self._to_channels_last(x)
        for stage in self.stages[:-1]:
            x = stage(x)
        tokens, grid = self.stages[-1].tokenize(x)
        cls = (self.cls_token + self.cls_position).expand(tokens.shape[0], -1, -1)
        return self.norm(self.stages[-1].run_blocks(torch.cat((cls, tokens), 1), grid))

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) -> logits (B, num_classes)."""
        return self.head(self.forward_features(x)[:, 0])
