"""What timm's callers may ask of features: which maps, in which format."""

from collections.abc import Sequence

from torch import Tensor

OUTPUT_FORMATS = ('NCHW', 'NLC', 'NHWC')


def take_indices(indices: int | Sequence[int] | None, count: int, what: str = 'stage') -> list[int]:
    """Numbers below ``count``, rising, from what timm allows: a list with negative ones, the last so many, or all."""
    if indices is None:
        return list(range(count))
    wanted = range(-indices, 0) if isinstance(indices, int) else indices
    if not len(wanted) or any(not -count <= index < count for index in wanted):
        raise ValueError(f'indices must be {what} numbers below {count}, or how many of the last ones; got {indices!r}')
    return sorted({index % count for index in wanted})


def as_format(x: Tensor, output_fmt: str) -> Tensor:
    """(B, C, H, W) as it is, as (B, H, W, C) or as (B, H * W, C)."""
    if output_fmt == 'NHWC':
        return x.permute(0, 2, 3, 1)
    return x.flatten(2).transpose(1, 2) if output_fmt == 'NLC' else x.contiguous()
