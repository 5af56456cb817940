"""Modules, one attention a file; an attention is called as ``attn(x, grid)``."""

from mmsoft.versions import require

require('torchvision')

from . import cross_shaped_attention
from .block import Block, Mlp, PostNormBlock, PreNormBlock
from .cross_shaped_attention import *  # noqa: F403
from .inline_attention import InLineAttention
from .landmarks import Landmarks
from .linear import Linear, with_torch_linears
from .linear_attention import LinearAttention
from .linformer_attention import LinformerAttention
from .nystromformer_attention import NystromformerAttention
from .patch_embed import ConvUnit, PatchEmbed, embedded_size, stem
from .performer_attention import PerformerAttention, redraw_features
from .polaformer_attention import PolaFormerAttention
from .position import PositionTable, resize_table
from .rotary_attention import MILAAttention, RALAAttention
from .simple_pyramid import OutputNorms, SimplePyramid
from .soft_attention import SoftAttention
from .softmax_attention import SoftmaxAttention
from .swin import PatchMerging, WindowAttention

__all__ = [
    'Block',
    'ConvUnit',
    'InLineAttention',
    'Landmarks',
    'Linear',
    'LinearAttention',
    'LinformerAttention',
    'MILAAttention',
    'Mlp',
    'NystromformerAttention',
    'OutputNorms',
    'PatchEmbed',
    'PatchMerging',
    'PerformerAttention',
    'PolaFormerAttention',
    'PositionTable',
    'PostNormBlock',
    'PreNormBlock',
    'RALAAttention',
    'SimplePyramid',
    'SoftAttention',
    'SoftmaxAttention',
    'WindowAttention',
    'embedded_size',
    'redraw_features',
    'resize_table',
    'stem',
    'with_torch_linears',
]

__all__ += cross_shaped_attention.__all__
