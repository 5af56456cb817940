"""What pyproject.toml cannot say: an installed package carries tools, configs and the model index."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
# Where OpenMMLab's tools look for them.
DATA = ('tools', 'configs')
# Research and what checks a checkout: packages below tools/, and the commands that need them.
RESEARCH = ('benchmark*', 'studies', 'zoo', 'compare_*', 'check_*', 'gpu_*')
NOT_SHIPPED = shutil.ignore_patterns('__pycache__', *RESEARCH)


class BuildWithData(build_py):
    """Copies them to ``mmsoft/.mim`` of the built package."""

    def run(self) -> None:
        super().run()
        target = Path(self.build_lib) / 'mmsoft' / '.mim'
        for name in DATA:
            shutil.copytree(ROOT / name, target / name, dirs_exist_ok=True, ignore=NOT_SHIPPED)
        shutil.copy2(ROOT / 'model-index.yml', target)


setup(cmdclass={'build_py': BuildWithData})
