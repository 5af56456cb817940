"""The model zoo: entries of ``model-index.yml`` and its metafiles, and the page of tables made from them."""

import re
from collections.abc import Iterable
from pathlib import Path

import yaml

INDEX = 'model-index.yml'
PAGE = 'docs/model_zoo.md'
BEGIN, END = '<!-- zoo:begin -->', '<!-- zoo:end -->'
ORIGINS = ('paper', 'ours')
_KEYS = {'Name', 'In Collection', 'Config', 'Metadata', 'Results', 'Weights'}


def read_zoo(root: Path) -> list[dict]:
    """Every model of the index below ``root``, in order; what is wrong with an entry is an error."""
    models = []
    for name in yaml.safe_load((root / INDEX).read_text(encoding='utf-8'))['Import']:
        content = yaml.safe_load((root / name).read_text(encoding='utf-8'))
        collections = {collection['Name'] for collection in content['Collections']}
        for model in content['Models']:
            _check(model, collections, name)
            models.append(model)
    return models


def _check(model: dict, collections: set[str], file: str) -> None:
    where = f'{file}: model {model.get("Name")!r}'
    if set(model) != _KEYS:
        raise ValueError(f'{where} must have the fields {", ".join(sorted(_KEYS))}; got {", ".join(sorted(model))}')
    if model['In Collection'] not in collections:
        raise ValueError(f'{where}: its collection {model["In Collection"]!r} is not in this file')
    if model['Name'] != Path(model['Config']).stem:
        raise ValueError(f'{where} must be called as its config, {model["Config"]!r}')
    if not model['Results'] or 'Parameters' not in model['Metadata']:
        raise ValueError(f'{where} must have Results, with blanks where nothing was measured, and Metadata.Parameters')
    for result in model['Results']:
        if set(result) != {'Task', 'Dataset', 'Metrics', 'Origin'} or result['Origin'] not in ORIGINS:
            raise ValueError(f'{where}: a result has Task, Dataset, Metrics and Origin (paper or ours); got {result}')


def zoo_tables(models: Iterable[dict]) -> str:
    """A Markdown table for each data set and choice of metrics; blanks for what nobody measured."""
    groups = {}
    for model in models:
        dataset = model['Results'][0]['Dataset']
        metrics = tuple(dict.fromkeys(name for result in model['Results'] for name in result['Metrics']))
        groups.setdefault((dataset, metrics), []).append(model)
    return '\n\n'.join(_table(dataset, metrics, group) for (dataset, metrics), group in groups.items())


def _table(dataset: str, metrics: tuple[str, ...], models: list[dict]) -> str:
    """A row a model; columns that are blank in each of them are left out."""
    columns = [('parameters', [f'{model["Metadata"]["Parameters"] / 1e6:.1f} M' for model in models])]
    for metric in metrics:
        for origin in ORIGINS:
            columns.append((f'{metric}, {origin}', [_value(model, metric, origin) for model in models]))
    columns.append(('weights', [f'[file]({model["Weights"]})' if model['Weights'] else '' for model in models]))
    names = [f'`{model["Name"]}`' for model in models]
    filled = [(head, *values) for head, values in columns if any(values)]
    heads, *cells = zip((dataset, *names), *filled, strict=True)
    return '\n'.join('| ' + ' | '.join(row) + ' |' for row in (heads, ['---'] * len(heads), *cells))


def _value(model: dict, metric: str, origin: str) -> str:
    values = [result['Metrics'].get(metric) for result in model['Results'] if result['Origin'] == origin]
    return ''.join(str(value) for value in values if value is not None)


def with_tables(text: str, tables: str) -> str:
    """``text`` with these tables between its two markers."""
    pattern = re.compile(f'{re.escape(BEGIN)}.*?{re.escape(END)}', re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f'{PAGE} must have the markers {BEGIN} and {END} once, in this order')
    return pattern.sub(lambda _: f'{BEGIN}\n{tables}\n{END}', text)


def update_page(root: Path) -> Path:
    """Put the tables of the index into the documentation's page."""
    path = root / PAGE
    if not path.is_file():
        raise FileNotFoundError(f'{str(path)!r} does not exist: the page is written in a checkout only')
    text = with_tables(path.read_text(encoding='utf-8'), zoo_tables(read_zoo(root)))
    path.write_text(text, encoding='utf-8')
    return path
