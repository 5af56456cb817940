"""What a linear model has kept of its teacher: errors, agreement, cost; as Markdown, JSON and a picture."""

import ctypes
import gc
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmsoft.engine.tasks import CLASSIFICATION, SEMANTIC_SEGMENTATION
from mmsoft.files import json_plain
from mmsoft.memory import of_linux
from mmsoft.weights.writing import whole_file, write

from .matching import errors_of
from .pictures import Pictures, find_pictures, picture_steps
from .reading import Reading

SIZES = ((224, 224), (512, 512), (800, 1333), (1600, 1600))
MMAP_THRESHOLD = -3  # of mallopt
LEAST_SCORE = 0.3  # of a teacher's detection that counts as an object


def batches_of(cfg: Config, places: Sequence[str], count: int) -> list[tuple[Tensor, str]]:
    """The first pictures as the backbone takes them, (1, 3, H, W), and their files."""
    pictures, found = Pictures(places, picture_steps(cfg, flip=False)), []
    inner = cfg.model.get('data_preprocessor')
    prepare = MODELS.build(dict(type='mmsoft.PicturesOnly', inner=inner))
    for index in range(len(pictures)):
        if len(found) == count:
            break
        try:
            inputs = pictures[index]['inputs']
        except Exception:  # decoders fail in ways of their own; the record of faults has it
            continue
        images = prepare(dict(inputs=[inputs]))['inputs']
        found.append((images if isinstance(images, Tensor) else torch.stack(list(images)), pictures.files[index]))
    return found


def errors_before_and_after(
    teacher: nn.Module,
    reading: Reading,
    blocks: Sequence[str],
    models: Mapping[str, nn.Module],
    images: Sequence[Tensor],
) -> dict[str, dict[str, float]]:
    """Of each model: attention or map -> the share of its power that is wrong."""
    return {name: dict(errors_of(teacher, model, reading, list(blocks), images)) for name, model in models.items()}


def agreement(task: Any, wanted: Sequence[Any], found: Sequence[Any]) -> dict[str, float]:
    """How much predictions of a model are the teacher's, in per cent.

    Of classifiers the predictions are logits (classes,); of others the samples that OpenMMLab gives.
    """
    if task is CLASSIFICATION:
        same = [int(one.argmax() == other.argmax()) for one, other in zip(wanted, found, strict=True)]
        return dict(top1=100 * float(np.mean(same)))
    if task is SEMANTIC_SEGMENTATION:
        return dict(mIoU=_iou([_labels(sample) for sample in wanted], [_labels(sample) for sample in found]))
    return _box_ap([_boxes(sample) for sample in wanted], [_boxes(sample) for sample in found])


def _labels(sample: Any) -> np.ndarray:
    return sample.pred_sem_seg.data[0].cpu().numpy()


def _iou(wanted: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> float:
    """Mean over the classes that the teacher sees somewhere."""
    values = []
    for label in {int(label) for map in wanted for label in np.unique(map)}:
        both = sum(int(((a == label) & (b == label)).sum()) for a, b in zip(wanted, found, strict=True))
        either = sum(int(((a == label) | (b == label)).sum()) for a, b in zip(wanted, found, strict=True))
        values.append(both / either)
    return 100 * float(np.mean(values))


def _boxes(sample: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    instances = sample.pred_instances
    return tuple(np.asarray(instances[key].cpu()) for key in ('bboxes', 'labels', 'scores'))


def _box_ap(wanted: Sequence[tuple], found: Sequence[tuple]) -> dict[str, float]:
    """COCO's AP, with the teacher's sure detections as the truth."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    objects, results = [], []
    for image, (boxes, labels, scores) in enumerate(wanted):
        for box, label, score in zip(boxes, labels, scores, strict=True):
            if score >= LEAST_SCORE:
                corner, sides = box[:2], box[2:] - box[:2]
                objects.append(dict(
                    id=len(objects) + 1, image_id=image, category_id=int(label), iscrowd=0,
                    bbox=[*map(float, corner), *map(float, sides)], area=float(sides.prod()),
                ))  # fmt: skip
    for image, (boxes, labels, scores) in enumerate(found):
        for box, label, score in zip(boxes, labels, scores, strict=True):
            bbox = [*map(float, box[:2]), *map(float, box[2:] - box[:2])]
            results.append(dict(image_id=image, category_id=int(label), bbox=bbox, score=float(score)))
    if not objects:
        return {}
    truth = COCO()
    kinds = [dict(id=label, name=str(label)) for label in {entry['category_id'] for entry in objects}]
    images = [dict(id=image) for image in range(len(wanted))]
    truth.dataset = dict(info={}, images=images, annotations=objects, categories=kinds)
    truth.createIndex()
    if not results:
        return dict(AP=0.0, AP50=0.0)
    scorer = COCOeval(truth, truth.loadRes(results), 'bbox')
    scorer.evaluate()
    scorer.accumulate()
    scorer.summarize()
    return dict(AP=100 * float(scorer.stats[0]), AP50=100 * float(scorer.stats[1]))


@torch.no_grad()
def cost(model: nn.Module, size: tuple[int, int], channels: int = 3, repeats: int = 3) -> dict[str, float | None]:
    """Median seconds, and MiB above what is there before, of one image of this size; None where it cannot be told."""
    parameter = next(model.parameters())
    images = torch.zeros(1, channels, *size, device=parameter.device)
    model(images)
    on_gpu = str(parameter.device).startswith('cuda')
    memory = _peak_on_gpu(model, images) if on_gpu else _peak_on_cpu(lambda: model(images))
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        model(images)
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return dict(seconds=statistics.median(seconds), mib=memory)


def _peak_on_gpu(model: nn.Module, images: Tensor) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model(images)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _peak_on_cpu(call: Callable[[], Any]) -> float | None:
    """By Linux's high-water mark of the process, after memory that was freed is given back."""
    gc.collect()
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(MMAP_THRESHOLD, 2**20)  # what is freed then leaves the process
        libc.malloc_trim(0)
        Path('/proc/self/clear_refs').write_text('5')
        before = of_linux('VmRSS')
        call()
        return of_linux('VmHWM') - before
    except (OSError, AttributeError, TypeError):  # another system or C library
        return None


def costs(models: Mapping[str, nn.Module], sizes: Sequence[tuple[int, int]] = SIZES) -> dict[str, dict[str, Any]]:
    """Of each model at each size; a size that a model does not take is left out, with the reason."""
    found: dict[str, dict[str, Any]] = {}
    for height, width in sizes:
        for name, model in models.items():
            row = found.setdefault(f'{height} x {width}', {})
            try:
                row[name] = cost(model, (height, width))
            except (AssertionError, RuntimeError, ValueError) as error:  # as timm's Swin at another size than its own
                row[name] = dict(error=str(error).split('\n')[0][:120])
    return found


def write_report(out: Path, content: Mapping[str, Any]) -> list[Path]:
    """``report.json``, ``report.md`` and ``report.png``."""
    files = [out / f'report.{suffix}' for suffix in ('json', 'md', 'png')]
    write((json.dumps(json_plain(content), indent=1, default=float) + '\n').encode(), files[0])
    write(markdown(content).encode(), files[1])
    draw(content['errors'], files[2])
    return files


def markdown(content: Mapping[str, Any]) -> str:
    lines = [f'# {content["teacher"]}, linear', '', content['summary'], '']
    lines += [f'- {note}' for note in content['notes']] + [''] * bool(content['notes'])
    lines += ['## Weights', '', '| outcome | tensors |', '|---|---|']
    lines += [f'| {outcome} | {count} |' for outcome, count in content['weights'].items()]
    names = list(content['errors'])
    lines += ['', '## Errors', '']
    lines += [f'Share of the power that is wrong, on {content["pictures"]} pictures{content["pictures_from"]}.']
    lines += [
        "Attentions get their teacher's input; maps are those of the whole backbone.",
        '',
        f'| | {" | ".join(names)} |',
        '|---' * (len(names) + 1) + '|',
    ]
    for part in content['errors'][names[0]]:
        cells = [f'{content["errors"][name][part]:.4f}' for name in names]
        lines.append(f'| {part} | {" | ".join(cells)} |')
    if content['agreement']:
        lines += ['', "## Agreement with the teacher's predictions, %", '']
        lines += _table(content['agreement'], '{:.1f}')
    if content.get('metrics'):
        lines += ['', '## Metrics on labels', '', *_table(content['metrics'], '{:.3f}')]
    if content.get('cost'):
        lines += ['', '## Cost of the backbone, one image', '', f'On {content["device"]}.', '']
        lines += ['| size | model | ms | MiB |', '|---|---|---|---|']
        for size, row in content['cost'].items():
            lines += [f'| {size} | {name} | {_cost_cells(found)} |' for name, found in row.items()]
    return '\n'.join(lines) + '\n'


def _cost_cells(found: Mapping[str, Any]) -> str:
    if 'error' in found:
        return f'not at this size: {found["error"]} | '
    memory = '' if found['mib'] is None else f'{found["mib"]:.0f}'
    return f'{1000 * found["seconds"]:.0f} | {memory}'


def _table(rows: Mapping[str, Mapping[str, float]], form: str) -> list[str]:
    keys = list(dict.fromkeys(key for row in rows.values() for key in row))
    lines = [f'| | {" | ".join(keys)} |', '|---' * (len(keys) + 1) + '|']
    cells = {name: [form.format(row[key]) if key in row else '' for key in keys] for name, row in rows.items()}
    return lines + [f'| {name} | {" | ".join(found)} |' for name, found in cells.items()]


def draw(errors: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """A bar for each attention and map, of each model."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    parts = list(next(iter(errors.values())))
    figure = Figure(figsize=(max(5.0, 0.45 * len(parts)), 3.6), layout='constrained')
    axes, width = figure.subplots(), 0.8 / len(errors)
    for index, (name, found) in enumerate(errors.items()):
        axes.bar(np.arange(len(parts)) + index * width, [found[part] for part in parts], width, label=name)
    axes.set_xticks(np.arange(len(parts)) + 0.4 - width / 2, parts, rotation=60, ha='right', fontsize=7)
    axes.set(ylabel='share of power that is wrong', yscale='log')
    axes.legend()
    with whole_file(path) as partial:
        FigureCanvasAgg(figure).print_figure(partial, dpi=120, format='png')


def pictures_for(places: Sequence[str], count: int) -> list[str]:
    """Spread over all that there are."""
    files = find_pictures(places)
    return [files[i] for i in np.linspace(0, len(files) - 1, min(count, len(files))).round().astype(int)]
