"""Show what attention does in a model: maps of queries, Newton's convergence, receptive fields, numbers by layer.

for example: python tools/visualize.py attention config.py epoch_12.pth street.jpg --query 0.4 0.6 --out-dir shown
"""

import argparse
from functools import partial
from pathlib import Path

from mmsoft.versions import require

require('mmengine', 'mmcv')

from mmengine.config import DictAction

from mmsoft.engine import visualize
from mmsoft.engine.cli import run_tool
from mmsoft.engine.config import is_config
from mmsoft.visualization.newton import COUNTS, STEPS

KINDS = dict(
    attention="what query points attend to, in the last layer of each stage (SOFT's Figures 4 and 7)",
    newton="how fast Newton's iteration inverts A, by stage (SOFT's Figure 5)",
    spectrum="eigenvalues of A, norms of its inverse against the number of landmarks (SOFT's Figure 6)",
    field='the effective receptive field of each stage',
    features='features of each stage as colours, by their three main components',
    injectivity="whether queries are told apart (InLine's Figures 1 and 2)",
    locality="the share of weight near a query, by layer (InLine's Figure 3)",
    diagnose='numbers of every layer: sizes, rank and condition of A, gradients, entropy of rows',
)


def main() -> None:
    args = _arguments()
    if args.config and not is_config(args.config):  # what is left out is the config
        args.config, args.checkpoint, args.inputs = None, args.config, [args.checkpoint, *args.inputs]
    options = dict(device=args.device, trust=args.trust_checkpoint, options=args.cfg_options)
    files = visualize.pictures_of(args.inputs, args.most)
    viewers = [visualize.open_viewer(args.config, args.checkpoint, **options)]
    viewers += [visualize.open_viewer(config, checkpoint, **options) for config, checkpoint in args.beside]
    request = visualize.Request(viewers, files, args.out_dir, args.stages)
    for path in _shows(args)[args.kind](request):
        print(path)


def _shows(args: argparse.Namespace) -> dict:
    """Kind -> what shows it."""
    if args.kind == 'attention':
        queries = [tuple(query) for query in args.query] or [(0.5, 0.5)]
        return dict(
            attention=partial(
                visualize.show_attention,
                queries=queries,
                heads=args.heads or (),
                every_layer=args.every_layer,
                local=args.local,
                landmarks=not args.no_landmarks,
            )
        )
    return dict(
        newton=partial(visualize.show_newton, steps=getattr(args, 'steps', STEPS)),
        spectrum=partial(visualize.show_spectrum, counts=getattr(args, 'landmarks', COUNTS)),
        field=visualize.show_fields,
        features=visualize.show_features,
        injectivity=visualize.show_injectivity,
        locality=visualize.show_locality,
        diagnose=visualize.show_diagnosis,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest='kind', required=True, metavar='KIND')
    for name, about in KINDS.items():
        kind = kinds.add_parser(name, help=about, description=about)
        kind.add_argument('config', nargs='?', help='by default the one that the checkpoint carries')
        kind.add_argument('checkpoint', help="a file, or 'random' for start values")
        kind.add_argument('inputs', nargs='*', metavar='PICTURE', help='a file, a folder or a quoted pattern')
        kind.add_argument('--out-dir', required=True, metavar='FOLDER', type=_folder)
        kind.add_argument(
            '--beside',
            nargs=2,
            action='append',
            default=[],
            metavar=('CONFIG', 'CHECKPOINT'),
            help='a model to compare with; give it several times for several',
        )
        kind.add_argument('--stages', nargs='+', type=int, metavar='N', help='from 1; by default all')
        kind.add_argument('--most', type=_number, metavar='N', help='pictures to take of a folder')
        kind.add_argument('--device', default='auto', help='auto (default), cpu or cuda:0')
        kind.add_argument('--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE', help='of every config')
        kind.add_argument('--trust-checkpoint', action='store_true', help='read a pickle that may run code')
        if name == 'attention':
            _add_attention(kind)
        elif name == 'newton':
            kind.add_argument('--steps', type=_number, default=STEPS, help=f'of the iteration (default {STEPS})')
        elif name == 'spectrum':
            kind.add_argument(
                '--landmarks', type=_number, nargs='+', default=COUNTS, metavar='M', help='numbers of them'
            )
    return parser.parse_args()


def _add_attention(kind: argparse.ArgumentParser) -> None:
    kind.add_argument(
        '--query',
        nargs=2,
        type=float,
        action='append',
        default=[],
        metavar=('X', 'Y'),
        help='as shares of the picture, 0 0 at its upper left; several times for several (default: the centre)',
    )
    kind.add_argument('--heads', nargs='+', type=_number, metavar='N', help='a figure each, from 1; by default a mean')
    kind.add_argument('--every-layer', action='store_true', help='not only the last one of each stage')
    kind.add_argument('--local', action='store_true', help='with the local term')
    kind.add_argument('--no-landmarks', action='store_true', help='leave them out of the figure')


def _number(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'must be a whole number from 1; got {text!r}')
    return int(text)


def _folder(text: str) -> Path:
    folder = Path(text)
    if folder.exists() and not folder.is_dir():
        raise argparse.ArgumentTypeError(f'{text!r} is a file, not a folder')
    return folder


if __name__ == '__main__':
    run_tool(main)
