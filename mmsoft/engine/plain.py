"""Configs in MMEngine's new style (``read_base``, classes as types), and what it dumps of them, with registered names.

All else then reads one kind of config, and the copy that a run leaves can be read by every tool.
"""

from typing import Any

import mmengine.registry.root as roots
from mmengine.config import Config
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.registry import Registry
from mmengine.utils import get_object_from_string

from .parts import walk_dicts

_LIBRARIES = {*MODULE2PACKAGE}


def plain_config(cfg: Config) -> Config:
    """The config with names for classes: ``mmdet.RetinaNet`` for the class itself or ``mmdet.models.RetinaNet``."""
    lazy, tree = bool(getattr(cfg, '_imported_names', ())), cfg.to_dict()
    dotted = [part for part in walk_dicts(tree) if str(part.get('type')).count('.') >= (1 if lazy else 2)]
    if not lazy and not dotted and cfg.get('default_scope', '') is not None:
        return cfg
    classes = [get_object_from_string(part['type']) for part in dotted]  # which registers them
    names = _registered()
    library = str(tree.get('model', {}).get('type')).split('.')[0]
    tree['default_scope'] = scope = tree.get('default_scope') or (library if library in _LIBRARIES else 'mmengine')
    for part, kind in zip(dotted, classes, strict=True):
        found = names.get(id(kind), [])
        # a bare name means that of the scope first
        part['type'] = next((n for n in found if '.' in n or f'{scope}.{n}' not in names), part['type'])
    return Config(tree, cfg_text=cfg.text, filename=cfg.filename, env_variables=cfg.env_variables)


def _registered() -> dict[Any, list[str]]:
    """Ids of what is registered -> its names; and each name itself, as a key."""
    names = {}
    for root in (each for each in vars(roots).values() if isinstance(each, Registry)):
        for registry in (root, *root.children.values()):
            prefix = '' if registry is root else f'{registry.scope}.'
            for name, kind in registry.module_dict.items():
                names.setdefault(id(kind), []).append(prefix + name)
                names[prefix + name] = []
    return names
