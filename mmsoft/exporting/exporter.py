"""A checkpoint to a file that runs without torch and OpenMMLab, and a table that shows that it answers the same."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmsoft.datasets.layout import leaf_datasets
from mmsoft.deploy import Model
from mmsoft.deploy.runtimes import OnnxRuntime
from mmsoft.engine.config import load_config
from mmsoft.engine.own_data import use_own_data
from mmsoft.engine.predictor import Predictor
from mmsoft.weights.writing import whole_file

from .building import ExportError, raw_model, whole_model
from .graph import ProgramRuntime, least_side, make_graph, write_onnx, write_pt2
from .parity import TOLERANCES, Row, check, compare, compare_raw, pictures_of, table
from .quantizing import split_folder

SUFFIXES = ('.onnx', '.pt2')
COMPARED = 4  # pictures of one's own data


def export(
    config: Config | str | None,
    checkpoint: str,
    out: str | Path,
    precision: str = 'fp32',
    pictures: Sequence[str] = (),
    trust: bool = False,
    options: Mapping[str, Any] | None = None,
    raw: bool = False,
    data: str | None = None,
    images: str | Path | None = None,
) -> list[Row]:
    """Write ``out`` if its answers on the pictures, or on drawn ones, are those of the checkpoint; the comparison.

    ``raw``: what the network gives, without what follows it. ``data``: a folder of one's own, whose classes the config
    follows and whose pictures are compared; what is derived goes to ``<name of out>_data``. ``images``: a folder on
    which int8 measures ranges; two of it are for the comparison if there are no ``pictures``.
    """
    out = Path(out)
    if out.suffix not in SUFFIXES:
        raise ExportError(f'--out {str(out)!r}: its suffix says the format; choose one of {", ".join(SUFFIXES)}')
    if not out.parent.is_dir():
        raise ExportError(f'--out {str(out)!r}: there is no folder {str(out.parent)!r}; make it first')
    if precision not in TOLERANCES:
        raise ExportError(f'--precision {precision!r} is unknown; choose one of {", ".join(TOLERANCES)}')
    measured, apart = _for_ranges(precision, images, raw or out.suffix != '.onnx')
    cfg = load_config(config) if isinstance(config, str) else config
    if data:
        cfg, pictures = _from_data(cfg, checkpoint, data, out, pictures, trust)
    compared = pictures_of(pictures or apart)
    predictor = Predictor(checkpoint, cfg, 'cpu', trust, options)
    whole, steps = raw_model(predictor) if raw else whole_model(predictor)
    about = dict(
        task='raw' if raw else predictor.task.name,
        classes=list(predictor.meta['classes']),
        palette=predictor.meta['palette'],
        preprocessing=steps if 'crop' in steps else dict(steps, least=least_side(whole)),
        precision=precision,
        dataset=_dataset(predictor.cfg),
    )
    reference = deepcopy(whole) if raw else predictor
    if precision == 'fp16':  # the operators compute in float32 what half precision cannot hold
        whole.model = deepcopy(whole.model).half()
    side = tuple(steps['crop']) if 'crop' in steps else None
    graph = make_graph(whole, side, torch_alone=out.suffix == '.pt2')
    with whole_file(out) as partial:
        if out.suffix == '.pt2':
            write_pt2(graph, about, partial)
        else:
            write_onnx(graph, whole, about, partial, measured)
        runtime = ProgramRuntime if out.suffix == '.pt2' else OnnxRuntime
        if raw:
            rows = list(compare_raw(reference, runtime(partial, None), least_side(whole)))
        else:
            rows = list(compare(reference, Model(partial, runtime), compared, TOLERANCES[precision]))
        print(table(rows))
        check(rows, precision)
    return rows


def _for_ranges(precision: str, images: str | Path | None, not_whole: bool) -> tuple[list[str], list[str]]:
    """Pictures on which int8 measures ranges, and some of the same folder that are not among them."""
    if (images is not None) != (precision == 'int8'):
        raise ExportError(
            f'--precision {precision} with --images {images!r}: int8, and int8 alone, measures ranges on a folder of '
            'pictures such as the model will see'
        )
    if images is None:
        return [], []
    if not_whole:
        raise ExportError('--precision int8 is for whole models in .onnx: leave out --raw, and let --out end in .onnx')
    return split_folder(images)


def _from_data(
    cfg: Config | None, checkpoint: str, data: str, out: Path, pictures: Sequence[str], trust: bool
) -> tuple[Config, Sequence[str]]:
    """The config for a folder, and pictures to compare: some that no model was trained on."""
    if pictures:
        raise ExportError('--data has the pictures to compare: leave out --pictures, or --data')
    if cfg is None:
        raise ExportError('--data changes a config: name the config before the checkpoint, or give --pictures')
    parts = use_own_data(cfg, data, out.with_name(f'{out.stem}_data'), checkpoint, trust)
    return cfg, (parts['test'] or parts['val'])[:COMPARED]


def _dataset(cfg: Config) -> dict[str, Any]:
    """What tells ids of pictures and categories, as the checkpoint's config has it."""
    leaf = next(leaf_datasets(cfg.test_dataloader.dataset))
    kept = ('type', 'data_root', 'ann_file', 'data_prefix', 'metainfo')
    return Config({key: leaf[key] for key in kept if key in leaf}).to_dict()
