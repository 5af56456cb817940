"""Runs commands of mmsoft one after the other, each as if it were typed in its folder.

The only argument is JSON: [folder, script, arguments] of each command. Each gets a process, forked from this one,
which has loaded what they share; the first that fails ends all.
"""

import json
import os
import runpy
import sys
from pathlib import Path

from mmsoft import cli
from mmsoft.engine import demo

SHARED = ('mmdet.models', 'mmdet.datasets', 'mmdet.evaluation', 'mmsoft.engine.training')


def call(folder: str, script: str, arguments: list[str]) -> None:
    print('$', script, *arguments, flush=True)
    os.chdir(folder)
    if script == cli.__file__:
        sys.argv = ['mmsoft', 'configs', *arguments]
        cli.main()
    else:
        sys.argv, sys.path[0] = [script, *arguments], str(Path(script).parent)
        runpy.run_path(script, run_name='__main__')


if __name__ == '__main__':
    typed = json.loads(sys.argv[1])
    demo.IMAGES, demo.VAL_IMAGES = 8, 4
    for name in SHARED:
        __import__(name)
    for command in typed:
        child = os.fork()
        if not child:
            call(*command)
            sys.exit()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code:
            sys.exit(code)
