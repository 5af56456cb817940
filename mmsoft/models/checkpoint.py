"""A file of weights, opened: our names, what the file says beside them, and the way into a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mmsoft.ops.checks import choose
from mmsoft.weights import LoadReport, load_weights, read_checkpoint, read_state_dict
from mmsoft.weights.files import IGNORED
from mmsoft.weights.fitting import take_prefix

from .family import Family, our_family, published_family, with_our_names

NEW_HEADS = ('never', 'differ', 'always')
BACKBONE = 'backbone.'  # where detectors, segmentors and OpenMMLab's classifiers have one of ours


@dataclass(frozen=True)
class Checkpoint:
    """Weights with our names; ``Checkpoint.open('file.pth').load_into(model)`` is all that most need.

    Args:
        source: What was opened, for messages.
        weights: With our names; wrappers are taken off, ``backbone.`` of a detector stays.
        meta: What the file says of its run; empty where it says nothing.
        family: Whose backbone or classifier these are, or hold; None if nobody's.
        published: Whether the names in the file were the authors'.
    """

    source: str
    weights: dict[str, Tensor]
    meta: Mapping[str, Any]
    family: Family | None
    published: bool

    @classmethod
    def open(cls, source: str | Path | Mapping, trust: bool = False) -> 'Checkpoint':
        """From a path, an http(s) address, a hub id (see weights.sources.locate) or a loaded checkpoint.

        ``trust`` is that of weights.read_checkpoint.
        """
        content = source if isinstance(source, Mapping) else read_checkpoint(source, trust)
        weights = read_state_dict(content)
        inner = {name.removeprefix(BACKBONE): value for name, value in weights.items() if name.startswith(BACKBONE)}
        published = published_family(inner or weights)
        if published and inner:  # heads have the names that mmdet and mmseg gave them, which have not changed
            rest = {name: value for name, value in weights.items() if not name.startswith(BACKBONE)}
            inner = published.to_ours(inner)
            weights = rest | {f'{BACKBONE}{name}': value for name, value in inner.items()}
        elif published:
            weights = published.to_ours(weights)
        meta = content.get('meta')
        return cls(
            source='a state dict' if isinstance(source, Mapping) else str(source),
            weights=weights,
            meta=meta if isinstance(meta, Mapping) else {},
            family=published or our_family(inner or weights),
            published=published is not None,
        )

    def named_for(self, model: nn.Module) -> dict[str, Tensor]:
        """The weights as ``model`` calls them: those of a classifier alone below its place in a larger model."""
        if hasattr(model, 'backbone') and our_family(self.weights):
            return {f'{BACKBONE}{name}': value for name, value in self.weights.items()}
        return self.weights

    def load_into(
        self, model: nn.Module, prefix: str | None = None, strict: bool = True, new_head: str = 'never'
    ) -> LoadReport:
        """Load into a backbone, a classifier or a model with a ``backbone`` of ours; the report is also printed.

        ``prefix`` selects a part of the file; ``backbone.`` is found by itself. Weights are copied to where the model
        is. ``new_head``: a classifier's head keeps its random start ``'never'``, ``'always'``, or where the classes
        ``'differ'`` in number; so do its parts before it where the weights, a backbone's, have none. ``strict`` is that
        of weights.load_weights.
        """
        choose('new_head', new_head, NEW_HEADS)
        if prefix is None and hasattr(model, 'backbone'):
            weights = self.named_for(model)
        else:
            if prefix is None and any(name.startswith(BACKBONE) for name in self.weights):
                prefix = BACKBONE
            weights = take_prefix(self.weights, prefix.rstrip('.') + '.', self.source) if prefix else self.weights
            weights = with_our_names(weights)
        own, head = model.state_dict(), ('head.weight', 'head.bias')
        same = head[0] in weights and head[0] in own and weights[head[0]].shape == own[head[0]].shape
        fresh = head if head[0] in own and (new_head == 'always' or (new_head == 'differ' and not same)) else ()
        if fresh and not any(name.startswith('head') for name in weights):
            fresh = [name for name in own if name.startswith('head') and not name.endswith(IGNORED)]
        return load_weights(model, weights, source=self.source, strict=strict, fresh=fresh)
