"""Build one method of mmdet's or mmseg's zoo, train it for a step, let it predict; which mmcv operators it calls."""

import importlib
import re
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.optim import build_optim_wrapper
from mmengine.registry import init_default_scope
from torch import nn

from zoo import batches, configs

STEPS = ('builds', 'trains', 'predicts')
SEED = 0
LONGEST = 200  # letters of an error
WARMUP = 1e-3  # of the learning rate, as most configs begin; a whole step would ruin random weights


class CountingOperators(ModuleType):
    """``mmcv._ext`` whose operators count their calls."""

    def __init__(self, operators: ModuleType) -> None:
        super().__init__(operators.__name__, operators.__doc__)
        self.operators = operators
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        operator = getattr(self.operators, name)
        if not callable(operator):
            return operator

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            return operator(*args, **kwargs)

        return counted


def count_operators() -> CountingOperators:
    """Stand between ``mmcv.ops`` and ``mmcv._ext``."""
    importlib.import_module('mmcv.ops')
    counting = CountingOperators(sys.modules['mmcv._ext'])
    for name, module in list(sys.modules.items()):
        if name.startswith('mmcv.ops.') and getattr(module, 'ext_module', None) is counting.operators:
            module.ext_module = counting
    return counting


def check(library: str, config: str) -> dict[str, Any]:
    """What works, the values that another stack must find as well, the operators called, and the errors."""
    operators, trial = count_operators(), Trial(library, config)
    runs = dict(zip(STEPS, (trial.build, trial.train, trial.predict), strict=True))
    row = try_steps(runs, dict.fromkeys(STEPS[1:], STEPS[0]))
    return row | dict(operators=dict(sorted(operators.calls.items())))


def try_steps(runs: Mapping[str, Callable[[], Mapping[str, Any] | None]], needs: Mapping[str, str]) -> dict[str, Any]:
    """Whether each works, what it gives, and the errors; one that ``needs`` another is not tried where that fails."""
    start = time.perf_counter()
    socket.getaddrinfo = _no_network
    row: dict[str, Any] = dict.fromkeys(runs, False) | dict(errors={}, tracebacks={}, operators={})
    for step, run in runs.items():
        if not row.get(needs.get(step), True):
            continue
        batches.seed(SEED)
        try:
            row.update(run() or {})
            row[step] = True
        except (Exception, SystemExit) as error:
            row['errors'][step] = f'{type(error).__name__}: {without_folders(str(error))}'
            row['tracebacks'][step] = traceback.format_exc()
    return row | dict(seconds=round(time.perf_counter() - start, 1))


def without_folders(error: str) -> str:
    """Its first sentence or so, with no path of this machine."""
    words = re.sub(r'/\S*/site-packages/', '', ' '.join(error.split()))
    return re.sub(r'(?<![\w.:/])/(?:[^\s/:,\']+/)+', '', words)[:LONGEST]


def _no_network(*args: Any, **kwargs: Any) -> None:
    raise OSError(f'no download from {args[0]}')


class Trial:
    """One config on its way through the three steps."""

    def __init__(self, library: str, config: str) -> None:
        self.library, self.name = library, config
        self.side = configs.side(config)

    def build(self) -> None:
        for count in ('iter', 'epoch'):
            MessageHub.get_current_instance().update_info(count, 0)  # as a training does
        self.config = configs.load(self.library, self.name)
        init_default_scope(self.library)
        registry = importlib.import_module(f'{self.library}.registry')
        importlib.import_module(f'{self.library}.utils').register_all_modules(init_default_scope=False)
        self.model = registry.MODELS.build(self.config.model)
        self.init_weights()

    def init_weights(self) -> None:
        """At random, and so that boxes stay in the picture, as trained ones do."""
        if self.name.startswith(configs.CLIP_ONLY):
            for weight in self.model.parameters():
                nn.init.normal_(weight, std=0.02)
        else:
            self.model.init_weights()
        for name, layer in self.model.named_modules():
            if name.endswith('fc_reg') and isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.001)  # Sparse R-CNN's begins larger

    def train(self) -> dict[str, float]:
        """One step of the config's optimizer; the loss and the gradient's norm."""
        optimizer = build_optim_wrapper(self.model, optimizer_config(self.config))
        self.model.train()
        data = self.model.data_preprocessor(self._batch(training=True), True)
        loss, _ = self.model.parse_losses(self.model(**data, mode='loss'))
        require(bool(loss.isfinite()), f'the loss is {loss.item()}')
        optimizer.backward(loss)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.stack([gradient.double().norm() for gradient in gradients]).norm()
        require(bool(norm.isfinite()) and norm > 0, f"the gradient's norm is {norm.item()}")
        for group in optimizer.param_groups:
            group['lr'] *= WARMUP
        before = [p.detach().clone() for p in self.model.parameters() if p.grad is not None]
        optimizer.step()
        after = [p for p in self.model.parameters() if p.grad is not None]
        require(any(not torch.equal(*pair) for pair in zip(before, after, strict=True)), 'the step changes no weight')
        return dict(loss=loss.item(), gradient=norm.item())

    def predict(self) -> dict[str, int]:
        """How many objects were found, or labels in a map."""
        self.model.eval()
        with torch.no_grad():
            data = self.model.data_preprocessor(self._batch(training=False), False)
            results = self.model(**data, mode='predict')
        return dict(found=sum(check_result(result, self.side) for result in results))

    def _batch(self, training: bool) -> dict:
        return batches.batch_for(self.library, self.config, self.side, training)


def optimizer_config(config: Config) -> dict:
    """The config's own, without half precision; any where it has none."""
    kept = ('optimizer', 'paramwise_cfg', 'clip_grad', 'constructor')
    own = config.get('optim_wrapper') or dict(optimizer=dict(type='SGD', lr=0.01))
    return {key: value for key, value in own.items() if key in kept} | dict(type='OptimWrapper')


def check_result(result: Any, side: int) -> int:
    """How many objects and maps a prediction holds, which have to be well formed."""
    if 'video_data_samples' in result:
        return sum(check_result(frame, side) for frame in result.video_data_samples)
    found = 0
    if 'pred_instances' in result:
        found += check_instances(result.pred_instances, side)
    if 'pred_track_instances' in result:
        found += check_tracks(result.pred_track_instances, side)
    for key, name in (('pred_sem_seg', 'data'), ('pred_sem_seg', 'sem_seg'), ('pred_panoptic_seg', 'sem_seg')):
        if key in result and name in result.get(key):
            labels = result.get(key).get(name)
            require(tuple(labels.shape) == (1, side, side), f'{key} has the shape {tuple(labels.shape)}')
            found += len(torch.as_tensor(labels).unique())
    if 'pred_feature' in result:
        require(bool(result.pred_feature.isfinite().all()), 'the feature is not finite')
        return 1
    kinds = ('pred_instances', 'pred_track_instances', 'pred_sem_seg', 'pred_panoptic_seg')
    require(any(kind in result for kind in kinds), f'predicts {", ".join(result.keys())}')
    return found


def check_tracks(tracks: Any, side: int) -> int:
    if tuple(tracks.bboxes.shape[1:]) == (7,):  # StrongSORT's rows: frame, number, left, top, width, height, score
        require(bool(np.isfinite(tracks.bboxes).all()), 'tracks are not finite')
        return len(tracks.bboxes)
    require(len(tracks.instances_id) == len(tracks), 'every track needs its number')
    return check_instances(tracks, side)


def check_instances(instances: Any, side: int) -> int:
    if 'lines' in instances:
        return len(instances.lines)
    count = len(instances)
    if not count:
        return 0
    if 'bboxes' in instances:
        boxes = getattr(instances.bboxes, 'tensor', instances.bboxes)
        require(tuple(boxes.shape) == (count, 4), f'the boxes have the shape {tuple(boxes.shape)}')
        require(bool(boxes.isfinite().all()), 'boxes are not finite')
    require(len(instances.labels) == len(instances.scores) == count, 'boxes, labels and scores differ in number')
    require(bool(torch.as_tensor(instances.scores).isfinite().all()), 'scores are not finite')
    if 'masks' in instances:
        shape = tuple(instances.masks.shape)
        require(shape == (count, side, side), f'the masks have the shape {shape}')
    return count


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise ValueError(sentence)
