"""A checkpoint to a file that runs without torch and OpenMMLab, and a table that shows that it answers the same."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmsoft.datasets.layout import leaf_datasets
from mmsoft.deploy import load
from mmsoft.engine.config import load_config
from mmsoft.engine.predictor import Predictor
from mmsoft.weights.writing import whole_file

from .building import ExportError, whole_model
from .graph import make_graph, write_onnx
from .parity import TOLERANCES, Row, check, compare, pictures_of, table

SUFFIXES = ('.onnx',)


def export(
    config: Config | str | None,
    checkpoint: str,
    out: str | Path,
    precision: str = 'fp32',
    pictures: Sequence[str] = (),
    trust: bool = False,
    options: Mapping[str, Any] | None = None,
) -> list[Row]:
    """Write ``out`` if its answers on the pictures, or on drawn ones, are those of the checkpoint; the comparison."""
    out = Path(out)
    if out.suffix not in SUFFIXES:
        raise ExportError(f'--out {str(out)!r}: its suffix says the format; choose one of {", ".join(SUFFIXES)}')
    if precision not in TOLERANCES:
        raise ExportError(f'--precision {precision!r} is unknown; choose one of {", ".join(TOLERANCES)}')
    images = pictures_of(pictures)
    cfg = load_config(config) if isinstance(config, str) else config
    predictor = Predictor(checkpoint, cfg, 'cpu', trust, options)
    whole, steps = whole_model(predictor)
    about = dict(
        task=predictor.task.name,
        classes=list(predictor.meta['classes']),
        palette=predictor.meta['palette'],
        preprocessing=steps,
        precision=precision,
        dataset=_dataset(predictor.cfg),
    )
    side = tuple(steps['crop']) if 'crop' in steps else None
    graph = make_graph(whole.half() if precision == 'fp16' else whole, side)
    whole.float()
    with whole_file(out) as partial:
        write_onnx(graph, whole, about, partial)
        rows = list(compare(predictor, load(partial), images, TOLERANCES[precision]))
        print(table(rows))
        check(rows, precision)
    return rows


def _dataset(cfg: Config) -> dict[str, Any]:
    """What tells ids of pictures and categories, as the checkpoint's config has it."""
    leaf = next(leaf_datasets(cfg.test_dataloader.dataset))
    kept = ('type', 'data_root', 'ann_file', 'data_prefix', 'metainfo')
    return Config({key: leaf[key] for key in kept if key in leaf}).to_dict()
