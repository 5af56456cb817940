"""``tools/linearize.py``: from a trained softmax model to a linear one, without labels."""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.dist import barrier, broadcast_object_list, get_world_size, is_main_process
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn

from mmsoft.checkpoints import CheckpointError, read_checkpoint, read_state_dict
from mmsoft.engine.conditions import conditions
from mmsoft.engine.config import guard_files, load_config, without_pretrained
from mmsoft.engine.demo import overlay
from mmsoft.engine.launch import start_processes
from mmsoft.engine.lock import lock_work_dir
from mmsoft.engine.own_data import use_own_data
from mmsoft.engine.training import train
from mmsoft.engine.watching import end_together
from mmsoft.versions import require
from mmsoft.visualization import plot_curves
from mmsoft.weights.sources import SUFFIXES, is_remote, of_run
from mmsoft.weights.writing import digest_of, to_bytes, write

from .configs import TRANSFORM, Linear, Source, classifier_config, teaching_config
from .copying import NEW_HEAD, copy_weights, linear_options, with_new_head
from .kept import Kept, fingerprint
from .live import LR
from .pictures import check_pictures, find_pictures, picture_steps
from .reading import TeacherError, load_whole
from .sources import read, read_file
from .teaching import STAGES, check_numbers, library_model

LIBRARIES = ('timm', 'torchvision')
HEADS = ('head.fc.weight', 'head.weight', 'fc.weight', 'classifier.weight')  # last layers of classifiers
STEPS = dict(outputs=1000, maps=4000)  # iterations, by default
REMEDY = '; give the checkpoint that this model was trained to, with the config of its training'


def open_source(
    teacher: str,
    checkpoint: str | None,
    options: Mapping[str, Any] | None = None,
    trust: bool = False,
    demo: bool = False,
    data: str | None = None,
    out: str | Path = '.',
) -> Source:
    """``timm:name``, ``torchvision:name``, a config with its checkpoint, or an authors' file alone.

    ``demo``: the teacher was trained by ``train.py --demo``, and its data are what that has drawn. ``data``: a folder
    of one's own, whose annotations and derived config go below ``out``.
    """
    library, colon, name = teacher.partition(':')
    if data and (checkpoint is None or (colon and library in LIBRARIES)):
        raise TeacherError(
            f'--data changes the config of a teacher, and {teacher!r} is none with its checkpoint: give its pictures '
            'with --images'
        )
    if demo and (checkpoint is None or (colon and library in LIBRARIES)):
        raise TeacherError(
            f'--demo is for a config that train.py --demo has trained; {teacher!r} is none: leave it out'
        )
    if colon and library in LIBRARIES:
        return replace(_from_library(library, name, checkpoint, trust), changes=dict(options or {}))
    if colon and len(library) > 1 and library.isidentifier() and not (is_remote(teacher) or Path(teacher).exists()):
        raise TeacherError(
            f'{teacher!r} names a library {library!r}; those whose models are known by name are timm:<name> and '
            'torchvision:<name>'
        )
    if checkpoint is None and teacher.endswith(('.py', '.json', '.yaml', '.yml')):
        raise TeacherError(f'{teacher!r} is a config: give the checkpoint of its trained model behind it')
    if checkpoint is None:
        weights = read_state_dict(teacher, trust)
        (spec, module), head = read_file(weights), weights.get('head.weight')
        if head is None:
            raise TeacherError(f"{teacher!r} has no head: give the authors' file of a classifier")
        changes = dict(options or {})
        return Source(None, module, spec, {}, {}, {}, changes=changes, classes=len(head))
    if teacher.endswith(SUFFIXES):
        raise TeacherError(
            f'{teacher!r} is a file of weights, and so is {checkpoint!r}: give one alone, or behind the config of its '
            'model'
        )
    cfg = load_config(teacher, options)
    guard_files(cfg, trust)
    if demo:
        overlay(cfg)
    parts = use_own_data(cfg, data, out, checkpoint, trust, whole=False) if data else {}
    require('mmcv', cfg.get('default_scope', 'mmengine'))
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    without_pretrained(cfg)
    if 'backbone' not in cfg.model:
        raise TeacherError(f'{cfg.model.type} of {teacher!r} has no backbone whose attentions could become linear')
    content = read_checkpoint(checkpoint, trust)
    weights = read_state_dict(content)
    inner = {name.removeprefix('backbone.'): value for name, value in weights.items() if name.startswith('backbone.')}
    if not inner:
        raise CheckpointError(
            f'no weight in {checkpoint!r} starts with backbone.: it is not of {cfg.model.type}{REMEDY}'
        )
    if data:  # heads follow the folder's classes, which the teacher's may not be
        _fill(MODELS.build(cfg.model), weights, checkpoint)
    module = MODELS.build(cfg.model.backbone)
    _fill(module, inner, checkpoint)
    module.eval()
    rest = {name: value for name, value in weights.items() if not name.startswith('backbone.')}
    meta = content.get('meta') if isinstance(content, Mapping) else None
    meta = meta if isinstance(meta, Mapping) else {}
    return Source(cfg, module, cfg.model.backbone.to_dict(), rest, meta, {}, parts)


def _fill(model: nn.Module, weights: Mapping[str, Tensor], checkpoint: str) -> None:
    try:
        load_whole(model, weights, checkpoint)
    except TeacherError as error:
        raise TeacherError(f'{error}{REMEDY}') from error


def _from_library(library: str, name: str, checkpoint: str | None, trust: bool) -> Source:
    require(library)
    options: dict[str, Any] = {}
    if checkpoint is None:
        module = _with_own_weights(library, name)
    else:
        weights = read_state_dict(checkpoint, trust)
        head = next((weights[key] for key in HEADS if key in weights), None)
        options = {} if head is None else dict(num_classes=len(head))
        module = library_model(library, name, **options)
        _fill(module, weights, checkpoint)
    module.eval()
    transform = _torchvision_transform(name) if library == 'torchvision' else _timm_transform(module)
    options = options or dict(num_classes=_classes(module))
    return Source(
        None, module, dict(type='mmsoft.LibraryModel', library=library, name=name, **options), {}, {}, transform
    )


def _timm_transform(module: Any) -> dict[str, Any]:
    cfg = getattr(module, 'pretrained_cfg', None) or {}
    found = {key: cfg[key] for key in TRANSFORM if cfg.get(key) is not None}
    return found | (dict(input_size=cfg['input_size'][-1]) if cfg else {})


def _torchvision_transform(name: str) -> dict[str, Any]:
    """Of the published weights; those of one's own are of the same pictures, as far as anything tells."""
    from torchvision.models import get_model_weights

    found = next(iter(get_model_weights(name))).transforms()
    size, resized = found.crop_size[0], found.resize_size[0]
    whole = dict(mean=tuple(found.mean), std=tuple(found.std), interpolation=found.interpolation.value)
    return whole | dict(input_size=size, crop_pct=size / resized)


def _with_own_weights(library: str, name: str) -> nn.Module:
    try:
        return library_model(library, name, pretrained=True)
    except TeacherError:
        raise
    except Exception as error:  # of libraries that fetch from hubs
        reason = str(error).split('\n')[0][:200]
        raise TeacherError(
            f'the weights of {library}:{name} cannot be fetched ({type(error).__name__}: {reason}): give a local file '
            'behind the name'
        ) from error


def _classes(module: Any) -> int:
    head = getattr(module, 'head', None) or getattr(module, 'fc', None)
    return module.num_classes if hasattr(module, 'num_classes') else getattr(head, 'out_features', 1000)


def copy_model(source: Source, inline: Sequence[int] | None, attention: str, seed: int = 0) -> Linear:
    """The stage ``copy``."""
    torch.manual_seed(seed)
    reading = read(source.module)
    options = linear_options(reading, inline, attention)
    model = reading.kind(**options)
    copied = copy_weights(reading, model, source.module)
    model.load_state_dict(copied.weights, strict=False)
    backbone = dict(type=f'mmsoft.{reading.kind.__name__}', **options)
    cfg = (
        classifier_config(reading, source.transform, source.changes)
        if source.cfg is None
        else copy.deepcopy(source.cfg)
    )
    new_head = source.cfg is None and not reading.classifier
    whole, head = with_new_head(reading, options, source.classes) if new_head else (backbone, {})
    cfg.model.backbone = ConfigDict(whole)
    imports = cfg.get('custom_imports') or {}
    modules = [imports['imports']] if isinstance(imports.get('imports'), str) else list(imports.get('imports') or ())
    cfg.custom_imports = dict(imports, imports=list(dict.fromkeys([*modules, 'mmsoft'])))
    cfg.load_from, cfg.resume = None, False
    weights = {f'backbone.{name}': value for name, value in (model.state_dict() | head).items()}
    reading = replace(reading, notes=[*reading.notes, NEW_HEAD]) if new_head else reading
    return Linear(cfg, {**source.rest, **weights}, copied, reading, backbone, new_head)


def save(linear: Linear, out: Path, name: str, source: Source) -> Path:
    """``<name>.pth`` with all weights and the config, as our tools read them; None of it is half-written."""
    path = out / f'{name}.pth'
    meta = dict(
        cfg=linear.cfg.pretty_text, linearized=dict(of=linear.reading.title, stage=name, new_head=linear.new_head)
    )
    if isinstance(source.meta.get('dataset_meta'), Mapping):
        meta['dataset_meta'] = dict(source.meta['dataset_meta'])
    write(to_bytes(linear.weights, '.pth', meta), path)
    return path


def linearize_run(
    teacher: str,
    checkpoint: str | None,
    out: str | Path,
    *,
    images: Sequence[str] | None = None,
    inline: Sequence[int] | None = None,
    attention: str = 'inline',
    stages: Sequence[str] = STAGES,
    steps: Mapping[str, int] | None = None,
    batch_size: int = 8,
    lr: Mapping[str, float] | None = None,
    workers: int = 2,
    amp: bool = False,
    resume: bool = False,
    seed: int = 0,
    save_every: str | None = None,
    launcher: str = 'none',
    trust: bool = False,
    demo: bool = False,
    options: Mapping[str, Any] | None = None,
    data: str | None = None,
    check: Callable[[Source, Linear], object] | None = None,
) -> tuple[Source, Linear, dict[str, Path]]:
    """All stages that are asked for; the teacher, the linear model, and the checkpoint of each stage.

    ``data`` is a folder of one's own: its part for training is learned from, and the linear model's config is for it.
    A stage of 0 steps is left out. Without ``resume``, what an earlier run has left of these stages, and of those
    behind them, is removed. ``check`` is called before anything is written, to raise.
    """
    if data and images:
        raise ValueError('--data has the pictures to learn from: leave out --images, or --data')
    out, steps, lr = Path(out), STEPS | dict(steps or {}), LR | dict(lr or {})
    check_numbers(steps, lr, batch_size, workers, save_every)
    _check_places(out, [name for name in (teacher, checkpoint) if name], images or ())
    stages = [stage for stage in STAGES if stage in stages and steps[stage]]
    start_processes(launcher)
    source = open_source(teacher, checkpoint, options, trust, demo, data, out)
    linear = copy_model(source, inline, attention, seed)
    places = list(images or source.places(linear.cfg)) if stages else []
    lacks = source.cfg is None and not images and not any(Path(place).is_dir() for place in places)
    if stages and (lacks or not places):
        raise TeacherError(f'{data or teacher!r} brings no pictures to learn from: give folders of some with --images')
    each = dict(batch_size=batch_size, processes=get_world_size(), amp=amp)
    own = {stage: dict(steps=steps[stage], lr=lr[stage], **each) for stage in stages}
    with ExitStack() as stack:
        kept, start, finished = _begin(stack, source, linear, places, own, out, resume, seed, check)
        written = dict(copy=out / 'copy.pth') | {stage: out / f'{stage}.pth' for stage in (start, *stages)}
        if start != 'copy':
            linear = linear.with_part(linear.part_of(read_state_dict(str(written[start]))))
        for stage in stages:
            if stage in finished:
                linear = linear.with_part(linear.part_of(read_state_dict(str(written[stage]))))
                continue
            if kept:
                kept.begin(stage, own[stage])
            cfg = teaching_config(stage, source, linear, out, places, steps[stage], batch_size, lr[stage], workers)
            linear = _teach(cfg, linear, out, dict(
                amp=amp, seed=seed, save_every=save_every, launcher=launcher, trust_checkpoint=trust,
                resume='auto' if resume else None,
            ))  # fmt: skip
            if is_main_process():
                save(linear, out, stage, source)
            barrier()
        if is_main_process():
            _finish(linear, out, source, stages)
        barrier()
    return source, linear, written | dict(linear=out / 'linear.pth')


def _check_places(out: Path, taken: Sequence[str], images: Sequence[str]) -> None:
    """Raise where the run would write over what it reads, or read what it writes."""
    if out.exists() and not out.is_dir():
        raise ValueError(f'--out {str(out)!r} is a file: name a folder')
    folder = out.resolve()
    for name in taken:
        path = Path(of_run(name)).resolve()
        if path.exists() and folder in path.parents:
            raise ValueError(f'{name!r} lies in --out {str(out)!r}, which gets files of such names: name another --out')
    for place in map(Path, images):
        if place.resolve() in (folder, *folder.parents):
            raise ValueError(
                f'--out {str(out)!r} lies in --images {str(place)!r}, and gets pictures itself: name a folder elsewhere'
            )


def _begin(
    stack: ExitStack,
    source: Source,
    linear: Linear,
    places: Sequence[str],
    own: dict[str, dict[str, Any]],
    out: Path,
    resume: bool,
    seed: int,
    check: Callable[[Source, Linear], object] | None,
) -> tuple[Kept | None, str, list[str]]:
    """Look at everything, then write the copy: where the first stage starts, and which stages are finished.

    One process does so, and keeps the folder locked until ``stack`` ends; ``own`` becomes all that a stage depends on.
    """
    kept, problem, plan = None, None, ['copy', []]
    if is_main_process():
        try:
            files = find_pictures(places)
            if files:
                check_pictures(linear.cfg, files, 4 * linear.reading.options.get('window_size', 8))
            if check:
                check(source, linear)
            out.mkdir(parents=True, exist_ok=True)
            stack.callback(lock_work_dir(str(out)).release)
            kept = Kept(out, _shared(source, linear, seed))
            plan = _plan(kept, own, fingerprint(files), resume)
            print(linear.copy)
            for note in (*linear.reading.notes, *_shared_pictures(source, linear.cfg, files)):
                print(f'note: {note}')
            write(to_bytes(source.module.state_dict(), '.pth'), out / 'teacher.pth')
            save(linear, out, 'copy', source)
        except Exception as error:  # the others must not wait
            problem = error
    end_together(problem)
    broadcast_object_list(plan)
    return kept, *plan


def _shared_pictures(source: Source, cfg: Config, files: Sequence[str]) -> list[str]:
    """What is to be said where pictures to learn from are those of the validation or test set as well."""
    if source.cfg is None or not files:
        return []
    tested = set()
    for part in ('val', 'test'):
        places = [place for place in source.places(cfg, part) if Path(place).exists()]
        for place in places:
            with suppress(TeacherError):  # there are no pictures
                tested |= {str(Path(file).resolve()) for file in find_pictures([place])}
    shared = sum(str(Path(file).resolve()) in tested for file in files)
    if not shared:
        return []
    return [
        f'{shared} of the {len(files)} pictures to learn from lie where those of val or test do, so metrics are of '
        'pictures that were learned from (without labels); --images gives others'
    ]


def _plan(kept: Kept, own: dict[str, dict[str, Any]], pictures: str, resume: bool) -> list[Any]:
    """Refuse to resume another run, or clear what an earlier one has left."""
    stages = list(own)
    start = kept.start_of(stages)
    for stage, before in zip(stages, (start, *stages), strict=False):
        own[stage].update(pictures=pictures, starts_from=before)
    if resume:
        kept.check(own)
        kept.begin('copy', kept.copy)
    else:
        gone = kept.clear(stages)
        if gone:
            print(f'{kept.out} held an earlier run: {", ".join(gone)} removed')
    if stages and stages[0] != STAGES[0]:
        why = '' if start != 'copy' else f', for {STAGES[0]} of this teacher with these options is not in {kept.out}'
        print(f'{stages[0]} starts from {kept.out / start}.pth{why}')
    finished = [stage for stage in stages if resume and kept.has(stage)]
    for stage in finished:
        print(f'{stage} is finished: {kept.out / stage}.pth')
    return [start, finished]


def _shared(source: Source, linear: Linear, seed: int) -> dict[str, Any]:
    """What all stages depend on."""
    weights = {**{f'backbone.{name}': value for name, value in source.module.state_dict().items()}, **source.rest}
    prepared = conditions(Config(dict(train_dataloader=picture_steps(linear.cfg))))
    steps = {name.replace('train_dataloader', 'test_pipeline'): value for name, value in prepared.items()}
    teacher = digest_of({name: value.cpu() for name, value in weights.items()})[:12]
    return conditions(linear.cfg) | steps | dict(teacher=teacher, seed=seed)


def _teach(cfg: Config, linear: Linear, out: Path, options: dict[str, Any]) -> Linear:
    """A stage: what the student knows after it."""
    stage = cfg.model.stage
    if is_main_process():
        write(to_bytes(linear.part, '.pth'), out / f'before_{stage}.pth')
    barrier()
    runner = train(cfg, work_dir=str(out / stage), **options)
    model = runner.model.module if hasattr(runner.model, 'module') else runner.model
    part = {name: value.detach().cpu().clone() for name, value in model.student.state_dict().items()}
    return linear.with_part(part)


def _finish(linear: Linear, out: Path, source: Source, stages: Sequence[str]) -> None:
    """``linear.pth`` and ``linear.py``, from which ``train.py`` goes on; curves of the stages."""
    path = save(linear, out, 'linear', source)
    cfg = copy.deepcopy(linear.cfg)
    cfg.load_from = str(path.resolve())  # train.py may run in any folder
    write(cfg.pretty_text.encode(), out / 'linear.py')
    for stage in stages:
        if (out / stage).is_dir():
            plot_curves([out / stage], out / f'{stage}.png', ['loss', 'error'])
            (out / f'before_{stage}.pth').unlink(missing_ok=True)
