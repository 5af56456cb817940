"""The libraries that run a model file, and what the file says of itself. A file is data: nothing in it is executed."""

import json
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np

from mmsoft.versions import require

KEY = 'mmsoft'  # of the file's metadata
FORMAT = 1  # of what stands there; a file of a newer one is refused


class ModelFileError(ValueError):
    """A file that cannot be run here."""


class Runtime(Protocol):
    """A loaded file, which several threads may run."""

    def __init__(self, path: Path, threads: int | None) -> None: ...

    def about(self) -> str | None:
        """The text under KEY in its metadata."""

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """All outputs."""


SLOWER = ['SkipLayerNormFusion']  # a sum and a LayerNorm as one operator take onnxruntime longer than the two


class OnnxRuntime:
    """onnxruntime on the CPU."""

    def __init__(self, path: Path, threads: int | None) -> None:
        require('onnxruntime')
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if threads:
            options.intra_op_num_threads = threads
        # With a plan of all memory, and blocks kept for later maps, backbones hold 1.7 to 4.7 times as much.
        options.enable_mem_pattern = options.enable_mem_reuse = False
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=['CPUExecutionProvider'], disabled_optimizers=SLOWER
        )

    def about(self) -> str | None:
        return self.session.get_modelmeta().custom_metadata_map.get(KEY)

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return self.session.run(None, dict(inputs))


class OpenVino:
    """OpenVINO on the CPU."""

    def __init__(self, path: Path, threads: int | None) -> None:
        require('openvino')
        import openvino

        core = openvino.Core()
        self.model = core.read_model(path)
        options = {'INFERENCE_NUM_THREADS': threads} if threads else {}
        # as exact as onnxruntime: some processors would take bfloat16
        self.compiled = core.compile_model(self.model, 'CPU', {'INFERENCE_PRECISION_HINT': 'f32', **options})
        self.lock = Lock()  # a compiled model that is called writes into one place, whichever thread calls

    def about(self) -> str | None:
        place = ['framework', KEY]
        return str(self.model.get_rt_info(place).value) if self.model.has_rt_info(place) else None

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with self.lock:
            found = self.compiled(dict(inputs))
            return [found[output] for output in self.compiled.outputs]


RUNTIMES = dict(onnxruntime=OnnxRuntime, openvino=OpenVino)


def open_file(path: str | Path, runtime: 'str | type[Runtime]', threads: int | None) -> tuple[Runtime, dict[str, Any]]:
    """The loaded file, and its metadata; a ModelFileError says what is wrong with it."""
    if isinstance(runtime, str) and runtime not in RUNTIMES:
        raise ValueError(f'runtime {runtime!r} is unknown; choose one of {", ".join(RUNTIMES)}')
    if threads is not None and threads < 1:
        raise ValueError(f'threads must be 1 or more; got {threads}')
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileNotFoundError(f'{str(path)!r}: there is no such model file (working directory {str(Path.cwd())!r})')
    try:
        loaded = (RUNTIMES[runtime] if isinstance(runtime, str) else runtime)(file, threads)
    except ImportError:
        raise
    except Exception as error:  # runtimes fail in ways of their own
        *_, reason = (str(error).strip() or type(error).__name__).splitlines()  # OpenVINO says first where it failed
        raise ModelFileError(f'{str(path)!r} is no model that {runtime} can load: {reason}') from error
    return loaded, read_about(loaded.about(), str(path))


def read_about(text: str | None, path: str) -> dict[str, Any]:
    """The metadata of a file that this version understands."""
    if text is None:
        raise ModelFileError(f'{path!r} is not a file of mmsoft export: its metadata has no {KEY!r}')
    try:
        about = json.loads(text)
        format, answers = int(about['format']), (about['task'], about['classes'], about['preprocessing'])
    except (ValueError, TypeError, KeyError) as error:
        raise ModelFileError(f'{path!r}: its metadata under {KEY!r} is damaged; export it again') from error
    if format > FORMAT:
        raise ModelFileError(
            f'{path!r} is of format {format}, and this mmsoft reads up to {FORMAT}: it was exported by mmsoft '
            f'{about.get("mmsoft", "of a newer version")}; upgrade with `pip install -U "mmsoft[deploy]"`'
        )
    if None in answers or about['task'] not in TASKS:
        raise ModelFileError(f'{path!r} is of the task {about["task"]!r}; load runs {", ".join(TASKS)}')
    return about


TASKS = ('classes', 'labels', 'boxes', 'masks')
