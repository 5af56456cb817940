"""Modules, one attention a file; an attention is called as ``attn(x, grid)``."""

from mmsoft.versions import require

require('torchvision')

from .block import Mlp, PostNormBlock, PreNormBlock
from .inline_attention import InLineAttention
from .landmarks import Landmarks
from .patch_embed import ConvUnit, embedded_size, stem
from .position import PositionTable, resize_table
from .soft_attention import SoftAttention
from .softmax_attention import SoftmaxAttention

__all__ = [
    'ConvUnit',
    'InLineAttention',
    'Landmarks',
    'Mlp',
    'PositionTable',
    'PostNormBlock',
    'PreNormBlock',
    'SoftAttention',
    'SoftmaxAttention',
    'embedded_size',
    'resize_table',
    'stem',
]
