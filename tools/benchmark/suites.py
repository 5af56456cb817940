"""Named sets of groups, and groups of one's own choice."""

import re
from collections.abc import Callable, Iterable, Sequence

from .cases import FUSED, GEMM, GEMMS, OURS, WHOLE, Case, attentions, is_soft
from .measure import Group

OWN, PEER = 'soft_pp_small', 'swin_tiny'
DENSE = (800, 1344)
FIGURE_SIZES = ((448, 448), (768, 768), (1600, 2688))  # beside DENSE
SIZES = ((224, 224), (448, 448), (512, 512), (768, 768), DENSE, (1600, 2688))
# Backbones of like size; the Swin of each is what it is compared with.
CLASSES = dict(
    tiny=('soft_tiny', 'soft_pp_tiny', 'inline_pvt_tiny', 'ravlt_tiny', 'pvtv2_b1', 'swin_tiny'),
    small=(
        'soft_small',
        OWN,
        'inline_pvt_small',
        'inline_swin_tiny',
        'inline_cswin_tiny',
        'inline_deit_base',
        'mila_tiny',
        'ravlt_small',
        PEER,
        'convnext_tiny',
        'pvtv2_b2',
        'pvtv2_b2_li',
        'resnet50',
    ),
    medium=(
        'soft_medium',
        'soft_pp_medium',
        'inline_pvt_large',
        'inline_swin_small',
        'mila_small',
        'ravlt_base',
        'swin_small',
        'convnext_small',
        'pvtv2_b3',
        'resnet101',
    ),
    large=(
        'soft_large',
        'soft_pp_large',
        'inline_swin_base',
        'inline_cswin_base',
        'mila_base',
        'ravlt_large',
        'swin_base',
        'convnext_base',
    ),
)
PEERS = ('swin_tiny', 'swin_small', 'swin_base', 'convnext_tiny', 'softmax')  # what the suites compare with


def name_of(size: tuple[int, int]) -> str:
    return f'{size[0]}x{size[1]}'


def figures() -> list[Group]:
    """What the README reports."""
    own, peer = Case(OWN, DENSE), Case(PEER, DENSE)
    forward = [own, peer, own._replace(model='convnext_tiny')]
    forward += [case._replace(precision='bf16') for case in (own, peer)] + [own._replace(compiled=True)]
    train = [case._replace(task='train') for case in (own, peer)]
    train.insert(1, train[0]._replace(with_cp=True))
    pairs = {size: (own._replace(size=size), peer._replace(size=size)) for size in ((224, 224), *FIGURE_SIZES)}
    return [
        Group(f'forward {name_of(DENSE)}', tuple(forward)),
        Group(f'train {name_of(DENSE)}', tuple(train)),
        *(Group(f'forward {name_of(size)}', pair) for size, pair in pairs.items()),
        Group(f'landmarks {name_of(DENSE)}', (own, own._replace(num_landmarks=None)), rounds=1),
    ]


def sizes() -> list[Group]:
    """Time and memory of backbones like ResNet-50 against the size of the image; training up to 800 x 1344."""
    groups = []
    for task, chosen in (('forward', SIZES), ('train', SIZES[:-1])):
        for size in chosen:
            cases = tuple(Case(model, size, task) for model in CLASSES['small'])
            groups.append(Group(f'{task} {name_of(size)}', cases, rounds=5))
    return groups


def backbones() -> list[Group]:
    """All backbones at 800 x 1344, by the size of the model."""
    groups = []
    for task, precision in (('forward', 'fp32'), ('forward', 'bf16'), ('train', 'fp32')):
        for name, models in CLASSES.items():
            cases = tuple(Case(model, DENSE, task, precision) for model in models)
            groups.append(Group(f'{name} {task} {precision}', cases, rounds=5))
    return groups


def frontier() -> list[Group]:
    """MILA and RAVLT beside Swin-T and ours, up to 4 times the pixels of 800 x 1344."""
    models = ('mila_tiny', 'ravlt_tiny', 'ravlt_small', OWN, PEER)
    sizes = (FIGURE_SIZES[0], DENSE, FIGURE_SIZES[-1])
    chosen = [*(('forward', size) for size in sizes), ('train', DENSE)]
    return [
        Group(f'{task} {name_of(size)}', tuple(Case(model, size, task) for model in models), rounds=5)
        for task, size in chosen
    ]


def models() -> list[Group]:
    """Whole detectors and segmentors; batches of two where BatchNorm needs them."""
    groups = []
    for family in WHOLE:
        size = (512, 512) if family == 'upernet' else DENSE
        for task in ('forward', 'train'):
            batch = 2 if family == 'upernet' and task == 'train' else 1
            parts = (OWN, PEER, 'resnet50')
            cases = tuple(Case(f'{family}:{part}', size, task, batch=batch) for part in parts)
            groups.append(Group(f'{family} {task} {name_of(size)}', cases, rounds=5))
    return groups


def attention() -> list[Group]:
    """Figure 1b of the paper, forward: 784 * p tokens.

    Softmax ends where its scores need more memory than there is, the fused one where a pass takes minutes.
    """
    groups = []
    for p in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64):
        names = [name for name in attentions() if name != FUSED or p <= 16]
        cases = tuple(Case(f'attention:{name}', (28, 28 * p)) for name in names)
        groups.append(Group(f'attention p={p}', cases, rounds=3))
    return groups


SUITES: dict[str, Callable[[], list[Group]]] = dict(
    figures=figures, sizes=sizes, backbones=backbones, frontier=frontier, models=models, attention=attention
)


def selection(
    names: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    tasks: Sequence[str],
    precisions: Sequence[str],
    compiled: bool = False,
    with_cp: bool = False,
    published_landmarks: bool = False,
    batch: int = 1,
) -> list[Group]:
    """A group a size and task. The flags add cases: compiled ones, and of our backbones the two others."""
    if with_cp and 'train' not in tasks:
        raise ValueError('--with-cp saves memory in training steps: add --tasks train')
    parts = [name.rpartition(':')[2] for name in names]
    if with_cp and not set(parts) & set(OURS):
        raise ValueError('--with-cp is for our backbones, of which --models has none')
    if published_landmarks and not any(map(is_soft, parts)):
        raise ValueError('--published-landmarks is for SOFT backbones, of which --models has none')
    groups = []
    for size in sizes:
        for task in tasks:
            cases = []
            for name, part in zip(names, parts, strict=True):
                for precision in precisions:
                    case = Case(name, size, task, precision, batch=batch)
                    cases.append(case)
                    if compiled:
                        cases.append(case._replace(compiled=True))
                    if published_landmarks and is_soft(part):
                        cases.append(case._replace(num_landmarks=None))
                    if with_cp and part in OURS and task == 'train':
                        cases.append(case._replace(with_cp=True))
            groups.append(Group(f'{task} {name_of(size)}', tuple(cases)))
    return groups


def with_gemm(group: Group, side: int, device: str) -> Group:
    """On ``device``, with matrix products in every precision, to measure the machine's peak in the same rounds."""
    cases = [case._replace(device=device) for case in group.cases]
    wanted = side and any(case.family != 'attention' for case in cases)  # attentions are compared in memory
    precisions = dict.fromkeys(case.precision for case in cases) if wanted else ()
    kinds = GEMMS if device == 'cpu' else (GEMM,)
    cases += [Case(kind, (side, side), precision=name, device=device) for name in precisions for kind in kinds]
    return group._replace(cases=tuple(cases))


def sizes_of(texts: Iterable[str]) -> list[tuple[int, int]]:
    """``224`` or ``800x1344``, height first."""
    found = []
    for text in texts:
        if not re.fullmatch(r'\d+(x\d+)?', text):
            raise ValueError(f'--sizes takes a side or HEIGHTxWIDTH, as in 224 800x1344; got {text!r}')
        height, _, width = text.partition('x')
        found.append((int(height), int(width or height)))
    return found
