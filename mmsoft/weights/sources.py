"""From what a user names, a path, an address or a model of the Hugging Face hub, to a local file that is whole."""

import hashlib
import re
import time
import urllib.parse
import urllib.request
from http.client import HTTPException, HTTPResponse
from pathlib import Path

import torch

from mmsoft.versions import StackError, require

from .archives import check_crc
from .messages import CheckpointError, announce
from .writing import whole_file

HUB_FILE = 'model.safetensors'  # of a repository, where none is named
SUFFIXES = ('.pth', '.pt', '.bin', '.ckpt', '.tar', '.pkl', '.safetensors')
HASH_LENGTH = 8  # of the hexadecimal digits of a sha256, the part that a file's name shows
_HUB_ID = re.compile(r'([A-Za-z0-9][\w.-]*/[\w.-]+)(?:/(.+))?')
_PATIENCE = 60  # seconds for an answer
NOTE = 'last_checkpoint'  # of MMEngine, beside the checkpoints of a run
LINEAR = 'linear.pth'  # of tools/linearize.py
LARGEST = 16 << 30  # bytes of a download: training checkpoints of the largest detectors have fewer
LEAST_SPEED = 10_000  # bytes a second, less than which is given up after _PATIENCE
_CHUNK = 1 << 20
# Title of a family -> where its authors link their files, and which models of ours these fit; families fill it in, and
# it is told where a file of such a name is missing.
PAGES: dict[str, tuple[str, str]] = {}


def where_published(*names: str) -> str:
    """A sentence on where the authors' files are, for names of ours such as SOFT or pretrained/inline_pvt_tiny.pth."""
    text = ' '.join(names).lower().replace('mmsoft', '')
    found = [PAGES[title] for title in PAGES if title.split('-')[0].lower() in text]
    if not found:
        return ''
    page = found[0][0]
    fits = ', '.join(fit for other, fit in found if other == page)
    return f" The authors' files are linked at {page}: {fits}; `mmsoft convert` tells of a file."


def locate(source: str | Path) -> Path:
    """The local file that a source means, downloaded once if need be.

    A source is a path, the work directory of a run for its last checkpoint, the folder of a linear model, an http(s)
    address, or a hub id: ``hf-hub:owner/repo``, ``hf-hub:owner/repo/file.safetensors``, or ``owner/repo`` where that is
    no local path. A name that ends in ``-<first digits of the sha256>`` is checked against the content.
    """
    hub = _hub_file(source)
    if _is_address(source):
        path = fetch(str(source))
    elif hub:
        path = _fetch_from_hub(str(source), *hub)
    else:
        path = Path(of_run(Path(source).expanduser()))
    if not path.is_file():
        kind = 'is a folder without checkpoints of a run' if path.is_dir() else 'does not exist'
        found = where_published(path.name) if not path.exists() else ''
        raise CheckpointError(
            f'checkpoint {str(path)!r} {kind} (working directory {str(Path.cwd())!r}){"." if found else ""}{found}'
        )
    wrong = _wrong_hash(path, path.name)
    if wrong:
        raise CheckpointError(
            f'checkpoint {str(path)!r} is damaged or another file: {wrong}; '
            'remove it and fetch it again, or, if its name is meant otherwise, rename it'
        )
    return path


def latest_checkpoint(work_dir: str | Path) -> Path | None:
    """The last checkpoint of a work directory; being there under its own name, it is whole.

    The newest of ``epoch_*.pth``, ``iter_*.pth`` and the one that MMEngine took down, which may have a name or a folder
    of one's own choice.
    """
    found = [path for path in Path(work_dir).glob('*.pth') if re.fullmatch(r'(epoch|iter)_\d+\.pth', path.name)]
    note = Path(work_dir, NOTE)
    if note.is_file() and note.read_text().strip():
        path = Path(note.read_text().strip())
        if path.is_file():
            found.append(path)
        elif not found:
            raise CheckpointError(f'{str(note)!r} names {str(path)!r}, which is gone: give a checkpoint by its name')
    numbers = {path: [int(number) for number in re.findall(r'\d+', path.stem)[-1:]] for path in found}
    return max(found, key=lambda path: (path.stat().st_mtime_ns, numbers[path]), default=None)


def of_run(source: str | Path) -> str | Path:
    """The last checkpoint of a run, or the linear model, if a source is their folder; otherwise the source."""
    if not Path(source).is_dir():
        return source
    linear = Path(source, LINEAR)
    return latest_checkpoint(source) or (linear if linear.is_file() else source)


def is_remote(source: str | Path) -> bool:
    """Whether a source is fetched from elsewhere, so that no local file need be there."""
    return _is_address(source) or _hub_file(source) is not None


def fetch(url: str) -> Path:
    """Download a checkpoint once, into torch's hub directory; under its own name there it is whole."""
    name = Path(urllib.parse.unquote(urllib.parse.urlparse(url).path)).name
    place = hashlib.sha256(url.encode()).hexdigest()[:8]  # many addresses end in epoch_12.pth
    path = Path(torch.hub.get_dir()) / 'checkpoints' / place / name
    if not path.is_file():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _download(url, path)
        except (OSError, ValueError, HTTPException) as error:  # no connection, no such file, no room; no address
            raise CheckpointError(f'{url} cannot be fetched: {error}; download it and give its path') from error
    return path


def _promised_hash(name: str) -> str:
    """The digits of a sha256 at the end of a name; decimal ones are a date."""
    match = re.search(rf'-([0-9a-f]{{{HASH_LENGTH},64}})\.\w+$', name)
    return match[1] if match and not match[1].isdigit() else ''


def _wrong_hash(path: Path, name: str) -> str:
    """What is wrong if ``name`` promises a sha256 and the content has another."""
    promised = _promised_hash(name)
    found = sha256_of(path)[: len(promised)] if promised else ''
    return '' if found == promised else f'its name promises sha256 {promised}, found {found}'


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open('rb') as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _is_address(source: str | Path) -> bool:
    return re.match('https?://', str(source)) is not None


def _hub_file(source: str | Path) -> tuple[str, str] | None:
    """(repository, file) if the source is a hub id."""
    text = str(source)
    if text.startswith('hf-hub:'):
        match = _HUB_ID.fullmatch(text.removeprefix('hf-hub:'))
        if not match:
            raise CheckpointError(f'{text!r} is no hub id: it is hf-hub:owner/repo or hf-hub:owner/repo/file')
        return match[1], match[2] or HUB_FILE
    match = _HUB_ID.fullmatch(text)
    if isinstance(source, str) and match and not match[2] and not text.endswith(SUFFIXES) and not Path(text).exists():
        return match[1], HUB_FILE
    return None


def _fetch_from_hub(source: str, repository: str, name: str) -> Path:
    """From the hub's cache, or from the network into it."""
    require('huggingface_hub')
    from huggingface_hub import hf_hub_download, hf_hub_url, try_to_load_from_cache

    address = repr(source)
    try:
        address = hf_hub_url(repository, name)
        cached = try_to_load_from_cache(repository, name)
        return Path(cached if isinstance(cached, str) else hf_hub_download(repository, name))
    except Exception as error:  # of the hub, of the network and of the disk, in many classes
        reason = str(error.__cause__ or error).strip().split('\n')[0]
        raise CheckpointError(
            f'{address} cannot be fetched: {reason}; '
            f'download it and give its path (if {source!r} was meant as a path, there is no such file)'
        ) from error


def _download(url: str, path: Path) -> None:
    """Write beside the place, compare with what was promised, and rename."""
    with urllib.request.urlopen(url, timeout=_PATIENCE) as answer, whole_file(path) as partial:
        promised = answer.headers.get('Content-Length')
        size = int(promised) if promised else None
        if size is not None and size > LARGEST:
            raise OSError(f'it has {size} bytes, more than the {LARGEST} that are taken')
        announce(f'fetching {url} ({size / 2**20:.1f} MiB)' if size else f'fetching {url}')
        received = _receive(answer, partial)
        if size is not None and received != size:  # a connection that is cut reads like an end
            raise OSError(f'the connection was cut after {received} of {size} bytes')
        wrong = _wrong_hash(partial, path.name)
        if wrong:
            raise OSError(wrong)
        if size is None and not answer.chunked and not _promised_hash(path.name):
            _check_whole(partial, path.suffix)


def _receive(answer: HTTPResponse, path: Path) -> int:
    """Write what comes to a file, neither without end nor for ever; the number of bytes."""
    start = time.monotonic()
    with path.open('wb') as file:
        while chunk := answer.read1(_CHUNK):  # what has come, not a whole chunk, for which a slow sender has hours
            file.write(chunk)
            if file.tell() > LARGEST:
                raise OSError(f'it has more than the {LARGEST} bytes that are taken')
            late = time.monotonic() - start - _PATIENCE
            if late > 0 and file.tell() < late * LEAST_SPEED:
                raise OSError(f'it comes more slowly than {LEAST_SPEED} bytes a second')
        return file.tell()


def _check_whole(path: Path, suffix: str) -> None:
    """Raise unless a file shows by itself that it is whole, where its sender told neither length nor hash."""
    try:
        if suffix == '.safetensors':
            require('safetensors')
            from safetensors import safe_open

            with safe_open(path, 'pt'):
                return
        check_crc(path)
    except StackError:
        raise
    except Exception as error:  # whatever a damaged file makes its reader say
        raise OSError(f'it came without a length, and it does not look whole ({str(error)[:200]})') from error
