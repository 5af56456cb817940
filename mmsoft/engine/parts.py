"""Ways through a config."""

from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.config import ConfigDict

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')


def kind_of(part: Any) -> str:
    """The name of a part's class, without its library: of ``dict(type='mmdet.RetinaNet')`` 'RetinaNet'."""
    kind = part.get('type') if isinstance(part, Mapping) else part
    return (kind if isinstance(kind, str) else getattr(kind, '__name__', repr(kind))).split('.')[-1]


def pipelines(dataset: Mapping[str, Any]) -> Iterator[list]:
    """Every pipeline in the config of a data set that may repeat, join or wrap others."""
    for key, value in dataset.items():
        if key == 'pipeline':
            yield value
        elif isinstance(value, Mapping):
            yield from pipelines(value)
        elif isinstance(value, list):
            for entry in value:
                if isinstance(entry, Mapping):
                    yield from pipelines(entry)


def walk_dicts(node: Any) -> Iterator[ConfigDict]:
    """Every dict of a config, outer ones first."""
    if isinstance(node, Mapping):
        yield node
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        for value in node:
            yield from walk_dicts(value)
