"""What every backbone of the package shares: options, freezing, train mode, weights, and the head of a classifier.

The methods of a classifier are those that timm expects of a model; timm itself is not needed.
"""

import re
from collections.abc import Collection, Sequence
from numbers import Real
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmsoft.ops.checks import choose, flag, whole

from .checkpoint import Checkpoint
from .family import family_of
from .options import reject_unknown
from .stage import to_channels_last

# Parameters that are tables, not filters: weight decay leaves them alone.
TABLES = ('position.table', 'relative_position_bias_table', 'cls_token', 'cls_position')
# What a backbone makes its maps with beside its layers; a classifier has none.
PYRAMID = 'pyramid.'
# What init_cfg of the type Pretrained may say.
PRETRAINED = ('type', 'checkpoint', 'map_location', 'trust', 'prefix', 'strict', 'new_head')


class Backbone(nn.Module):
    """Images to maps; a family supplies the layers, ``forward`` and ``_features``.

    ``channels`` and ``strides`` describe the maps that forward returns, in order, so that necks and heads can be built
    from them. A classifier of the family inherits from its backbone, calls :meth:`add_head` and has ``classify`` for
    its ``forward``.

    Args:
        dims: Channels of every map that there is.
        strides: Their strides.
        depths: Layers of every stage, for drop path.
        layers: Where one stage is all there is, how many may freeze; ``freezable`` is the largest ``frozen_stages``.
        in_channels: Channels of the image.
        img_size: Image size whose grids the position tables have; other sizes resize them. Families without tables
            are the same for all sizes.
        out_indices: Stages (0 to 3) whose maps are returned; none is built after the last of them.
        frozen_stages: -1 freezes nothing, 0 the first embedding, k also the first k stages.
        with_cp: Checkpoint every layer: less memory, more time.
        recompute: Whether backward computes the MLPs' hidden maps again: less memory, more time. None: on CPUs only.
        drop_path_rate: Stochastic depth of the last layer; it rises linearly from 0.
        init_cfg: As in MMEngine; ``dict(type='Pretrained', checkpoint=...)`` loads weights.
    """

    pools = ('avg', '')  # what a classifier's head may see, the default first
    num_prefix_tokens = 0  # of a classifier: class tokens before those of the grid

    def __new__(cls, *args: Any, **options: Any):
        """A misspelt option says what there is; type checkers see the signatures of ``__init__``."""
        reject_unknown(cls, options)
        return super().__new__(cls)

    def __init__(
        self,
        dims: Sequence[int],
        strides: Sequence[int],
        depths: Sequence[int],
        layers: int | None = None,
        /,
        *,
        in_channels: int = 3,
        img_size: int | tuple[int, int] = 224,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        frozen_stages: int = -1,
        with_cp: bool = False,
        recompute: bool | None = None,
        drop_path_rate: float = 0.1,
        init_cfg: dict | list | None = None,
    ) -> None:
        super().__init__()
        self.out_indices = rising_indices(out_indices, len(dims))
        self.freezable = layers or self.out_indices[-1] + 1
        if frozen_stages not in range(-1, self.freezable + 1):
            what = 'layers' if layers else 'stages as well, of those up to the last output'
            raise ValueError(
                f'frozen_stages must be -1 (none), 0 (the first embedding) or 1 to {self.freezable} '
                f'(that many {what}); got {frozen_stages!r}'
            )
        self.stage_dims, self.stage_strides = tuple(dims), tuple(strides)
        self.channels = tuple(dims[i] for i in self.out_indices)
        self.strides = tuple(strides[i] for i in self.out_indices)
        self.frozen_stages, self.norm_eval, self.init_cfg = frozen_stages, False, init_cfg
        self.in_channels, self.img_size = whole('in_channels', in_channels), image_sides(img_size)
        self.with_cp = flag('with_cp', with_cp)
        self.recompute = choose('recompute', recompute, (None, True, False))
        self.drop_paths = drop_path_rates(drop_path_rate, depths)

    def _frozen_modules(self) -> list[nn.Module]:
        """Modules that ``frozen_stages`` freezes."""
        raise NotImplementedError

    def train(self, mode: bool = True):
        """Set the mode, but keep frozen stages, and with ``norm_eval`` every BatchNorm, in evaluation."""
        super().train(mode)
        for module in self._frozen_modules():
            module.eval().requires_grad_(False)
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def init_weights(self) -> None:
        """Load or initialise as ``init_cfg`` says; without one, keep the random start of construction.

        ``dict(type='Pretrained', checkpoint=...)`` takes a published file, one of this package, or
        one of a classifier or detector, and the options of :class:`Checkpoint`: trust, prefix, ... Other types
        are MMEngine's initialisers.
        """
        configs = [self.init_cfg] if isinstance(self.init_cfg, dict) else list(self.init_cfg or ())
        for cfg in configs:
            if not isinstance(cfg, dict) or 'type' not in cfg or (is_pretrained(cfg) and 'checkpoint' not in cfg):
                raise ValueError(
                    "init_cfg is a dict such as dict(type='Pretrained', checkpoint='file.pth'), or a list of them; "
                    f'got {self.init_cfg!r}'
                )
        pretrained = [cfg for cfg in configs if is_pretrained(cfg)]
        others = [cfg for cfg in configs if not is_pretrained(cfg)]
        if others:
            from mmengine.model import initialize

            initialize(self, others)
        for cfg in pretrained:
            for key in cfg:
                choose('init_cfg: option', key, PRETRAINED)
            # map_location is MMEngine's: files are read on the CPU and copied to where the model is
            options = {key: value for key, value in cfg.items() if key not in ('type', 'map_location')}
            source, trust = options.pop('checkpoint'), options.pop('trust', False)
            Checkpoint.open(source, trust).load_into(self, **options)

    def leaves_aside(self, names: Collection[str]) -> list[str]:
        """Of the names of weights, those that need no place here.

        They are a classifier's own in a backbone, a backbone's pyramid, and stages past the last output.
        """
        own, family = self.state_dict(), family_of(self)
        classifying = () if 'head.weight' in own else family.head if family else ('head',)
        parts = {name: re.match(rf'stages\.\d+\.|norm\.|{PYRAMID}levels\.\d+\.', name) for name in names}
        return [
            name
            for name, part in parts.items()
            if name.split('.')[0] in classifying or (part and not any(other.startswith(part[0]) for other in own))
        ]

    def starts_fresh(self, names: Collection[str]) -> list[str]:
        """Its own names that weights need not have: those of its pyramid, if they are a classifier's."""
        given = any(name.startswith(PYRAMID) for name in names)
        return [] if given else [name for name in self.state_dict() if name.startswith(PYRAMID)]

    def add_head(
        self, num_classes: int, global_pool: str | None, drop_rate: float, features: int | None = None
    ) -> None:
        """Make a classifier of it.

        ``num_classes``: width of the head; 0 leaves it out, and features are returned. ``global_pool``: what the head
        sees, the first of ``pools`` by default: ``'token'`` the class token, ``'avg'`` the mean of the other tokens,
        ``''`` all tokens. ``drop_rate``: dropout before the head. ``features``: width of the tokens that
        forward_features gives, where a family widens those of the last stage.
        """
        if self.out_indices != (0, 1, 2, 3):
            raise ValueError(f'a classifier needs all four stages; got out_indices {self.out_indices}')
        whole('num_classes', num_classes, 0)
        if not isinstance(drop_rate, Real) or not 0 <= drop_rate < 1:
            raise ValueError(f'drop_rate must be at least 0 and below 1; got {drop_rate!r}')
        dim = features or self.stage_dims[-1]
        self.num_classes, self.drop_rate, self.in_chans = num_classes, float(drop_rate), self.in_channels
        self.global_pool = choose('global_pool', self.pools[0] if global_pool is None else global_pool, self.pools)
        self.num_features = self.head_hidden_size = dim
        self.feature_info = self._feature_info()
        self.head = nn.Linear(dim, num_classes) if num_classes else nn.Identity()
        init_linear(self.head)

    def classify(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) -> logits (B, num_classes)."""
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) -> normalised tokens (B, N, dim) of the last stage, class token first if there is one."""
        return self._features(to_channels_last(x, self.in_channels))

    def _features(self, x: Tensor) -> Tensor:
        """What forward_features gives, of images in the layout of every stage."""
        raise NotImplementedError

    def _feature_info(self) -> list[dict[str, Any]]:
        """timm's description of the maps between layers."""
        raise NotImplementedError

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Tokens of forward_features -> logits, or what the head would see."""
        if self.global_pool == 'token':
            x = x[:, 0]
        elif self.global_pool == 'avg':
            x = x[:, self.num_prefix_tokens :].mean(1)
        x = F.dropout(x, self.drop_rate, self.training)
        return x if pre_logits else self.head(x)

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new head; the pooling stays unless another one is named."""
        whole('num_classes', num_classes, 0)
        if global_pool is not None:
            if choose('global_pool', global_pool, self.pools) == 'token' and not self.num_prefix_tokens:
                raise ValueError("global_pool='token' needs the class token, which was pruned; take 'avg'")
            self.global_pool = global_pool
        self.num_classes = num_classes
        like = next(self.parameters())
        self.head = nn.Identity()
        if num_classes:
            self.head = nn.Linear(self.num_features, num_classes, device=like.device, dtype=like.dtype)
            init_linear(self.head)
        self.head.train(self.training)

    def _prune_rest(self, norm: bool, head: bool) -> None:
        if norm:
            self.norm = nn.Identity()
        if head:
            self.reset_classifier(0, '')

    def no_weight_decay(self) -> set[str]:
        """Parameters that are neither matrices nor filters: class token and tables."""
        return {name for name, _ in self.named_parameters() if name.endswith(TABLES)}


def rising_indices(out_indices: Sequence[int], count: int) -> tuple[int, ...]:
    """``out_indices`` if they are numbers below ``count``, each once and in order."""
    if not isinstance(out_indices, Sequence):
        raise ValueError(f'out_indices must be a list of stage numbers; got {out_indices!r}')
    if not out_indices or list(out_indices) != sorted(set(out_indices) & set(range(count))):
        raise ValueError(f'out_indices must be rising stage numbers from 0 to {count - 1}; got {list(out_indices)}')
    return tuple(out_indices)


def is_pretrained(cfg: dict) -> bool:
    """MMEngine takes the initialiser by name, with or without its library, or as its class."""
    kind = cfg.get('type')
    return str(getattr(kind, '__name__', kind)).split('.')[-1] in ('Pretrained', 'PretrainedInit')


def init_linear(module: nn.Module) -> None:
    """Linear layers: truncated normal of std 0.02, zero bias."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def image_sides(img_size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) from an ``img_size`` option: one side, or both."""
    height, width = img_size if isinstance(img_size, Sequence) and len(img_size) == 2 else (img_size, img_size)
    option = 'img_size, or each side of a pair,'
    return whole(option, height), whole(option, width)


def drop_path_rates(rate: float, depths: Sequence[int]) -> list[list[float]]:
    """Rates that rise linearly from 0 to ``rate`` over all layers, a list a stage."""
    if not isinstance(rate, Real) or not 0 <= rate < 1:
        raise ValueError(f'drop_path_rate must be at least 0 and below 1; got {rate!r}')
    rates = torch.linspace(0, rate, sum(depths), device='cpu').tolist()
    return [[rates.pop(0) for _ in range(depth)] for depth in depths]
