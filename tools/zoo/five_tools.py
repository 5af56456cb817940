"""Send one method of mmdet's or mmseg's zoo through train, test, predict, browse and get_flops, on drawn pictures."""

import os
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

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
STUFF = ('htc/', 'scnet/')  # which learn maps of stuff beside boxes
SKY, GROUND = 156, 125  # in COCO's maps of stuff
PAGE = """# Methods of mmdet and mmsegmentation that all tools take

{totals}

Of every method folder of the installed zoos one config goes through the tools as somebody with a small data set uses
them: `train.py --data` for one epoch on four drawn pictures of {side} x {side} pixels, from random weights and in small
steps; `test.py` on two more; `predict.py` with the checkpoint alone; `browse_dataset.py`; `get_flops.py`. HTC and SCNet
read the drawn pictures in COCO's own layout, with its maps of stuff. Where nothing trains, `predict.py` takes a
checkpoint of random weights, and `test.py` is not tried. BN stands in place of SyncBN, and there are {proposals}
proposals at most. What the zoos do without data sets and metrics is on [another page](zoo.md).

{stack}
{other}
{exceptions}

`python tools/check_zoo.py --tools` writes this page.
"""


def check(library: str, config: str) -> dict[str, Any]:
    """Which tools take the method, and the errors of those that do not; all but testing do without training."""
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(library, config, Path(folder))
        return try_steps({step: getattr(trial, step) for step in STEPS}, dict(test='train'))


class Trial:
    """One config on its way through the tools, which work below ``folder``."""

    def __init__(self, library: str, config: str, folder: Path) -> None:
        self.library, self.config, self.folder, self.run = library, config, folder, folder / 'run'
        # DINO's smallest scales, 0.6 of the side, leave its 900 queries too few places on smaller pictures
        self.side = 448 if config.startswith('dino/') else configs.side(config)

    @cached_property
    def written(self) -> str:
        """The file of the config."""
        shrunk = configs.load(self.library, self.config)
        whole = Config.fromfile(configs.zoo_folder(self.library) / self.config).model.get('data_preprocessor')
        if self.library == 'mmseg' and whole:
            shrunk.model.data_preprocessor = whole  # --img-size changes it as it does pipelines
        shrunk.dump(self.folder / 'method.py')
        return str(self.folder / 'method.py')

    @cached_property
    def data(self) -> Path:
        world = write_world(WORLDS[self.library], self.folder / 'data', train=4, val=2, size=(self.side, self.side))
        if self.config.startswith(STUFF):
            draw_stuff(world)
        return world

    def on_data(self) -> tuple[Config, str | None]:
        """The config and the folder for ``--data``; none where the config reads what no format has, as COCO has it."""
        if self.config.startswith(STUFF):
            return load_config(self.written, dict(data_root=f'{self.data}/')), None
        return load_config(self.written), str(self.data)

    def train(self) -> None:
        cfg, data = self.on_data()
        for name in LOADERS:
            (cfg.get(name) or {}).update(num_workers=0, persistent_workers=False)
        if cfg.get('optim_wrapper'):  # whole steps would ruin random weights
            cfg.optim_wrapper.optimizer.lr *= WARMUP
            cfg.optim_wrapper.clip_grad = dict(max_norm=1.0)
        options = dict(epochs=1, batch=2, img_size=(self.side, self.side), pretrained=False)
        train(cfg, work_dir=str(self.run), data=data, **options)

    def test(self) -> None:
        (left,) = self.run.glob('*.py')
        evaluate(load_config(left), self.trained(), work_dir=str(self.folder / 'tested'))
        if not (self.folder / 'tested' / 'metrics.json').is_file():
            raise ValueError('no metrics')

    def trained(self) -> str:
        return str(max(self.run.glob('*.pth'), key=os.path.getmtime))

    def untrained(self) -> str:
        """A checkpoint as a run leaves it, of random weights."""
        cfg, path = load_config(self.written), self.folder / 'untrained.pth'
        init_default_scope(self.library)
        torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict(), meta=dict(cfg=cfg.pretty_text)), path)
        return str(path)

    def predict(self) -> None:
        picture = next(path for path in sorted(self.data.rglob('*')) if path.suffix in ('.jpg', '.png'))
        checkpoint = self.trained() if any(self.run.glob('*.pth')) else self.untrained()
        _, unreadable = predict(None, checkpoint, [str(picture)], self.folder / 'found', 'cpu')
        if unreadable:
            raise ValueError(*unreadable.values())

    def browse(self) -> None:
        cfg, data = self.on_data()
        browse(cfg, self.folder / 'seen', count=2, data=data)

    def get_flops(self) -> None:
        count_parts(load_config(self.written), (self.side, self.side))


def draw_stuff(world: Path) -> None:
    """Maps of sky and ground for the pictures of COCO that are trained on."""
    folder = world / 'stuffthingmaps' / 'train2017'
    folder.mkdir(parents=True)
    for picture in (world / 'train2017').iterdir():
        labels = np.full(cv2.imread(str(picture)).shape[:2], GROUND, np.uint8)
        labels[: len(labels) // 2] = SKY
        cv2.imwrite(str(folder / f'{picture.stem}.png'), labels)
