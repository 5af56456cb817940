"""What the model sees of a data set: samples after the pipeline, drawn with their annotations."""

from pathlib import Path

import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from mmengine.runner import set_random_seed

from mmsoft.datasets.reading import read_faults
from mmsoft.files import place_below, shown
from mmsoft.visualization import contact_sheet, write_picture

from .config import check_data, guard_files
from .guarded import read_safely
from .parts import kind_of, pipelines
from .tasks import task_of


def browse(
    cfg: Config,
    out_dir: str | Path,
    mode: str = 'train',
    count: int = 20,
    demo: bool = False,
    data: str | None = None,
) -> Path:
    """Draw ``count`` samples, spread evenly over the data set of ``mode``; the path of the sheet with all of them.

    ``data`` is a folder of one's own, whose annotations are written below ``out_dir``.
    """
    if count < 1:
        raise ValueError(f'--count must be 1 or more; got {count}')
    if demo:
        from .demo import overlay

        overlay(cfg)
    if data:
        from .own_data import keep_run, use_own_data

        keep_run(out_dir)
        use_own_data(cfg, data, out_dir)
    guard_files(cfg)
    for remark in check_data(cfg, mode, classes=False):
        print(shown(remark))
    record = Path(out_dir, 'faults.jsonl')
    drawings = drawn_samples(cfg, mode, count, record)
    for title, drawing in drawings.items():
        write_picture(drawing, place_below(out_dir, f'{title.replace(" ", "_")}.png'))
    sheet = Path(out_dir, 'sheet.png')
    contact_sheet(list(drawings.values()), sheet, titles=list(drawings))
    for file, fault in read_faults(record).items():
        print(shown(f'{file}: {fault}'))
    return sheet


def drawn_samples(cfg: Config, mode: str, count: int, record: Path) -> dict[str, np.ndarray]:
    """Titles and pictures (H, W, 3) of samples; files that cannot be read go on record."""
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    loader, drawings = cfg[f'{mode}_dataloader'], {}
    for pipeline in pipelines(loader.dataset):
        _annotations_first(pipeline)
    task = task_of(cfg)
    dataset = DATASETS.build(read_safely(loader, record, mode == 'train', task.label_count(cfg)).dataset)
    set_random_seed(0)
    for index in np.linspace(0, len(dataset) - 1, min(count, len(dataset))).round().astype(int).tolist():
        packed = dataset[index]
        to_picture = getattr(dataset, 'to_picture', lambda inputs: inputs.permute(1, 2, 0).numpy())
        image = to_picture(packed['inputs'])
        title = f'{index} {Path(packed["data_samples"].img_path).stem}'
        drawings[title] = task.draw(image, packed['data_samples'], dataset.metainfo, truth=True)
    return drawings


def _annotations_first(pipeline: list) -> None:
    """Test pipelines load annotations after resizing, at the size of the file; here they are resized with the image."""
    names = [kind_of(step) for step in pipeline]
    if 'LoadAnnotations' in names:
        pipeline.insert(1, pipeline.pop(names.index('LoadAnnotations')))
