"""Send one method of mmdet's or mmseg's zoo through train, test, predict, browse and get_flops, on drawn pictures."""

import os
import tempfile
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmsoft.datasets.miniature import write_world
from mmsoft.engine.browse import browse
from mmsoft.engine.complexity import count_parts
from mmsoft.engine.config import load_config
from mmsoft.engine.parts import LOADERS
from mmsoft.engine.predict import predict
from mmsoft.engine.training import evaluate, train
from zoo import configs
from zoo.method import WARMUP, try_steps

STEPS = ('train', 'test', 'predict', 'browse', 'get_flops')
WORLDS = dict(mmdet='coco', mmseg='ade20k')
PAGE = """# Methods of mmdet and mmsegmentation that all tools take

{totals}

Of every method folder of the installed zoos one config goes through the tools as somebody with a small data set uses
them: `train.py --data` for one epoch on four drawn pictures of {side} x {side} pixels, from random weights and in small
steps; `test.py` on two more; `predict.py` with the checkpoint alone; `browse_dataset.py`; `get_flops.py`. BN stands in
place of SyncBN, and there are {proposals} proposals at most. What the zoos do without data sets and metrics is on
[another page](zoo.md).

{stack}
{other}
{exceptions}

`python tools/check_zoo.py --tools` writes this page.
"""


def check(library: str, config: str) -> dict[str, Any]:
    """Which tools take the method, and the errors of those that do not."""
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(library, config, Path(folder))
        return try_steps({step: getattr(trial, step) for step in STEPS})


class Trial:
    """One config on its way through the tools; each begins with what the one before left in ``folder``."""

    def __init__(self, library: str, config: str, folder: Path) -> None:
        self.library, self.config, self.run = library, config, folder / 'run'
        # DINO's smallest scales, 0.6 of the side, leave its 900 queries too few places on smaller pictures
        self.side = 448 if config.startswith('dino/') else configs.side(config)
        self.folder = folder

    def train(self) -> None:
        written = self.folder / 'method.py'
        shrunk = configs.load(self.library, self.config)
        whole = Config.fromfile(configs.zoo_folder(self.library) / self.config).model.get('data_preprocessor')
        if self.library == 'mmseg' and whole:
            shrunk.model.data_preprocessor = whole  # --img-size changes it as it does pipelines
        shrunk.dump(written)
        cfg = load_config(str(written))
        sides = (self.side, self.side)
        self.data = write_world(WORLDS[self.library], self.folder / 'data', train=4, val=2, size=sides)
        for name in LOADERS:
            (cfg.get(name) or {}).update(num_workers=0, persistent_workers=False)
        if cfg.get('optim_wrapper'):  # whole steps would ruin random weights
            cfg.optim_wrapper.optimizer.lr *= WARMUP
            cfg.optim_wrapper.clip_grad = dict(max_norm=1.0)
        options = dict(epochs=1, batch=2, img_size=sides, pretrained=False)
        train(cfg, work_dir=str(self.run), data=str(self.data), **options)
        (self.left,) = self.run.glob('*.py')
        self.checkpoint = str(max(self.run.glob('*.pth'), key=os.path.getmtime))

    def test(self) -> None:
        evaluate(load_config(str(self.left)), self.checkpoint, work_dir=str(self.folder / 'tested'))
        if not (self.folder / 'tested' / 'metrics.json').is_file():
            raise ValueError('no metrics')

    def predict(self) -> None:
        picture = next(path for path in sorted(Path(self.data).rglob('*')) if path.suffix in ('.jpg', '.png'))
        count, _ = predict(None, self.checkpoint, [str(picture)], self.folder / 'found', 'cpu')
        if count != 1:
            raise ValueError(f'{count} pictures predicted, not 1')

    def browse(self) -> None:
        browse(load_config(str(self.left)), self.folder / 'seen', count=2)

    def get_flops(self) -> None:
        count_parts(load_config(str(self.left)), (self.side, self.side))
