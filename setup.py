"""Packaging. OpenMMLab comes under two families of names, so neither is required here: tools/install.sh
installs a tested stack, and mmsoft.versions says in one sentence what is missing."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
# What an installed package carries besides its modules, where OpenMMLab's tools look for it.
DATA = ('tools', 'configs')
NOT_SHIPPED = shutil.ignore_patterns('__pycache__', 'install.sh', 'requirements_classic.txt')  # for checkouts only


class BuildWithData(build_py):
    """Copies tools, configs and the model index to ``mmsoft/.mim`` of the built package."""

    def run(self) -> None:
        super().run()
        target = Path(self.build_lib) / 'mmsoft' / '.mim'
        for name in DATA:
            shutil.copytree(ROOT / name, target / name, dirs_exist_ok=True, ignore=NOT_SHIPPED)
        shutil.copy2(ROOT / 'model-index.yml', target)


setup(
    name='mmsoft',
    version=re.search(r"__version__ = '(.+)'", (ROOT / 'mmsoft' / '__init__.py').read_text())[1],
    description='Linear-complexity attention backbones for dense vision',
    long_description=(ROOT / 'README.md').read_text(),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    python_requires='>=3.10',
    packages=find_packages(include=('mmsoft', 'mmsoft.*')),
    package_data={'mmsoft': ['py.typed']},
    install_requires=['torch>=2.1', 'torchvision>=0.16', 'safetensors>=0.4'],
    cmdclass={'build_py': BuildWithData},
    zip_safe=False,
)
