"""Ask pip whether everything that mmsoft installs comes as wheels for platforms that are not at hand.

for example: python tools/check_platforms.py --extras openmmlab timm --pythons 3.12

Prints a table of platforms and Python versions. Needs mmsoft to be installed (`make install`), and a network: where an
index does not serve metadata by itself, pip fetches the wheels to read it.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

PLATFORMS = {
    'Windows x86-64': (['win_amd64'], ('nt', 'win32', 'Windows', 'AMD64')),
    'macOS arm64': ([f'macosx_{n}_0_arm64' for n in range(11, 15)], ('posix', 'darwin', 'Darwin', 'arm64')),
    'Linux x86-64': (
        ['manylinux2014_x86_64', *(f'manylinux_2_{n}_x86_64' for n in range(17, 29))],
        ('posix', 'linux', 'Linux', 'x86_64'),
    ),
    'Linux arm64': (
        ['manylinux2014_aarch64', *(f'manylinux_2_{n}_aarch64' for n in range(17, 29))],
        ('posix', 'linux', 'Linux', 'aarch64'),
    ),
}
PYTHONS = ('3.10', '3.11', '3.12', '3.13')
EXTRAS = ('openmmlab', 'openmmlab-original')
# The index has no wheel of these. pip makes one, of Python files only: nothing is compiled where torch is not in sight.
SOURCES = ('onedl-mmcv', 'onedl-mmdetection', 'onedl-mmsegmentation')
# A wheel is looked up; what these ask for themselves is torch's own affair, and gigabytes.
ALONE = ('torch', 'torchvision', 'timm')
# pip takes environment markers from the Python that runs it, whatever --platform says; these take their place.
PIP = """
import json, sys
from pip._vendor.packaging import markers
environment = {**markers.default_environment(), **json.loads(sys.argv.pop(1))}
markers.default_environment = lambda: environment
from pip._internal.cli.main import main
sys.exit(main())
"""


def wanted(extra: str) -> list[Requirement]:
    """What mmsoft asks for with this extra, with timm and export, in the words of pyproject.toml."""
    found = [Requirement(text) for text in requires('mmsoft') or ()]
    chosen = ('', extra, 'timm', 'export')
    found = [r for r in found if not r.marker or any(r.marker.evaluate({'extra': name}) for name in chosen)]
    for requirement in found:
        requirement.marker = None
    return [requirement for requirement in found if requirement.name != 'mmsoft']


def build_sources(requirements: list[Requirement], folder: Path) -> None:
    """Wheels of SOURCES, made with no compiler on the path; they must serve every platform."""
    named = [str(requirement) for requirement in requirements if requirement.name in SOURCES]
    subprocess.run(
        [sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', '--no-cache-dir', '-w', folder, *named],
        env=dict(os.environ, PATH=''),
        check=True,
    )
    compiled = [wheel.name for wheel in folder.glob('*.whl') if not wheel.name.endswith('-none-any.whl')]
    if compiled or len(list(folder.glob('*.whl'))) != len(named):
        raise SystemExit(f'not wheels for every platform: {compiled}')


def check(requirements: list[Requirement], platform: str, python: str, wheels: Path) -> str:
    """'' if pip finds a wheel of everything, or what it says."""
    tags, (os_name, sys_platform, system, machine) = PLATFORMS[platform]
    environment = dict(os_name=os_name, sys_platform=sys_platform, platform_system=system, platform_machine=machine)
    environment.update(python_version=python, python_full_version=f'{python}.0')
    pip = [sys.executable, '-c', PIP, json.dumps(environment)]
    target = ['--only-binary=:all:', '--python-version', python, '--implementation', 'cp']
    target += [word for tag in tags for word in ('--platform', tag)]
    together = [str(requirement) for requirement in requirements if requirement.name not in ALONE]
    folders = ['--target', str(wheels / 'nowhere'), '--find-links', str(wheels)]
    for requirement in requirements:
        if requirement.name in ALONE:
            run = subprocess.run([*pip, 'index', 'versions', requirement.name, *target], capture_output=True, text=True)
            newest = re.match(r'\S+ \((\S+)\)', run.stdout)
            if not newest or newest[1] not in requirement.specifier:
                return f'the newest wheel of {requirement.name} is {newest[1] if newest else "none"}'
    run = subprocess.run([*pip, 'install', '--dry-run', *folders, *target, *together], capture_output=True, text=True)
    if run.returncode:
        return next((text for text in run.stderr.splitlines() if text.startswith('ERROR')), run.stderr[-300:])
    return ''


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--extras', nargs='+', choices=EXTRAS, default=EXTRAS, metavar='EXTRA')
    parser.add_argument('--platforms', nargs='+', choices=PLATFORMS, default=list(PLATFORMS), metavar='NAME')
    parser.add_argument('--pythons', nargs='+', choices=PYTHONS, default=PYTHONS, metavar='3.x')
    args = parser.parse_args()
    faults = []
    for extra in args.extras:
        requirements = wanted(extra)
        sources = [requirement.name for requirement in requirements if requirement.name in SOURCES]
        print(f'\nmmsoft[{extra}]; made from sources of Python files: {", ".join(sources) or "nothing"}\n')
        print(f'| | {" | ".join(args.pythons)} |\n|---|{"---|" * len(args.pythons)}', flush=True)
        with tempfile.TemporaryDirectory() as folder:
            if sources:
                build_sources(requirements, Path(folder))
            for platform in args.platforms:
                found = [check(requirements, platform, python, Path(folder)) for python in args.pythons]
                print(f'| {platform} | {" | ".join("no" if fault else "wheels" for fault in found)} |', flush=True)
                faults += [f'{platform}, Python {p}: {f}' for p, f in zip(args.pythons, found, strict=True) if f]
    print(*['', *faults], sep='\n')
    return bool(faults)


if __name__ == '__main__':
    sys.exit(main())
