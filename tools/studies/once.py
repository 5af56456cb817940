"""What studies of trained models share: work that is done once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmsoft.engine.training import train
from mmsoft.weights.sources import latest_checkpoint
from mmsoft.weights.writing import whole_file


def train_once(cfg: Config, folder: Path, seed: int) -> str:
    """Train on the demo's world unless the same config has been trained here; the last checkpoint."""

    def run() -> bool:
        train(cfg, work_dir=str(folder), demo=True, seed=seed, resume='auto')
        return True

    once(folder / 'finished.json', cfg.pretty_text, run)
    return str(latest_checkpoint(folder))


def once(path: Path, of: str, compute: Callable[[], Any], anew: bool = False) -> Any:
    """What ``compute`` gives, kept in ``path`` with what it is ``of``; of another, an error, or done ``anew``."""
    if path.is_file():
        kept = json.loads(path.read_text())
        if kept['of'] == of:
            return kept['value']
        if not anew:
            held = str(path.parent)
            raise ValueError(f'{held!r} holds a run of another config: remove it or name another --work-dir')
    value = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        partial.write_text(json.dumps(dict(of=of, value=value), indent=1, default=float))
    return value
