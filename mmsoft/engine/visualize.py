"""What attention does in a config's model, on pictures: figures as PNG and SVG, and their numbers.

Every kind is a function of the models that are compared (title -> model) and of pictures; the figures' own functions
are in mmsoft.visualization.
"""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn

from mmsoft.files import json_plain, shown
from mmsoft.layers import LinearAttention
from mmsoft.versions import require
from mmsoft.visualization import (
    attention_maps,
    diagnose,
    feature_colours,
    field_sides,
    figures,
    injectivity,
    locality,
    newton_convergence,
    receptive_fields,
    spectrum,
)
from mmsoft.weights.writing import whole_file

from .config import guard_files, load_config, without_pretrained
from .predictor import Predictor, device_of, find_inputs, is_video
from .tasks import task_of

START = 'random'  # in place of a checkpoint


class Seen(NamedTuple):
    """A picture as a model sees it."""

    name: str
    picture: np.ndarray  # (h, w, 3), RGB: resized or cropped as in testing
    image: Tensor  # (1, 3, H, W): normalised, perhaps padded at the right and bottom

    @property
    def sides(self) -> tuple[int, int]:
        return self.image.shape[2], self.image.shape[3]


@dataclass
class Viewer:
    """A model, and how its pictures are prepared."""

    title: str
    cfg: Config
    model: nn.Module
    load: Callable[[dict], Any]
    prepare: Callable[[np.ndarray, str], dict]

    def see(self, file: str | Path) -> Seen:
        """A file as the model sees it."""
        try:
            pixels = self.load(dict(img_path=str(file)))['img']
        except Exception as error:  # decoders fail in ways of their own
            raise ValueError(f'{str(file)!r} cannot be read as a picture: {error}') from error
        data = self.prepare(pixels, str(file))
        inputs = data['inputs']
        batch = dict(inputs=[inputs], data_samples=[data['data_samples']])
        images = self.model.data_preprocessor(batch, False)['inputs']
        image = images[0][None] if isinstance(images, list) else images
        return Seen(str(file), _pixels_of(inputs, self.cfg), image)


def _pixels_of(inputs: Tensor, cfg: Config) -> np.ndarray:
    """RGB (h, w, 3) of what a pipeline gives (3, h, w): BGR, or what a classifier's transform has normalised."""
    if not inputs.is_floating_point():
        return inputs.permute(1, 2, 0).cpu().numpy()[..., ::-1].copy()
    transform = cfg.test_dataloader.dataset.get('transform') or {}
    mean, std = (
        torch.tensor(transform.get(name, usual)).view(3, 1, 1)
        for name, usual in (('mean', (0.485, 0.456, 0.406)), ('std', (0.229, 0.224, 0.225)))
    )
    return ((inputs.cpu() * std + mean) * 255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()


def open_viewer(
    config: str | Path | None,
    checkpoint: str,
    device: str = 'auto',
    trust: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Viewer:
    """The model of a config with a checkpoint's weights; ``random`` in its place takes start values, of seed 0.

    Without a config, the one that the checkpoint carries is taken.
    """
    title = Path(config or checkpoint).stem
    if checkpoint != START:
        cfg = load_config(config, options) if config else None
        loaded = Predictor(checkpoint, cfg, device, trust, options if cfg is None else None)
        return Viewer(title, loaded.cfg, loaded.model, loaded.load, loaded.prepare)
    if config is None:
        raise ValueError(f'{START!r} in place of a checkpoint takes start values: name the config before it')
    cfg = load_config(config, options)
    guard_files(cfg, trust)
    scope = cfg.get('default_scope', 'mmengine')
    require('mmcv', scope)
    init_default_scope(scope)
    without_pretrained(cfg)
    torch.manual_seed(0)
    model = revert_sync_batchnorm(MODELS.build(cfg.model)).to(device_of(device))
    model.eval()  # which models with a teacher return nothing from
    load, steps = task_of(cfg).steps(cfg)

    def prepare(image: np.ndarray, name: str) -> dict:
        shape = image.shape[:2]
        return steps(dict(img=image, img_path=name, img_id=0, img_shape=shape, ori_shape=shape))

    return Viewer(f'{title}, start values', cfg, model, load, prepare)


def pictures_of(inputs: Sequence[str], most: int | None = None) -> list[Path]:
    """The pictures of files, folders and patterns, at most so many of them."""
    if not inputs:
        raise ValueError('no pictures: give files, folders or quoted patterns after the checkpoint')
    files = [file for file in find_inputs(inputs).values() if not is_video(file)]
    if not files:
        raise ValueError(f'{", ".join(inputs)}: videos alone; give pictures')
    return files[:most]


@dataclass
class Request:
    """What is wanted: viewers that are compared, files of pictures, where to write, which stages."""

    viewers: Sequence[Viewer]
    files: Sequence[Path]
    out_dir: Path
    stages: Sequence[int] | None = None

    def __post_init__(self) -> None:
        titles = [viewer.title for viewer in self.viewers]
        for number, viewer in enumerate(self.viewers):
            if titles.count(titles[number]) > 1:
                viewer.title = f'{titles[number]} ({number + 1})'

    def of_each(self, measure: Callable[[nn.Module, list[Tensor]], Any]) -> dict[str, Any]:
        """What is measured of each model on the images: title -> it."""
        return {
            viewer.title: measure(viewer.model, [viewer.see(file).image for file in self.files])
            for viewer in self.viewers
        }

    def write(
        self,
        name: str,
        figure: Any,
        numbers: Any = None,
        rows: Sequence[Mapping[str, Any]] = (),
        arrays: Mapping[str, np.ndarray] | None = None,
    ) -> list[Path]:
        """``<name>.png`` and ``.svg``, numbers as ``.json``, rows as ``.csv``, arrays as ``.npz``."""
        written = figures.save_figure(figure, self.out_dir / name)
        if numbers is not None:
            text = json.dumps(json_plain(numbers), indent=1) + '\n'
            written.append(_write(self.out_dir / f'{name}.json', text.encode()))
        if rows:
            written.append(_write(self.out_dir / f'{name}.csv', _table(rows).encode()))
        if arrays is not None:
            written.append(_write_arrays(self.out_dir / f'{name}.npz', arrays))
        return written


def _write(path: Path, content: bytes) -> Path:
    with whole_file(path) as partial:
        partial.write_bytes(content)
    return path


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return _write(path, buffer.getvalue())


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    table = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator='\n')
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def show_attention(
    request: Request,
    queries: Sequence[tuple[float, float]] = ((0.5, 0.5),),
    heads: Sequence[int] = (),
    every_layer: bool = False,
    local: bool = False,
    landmarks: bool = True,
) -> list[Path]:
    """``attention_<picture>``: maps of each query, model and head; the mean of heads unless some are named."""
    written = []
    for file, name in zip(request.files, _names(request.files), strict=True):
        rows, arrays = [], {}
        for number, viewer in enumerate(request.viewers, start=1):
            seen = viewer.see(file)
            shown_sides = seen.picture.shape[:2]
            found = attention_maps(viewer.model, seen.image, queries, request.stages, every_layer, local, shown_sides)
            for index, query in enumerate(queries):
                maps = [m for m in found if m.query == tuple(query)]
                rows.append(
                    figures.Panels(f'{viewer.title}\nquery {query[0]:g} {query[1]:g}', seen.picture, seen.sides, maps)
                )
                arrays |= {f'model{number}/query{index + 1}/{m.layer}': m.weights for m in maps}
            arrays |= {f'model{number}/landmarks/{m.layer}': m.landmarks for m in found if len(m.landmarks)}
        arrays['queries'] = np.array(queries)
        arrays['models'] = np.array([viewer.title for viewer in request.viewers])
        for head in heads or (None,):
            label = name if head is None else f'{name}_head{head}'
            written += request.write(f'attention_{label}', figures.attention_figure(rows, head, landmarks))
        written.append(_write_arrays(request.out_dir / f'attention_{name}.npz', arrays))
    return written


def _names(files: Sequence[Path]) -> list[str]:
    """Names for what is made of each file: its stem, with a number where another has it."""
    stems = [shown(file.stem) for file in files]
    return [stem if stems.count(stem) == 1 else f'{stem}_{number}' for number, stem in enumerate(stems, start=1)]


def show_newton(request: Request, steps: int) -> list[Path]:
    """``newton``: residuals of Newton's iteration by stage."""
    found = request.of_each(lambda model, images: newton_convergence(model, images, steps, request.stages))
    numbers, arrays = {}, {}
    for number, (title, stages) in enumerate(found.items(), start=1):
        for stage, residuals in stages.items():
            summary = zip(('mean', 'least', 'largest'), figures.newton_summary(residuals), strict=True)
            numbers.setdefault(title, {})[f'stage {stage}'] = {key: values.tolist() for key, values in summary}
            arrays[f'model{number}/stage{stage}'] = residuals
    return request.write('newton', figures.newton_figure(found), numbers, arrays=arrays)


def show_spectrum(request: Request, counts: Sequence[int]) -> list[Path]:
    """``spectrum``, of the first picture: eigenvalues of A and norms of its inverse, a figure a model."""
    written = []
    for number, viewer in enumerate(request.viewers, start=1):
        seen = viewer.see(request.files[0])
        values, rows = spectrum(viewer.model, seen.image, counts, request.stages)
        name = 'spectrum' if len(request.viewers) == 1 else f'spectrum_{number}'
        numbers = dict(model=viewer.title, eigenvalues={layer: v.tolist() for layer, v in values.items()}, norms=rows)
        written += request.write(name, figures.spectrum_figure(values, rows), numbers, rows)
    return written


def show_fields(request: Request) -> list[Path]:
    """``receptive_field``: the effective one of each stage."""
    found = request.of_each(lambda model, images: receptive_fields(model, images, request.stages))
    rows, arrays = [], {}
    for number, (title, fields) in enumerate(found.items(), start=1):
        for stage, field in fields.items():
            sides = {f'side_of_{share:g}': side for share, side in field_sides(field).items()}
            rows.append(dict(model=title, stage=stage, **sides))
            arrays[f'model{number}/stage{stage}'] = field
    return request.write('receptive_field', figures.field_figure(found), rows, rows, arrays)


def show_features(request: Request) -> list[Path]:
    """``features``: as colours."""
    found = request.of_each(lambda model, images: feature_colours(model, images, request.stages))
    pictures = [request.viewers[0].see(file).picture for file in request.files]
    arrays = {
        f'model{number}/stage{stage}/picture{index}': colours
        for number, stages in enumerate(found.values(), start=1)
        for stage, of_stage in stages.items()
        for index, colours in enumerate(of_stage, start=1)
    }
    return request.write('features', figures.feature_figure(pictures, found), arrays=arrays)


def show_injectivity(request: Request) -> list[Path]:
    """``injectivity``; of linear attention also what InLine's formula makes of the same queries and keys."""
    found = request.of_each(lambda model, images: injectivity(model, images, request.stages))
    for viewer in request.viewers:
        if any(isinstance(module, LinearAttention) for module in viewer.model.modules()):
            images = [viewer.see(file).image for file in request.files]
            title = f"{viewer.title}, by InLine's formula"
            found[title] = injectivity(viewer.model, images, request.stages, as_inline=True)
    return request.write('injectivity', figures.injectivity_figure(found), found)


def show_locality(request: Request) -> list[Path]:
    """``locality``: the share of weight near a query, by layer."""
    found = request.of_each(lambda model, images: locality(model, images, request.stages))
    rows = [dict(model=title, **row) for title, of_model in found.items() for row in of_model]
    return request.write('locality', figures.locality_figure(found), found, rows)


def show_diagnosis(request: Request) -> list[Path]:
    """``diagnosis``: numbers by layer, means over pictures."""
    found = request.of_each(lambda model, images: _means([diagnose(model, i, stages=request.stages) for i in images]))
    rows = [dict(model=title, **row) for title, of_model in found.items() for row in of_model]
    return request.write('diagnosis', figures.diagnosis_figure(found), found, rows)


def _means(of_pictures: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Of the rows of several pictures."""
    return [
        {
            key: float(np.mean([row[key] for row in rows])) if isinstance(value, float) else value
            for key, value in rows[0].items()
        }
        for rows in zip(*of_pictures, strict=True)
    ]
