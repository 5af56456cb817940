"""Whether somebody watches a module."""

from torch import nn


def has_hooks(module: nn.Module) -> bool:
    """Whether forward hooks hang on a part of it, which short cuts would pass by or show slices to."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
