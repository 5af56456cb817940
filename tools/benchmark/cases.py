"""What can be measured: one model by name, at one size, in one way."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mmsoft.models import ATTENTIONS, SOFT, Family
from mmsoft.models.family import for_each_family
from mmsoft.ops import linear
from mmsoft.ops.checks import choose
from mmsoft.versions import require

TASKS = ('forward', 'train')
PRECISIONS = dict(fp32=torch.float32, bf16=torch.bfloat16, fp16=torch.float16)  # the last two by autocast
OURS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {}  # every family's, also of those registered later


def _follow(family: Family) -> Callable[[], None]:
    return partial(OURS.update, {name: (family.backbone, options) for name, options in family.variants.items()})


for_each_family(_follow)
# mmdet's backbones with their published options
SWINS = dict(
    swin_tiny=dict(),
    swin_small=dict(depths=(2, 2, 18, 2)),
    swin_base=dict(embed_dims=128, depths=(2, 2, 18, 2), num_heads=(4, 8, 16, 32)),
)
RESNETS = dict(resnet50=50, resnet101=101)
# timm's as feature extractors; mmdet has no PVTv2 with linear attention, so all PVTv2 are timm's
TIMM = dict(
    convnext_tiny='convnext_tiny',
    convnext_small='convnext_small',
    convnext_base='convnext_base',
    pvtv2_b1='pvt_v2_b1',
    pvtv2_b2='pvt_v2_b2',
    pvtv2_b2_li='pvt_v2_b2_li',
    pvtv2_b3='pvt_v2_b3',
)
WHOLE = ('retinanet', 'mask_rcnn', 'upernet')
FUSED = 'softmax_sdpa'  # beside 'softmax', which keeps its scores
# attentions in one small pyramid, see pyramid.py, by ``attn`` of SOFT where that is not their name
SPECS = dict(softmax_reduced=dict(type='softmax', reduction=True), linear=dict(type='linear', kernel='relu'))
GEMM = 'gemm'  # torch.mm of matrices (H, W) x (W, H): the machine's peak
GEMM_CONV = 'gemm_as_convolution'  # the same product as ours are done, see ops.linear
GEMMS = (GEMM, GEMM_CONV)
NUM_LANDMARKS = 49
STRIDE = 4  # of the tokens that images are counted in


def backbones() -> tuple[str, ...]:
    return (*OURS, *SWINS, *RESNETS, *TIMM)


def attentions() -> tuple[str, ...]:
    """Those that are measured alone, see attention.py."""
    return ('softmax', FUSED, *(name for name in ATTENTIONS if name != 'softmax'))


def pyramid_attentions() -> tuple[str, ...]:
    return tuple(dict.fromkeys([*ATTENTIONS, *SPECS]))


def is_soft(name: str) -> bool:
    return name in OURS and issubclass(OURS[name][0], SOFT)


class Case(NamedTuple):
    """One thing to measure.

    ``model`` is a backbone, ``retinanet:<backbone>`` and the like, ``attention:<name>`` (whose size is the grid of
    tokens), ``pyramid:<attention>`` or one of GEMMS. ``num_landmarks`` None gives ours the authors' rule, by which
    landmarks grow with the image. With ``graph`` a step is captured once, as a CUDA graph, and then replayed.
    """

    model: str
    size: tuple[int, int]
    task: str = 'forward'
    precision: str = 'fp32'
    compiled: bool = False
    with_cp: bool = False
    num_landmarks: int | None = NUM_LANDMARKS
    batch: int = 1
    device: str = 'cpu'
    graph: bool = False

    @property
    def family(self) -> str:
        """``retinanet``, ``attention``, ... or '' for a backbone alone."""
        return self.model.rpartition(':')[0]

    @property
    def part(self) -> str:
        """The backbone or attention."""
        return self.model.rpartition(':')[2]

    @property
    def tokens(self) -> int:
        """Those of one image at stride 4; of an attention, its grid's."""
        height, width = self.size
        return height * width if self.family == 'attention' else height * width // STRIDE**2

    @property
    def label(self) -> str:
        """The model and what sets it apart from the usual: an fp32 run in eager mode."""
        parts = [self.model, self.precision if self.precision != 'fp32' else '']
        parts += ['compiled' if self.compiled else '', 'with_cp' if self.with_cp else '']
        parts += ['CUDA graph' if self.graph else '']
        if self.num_landmarks != NUM_LANDMARKS:
            parts.append('landmarks ' + ('as published' if self.num_landmarks is None else f'{self.num_landmarks}'))
        return ' '.join(filter(None, parts))


class Work(NamedTuple):
    """A built case: ``call(inputs(size))`` is the forward pass, or gives the loss of a training step."""

    module: nn.Module
    inputs: Callable[[tuple[int, int]], Any]
    call: Callable[[Any], Any]


def check_case(case: Case) -> None:
    """Raise unless the case can be built here: names are known and options have an effect."""
    choose('task', case.task, TASKS)
    choose('precision', case.precision, tuple(PRECISIONS))
    if min(*case.size, case.batch) < 1:
        raise ValueError(f'sizes and batch must be 1 or more; got {case.size[0]}x{case.size[1]}, batch {case.batch}')
    if case.device not in ('cpu', 'cuda'):
        raise ValueError(f"device {case.device!r} is unknown; choose 'cpu' or 'cuda'")
    if case.device == 'cuda' and not torch.cuda.is_available():
        raise ValueError("device 'cuda': torch finds no CUDA GPU here; measure with 'cpu'")
    if case.family == 'attention':
        choose('attention', case.part, attentions())
    elif case.family == 'pyramid':
        choose('pyramid', case.part, pyramid_attentions())
    elif case.family and case.family not in WHOLE:
        known = ', '.join(('attention', 'pyramid', *WHOLE))
        raise ValueError(f'model {case.model!r} is unknown; before the colon comes one of {known}')
    elif case.model not in GEMMS and case.part not in backbones():
        known = ', '.join(backbones())
        raise ValueError(
            f'backbone {case.part!r} is unknown; choose one of {known}, a whole model of it '
            f'({", ".join(f"{name}:{backbones()[0]}" for name in WHOLE)}), or attention:<{"|".join(attentions())}>'
        )
    _check_options(case)


def _check_options(case: Case) -> None:
    part = case.family in ('attention', 'pyramid')
    if case.with_cp and (case.task != 'train' or part or case.part in TIMM):
        raise ValueError(f'with_cp saves memory in training steps of {", ".join([*SWINS, *RESNETS])} and ours only')
    if case.graph and case.device != 'cuda':
        raise ValueError(f'CUDA graphs need a GPU; measure {case.model} without one on {case.device}')
    if case.num_landmarks != NUM_LANDMARKS and (part or not is_soft(case.part)):
        raise ValueError(f'num_landmarks is an option of SOFT, which {case.model} is not')


def build(case: Case, device: str | None = None) -> Work:
    """The case's model on its device, or on another, such as ``meta``."""
    check_case(case)
    device = device or case.device
    if case.model in GEMMS:
        return _gemm(case, device)
    if case.family == 'attention':
        from .attention import build_attention

        return build_attention(case, device)
    if case.family == 'pyramid':
        from .pyramid import build_pyramid

        return build_pyramid(case, device)
    if case.family:
        from .whole_models import build_whole

        return build_whole(case, device)
    model = build_backbone(case).to(device)
    model.train(case.task == 'train')
    return Work(model, lambda size: torch.randn(case.batch, 3, *size, device=device), as_task(case, model))


def as_task(case: Case, forward: Callable[[Any], tuple[Tensor, ...]]) -> Callable[[Any], Any]:
    """``forward`` itself, or in training the sum of its outputs' means for a loss."""
    return forward if case.task == 'forward' else lambda inputs: sum(out.float().mean() for out in forward(inputs))


def build_backbone(case: Case) -> nn.Module:
    """The backbone of four maps, with random weights; drop path and norms as its library has them.

    Convolutional peers run with channels last, which suits them as well or better.
    """
    name = case.part
    if name in OURS:
        backbone, options = OURS[name]
        asked = dict(with_cp=True) if case.with_cp else {}
        if case.num_landmarks != NUM_LANDMARKS:
            asked['num_landmarks'] = case.num_landmarks
        return backbone(**options, **asked)
    if name in TIMM:
        require('timm')
        import timm

        return timm.create_model(TIMM[name], features_only=True).to(memory_format=torch.channels_last)
    require('mmcv', 'mmdet')
    from mmdet.models.backbones import ResNet, SwinTransformer

    if name in RESNETS:
        return ResNet(RESNETS[name], with_cp=case.with_cp).to(memory_format=torch.channels_last)
    return SwinTransformer(**SWINS[name], with_cp=case.with_cp)


def _gemm(case: Case, device: str) -> Work:
    """(H, W) x (W, H) in the precision itself, without autocast's casts."""

    def matrices(size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        left, right = (torch.randn(*size, device=device).to(PRECISIONS[case.precision]) for _ in range(2))
        return left, right.t()

    if case.model == GEMM_CONV:
        return Work(nn.Identity(), matrices, lambda pair: linear(pair[0], pair[1].t()))
    return Work(nn.Identity(), matrices, lambda pair: torch.mm(*pair))
