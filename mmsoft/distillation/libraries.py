"""What timm's models need to serve here: names that were meant, and pictures of other sizes than their own."""

import copy
from difflib import get_close_matches

from torch import nn


def names_near(name: str, names: list[str], count: int = 5) -> str:
    """Those that may have been meant, the nearest first; where none is near, how to list all."""
    starts = get_close_matches(name, {each[: len(name)] for each in names}, count, cutoff=0.7)
    starts = starts or [f'{name.split("_")[0]}_']  # its family's
    near = [each for start in starts for each in sorted(names, key=len) if each.startswith(start)][:count]
    return ', '.join(near) or f'none like it among {len(names)}; timm.list_models() gives all'


def for_any_size(model: nn.Module) -> nn.Module:
    """A copy that takes pictures of any size, if ``model`` is a Swin or ViT of timm; at its own size it is the same.

    Windows stay as they are, position tables are resized; pictures are padded to whole patches. Others are returned
    as they are.
    """
    if type(model).__module__ not in ('timm.models.swin_transformer', 'timm.models.vision_transformer'):
        return model
    from timm.layers import Format

    model = copy.deepcopy(model)
    embed = model.patch_embed
    embed.strict_img_size, embed.dynamic_img_pad = False, True
    if hasattr(model, 'dynamic_img_size') and hasattr(model, 'pos_embed'):  # a ViT
        model.dynamic_img_size, embed.flatten, embed.output_fmt = True, False, Format.NHWC
    for module in model.modules():
        if hasattr(module, 'dynamic_mask'):  # a layer of Swin
            module.dynamic_mask = True
    return model
