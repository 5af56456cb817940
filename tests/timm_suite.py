"""timm's own model tests on the models that mmsoft.timm registers: ``python tests/timm_suite.py [pytest options]``.

The tests come from the source archive of the installed timm. Its lists are told of us, as of timm's own models:
features that are tokens, a class token among them, are not of its standard kind (but feature maps are),
forward_intermediates is there, and TorchScript, which torch has deprecated, is not.
"""

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import timm

PATTERNS = ('soft_*', 'inline_*', 'mila_*', 'ravlt_*')
CHANGES = {
    'NON_STD_FILTERS = [': f'NON_STD_FILTERS = [*{PATTERNS}, ',
    'EXCLUDE_JIT_FILTERS = [': f'EXCLUDE_JIT_FILTERS = [*{PATTERNS}, ',
    'FEAT_INTER_FILTERS = [': "FEAT_INTER_FILTERS = ['timm', ",
    # maps are the standard kind all the same
    'EXCLUDE_FEAT_FILTERS = NON_STD_FILTERS[:]': 'EXCLUDE_FEAT_FILTERS = NON_STD_FILTERS[4:]',
}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        archive = [f'timm=={timm.__version__}', '--no-deps', '--no-binary', ':all:', '--dest', folder]
        subprocess.run([sys.executable, '-m', 'pip', 'download', '-q', *archive], check=True)
        (path,) = Path(folder).glob('timm-*.tar.gz')
        with tarfile.open(path) as tar:
            text = tar.extractfile(f'timm-{timm.__version__}/tests/test_models.py').read().decode()
        for old, new in CHANGES.items():
            if text.count(old) != 1:
                sys.exit(f'timm {timm.__version__} has other tests than these changes were written for: no {old!r}')
            text = text.replace(old, new)
        Path(folder, 'test_models.py').write_text(text)
        Path(folder, 'conftest.py').write_text('import mmsoft.timm\n')
        Path(folder, 'pytest.ini').write_text('[pytest]\n')
        command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-W', 'ignore']
        command += ['-k', 'soft_ or inline_ or mila_ or ravlt_', *sys.argv[1:], 'test_models.py']
        return subprocess.run(command, cwd=folder).returncode


if __name__ == '__main__':
    sys.exit(main())
