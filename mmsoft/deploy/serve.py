"""An exported model behind HTTP: pictures in, JSON out, and a page to drop a picture on.

For example: python -m mmsoft.deploy.serve model.onnx --port 8000
"""

import argparse
import base64
import io
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Semaphore, Thread
from typing import Any, cast

import numpy as np
from PIL import Image

from mmsoft.versions import StackError, require

try:
    require('starlette', 'uvicorn')
except StackError as missing:
    if __name__ == '__main__':
        sys.exit(f'error: {missing}')
    raise

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from .model import Model, Result, load
from .pictures import PictureError, read_picture

PAGE = Path(__file__).with_name('page.html')
READERS = 4  # pictures that are decoded at a time: each needs several bytes for every pixel


@dataclass(frozen=True)
class Limits:
    """Of one request (bytes, pixels, seconds), of pictures that wait, and of a batch."""

    megabytes: float = 20
    megapixels: float = 50
    seconds: float = 60
    waiting: int = 64
    batch: int = 8


class RefusedError(Exception):
    """An answer of another kind: HTTP's status, and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass
class _Job:
    prepared: np.ndarray
    size: tuple[int, int]
    future: 'Future[Result]'

    @property
    def kind(self) -> tuple[tuple[int, ...], tuple[int, int]]:
        """Jobs of one kind go through the network together."""
        return self.prepared.shape, self.size


class Batches:
    """One thread runs the model; what arrives meanwhile makes the next batch."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self.model, self.limits = model, limits
        self.jobs: Queue[_Job] = Queue(limits.waiting)
        self.reading = Semaphore(READERS)
        Thread(target=self._work, daemon=True).start()

    def __call__(self, data: bytes) -> Result:
        """The result of a file's bytes; waits for it."""
        with self.reading:
            image = self._read(data)
            job = _Job(self.model.prepare(image), image.shape[:2], Future())
            del image
        try:
            self.jobs.put_nowait(job)
        except Full:
            raise RefusedError(503, f'{self.limits.waiting} pictures are waiting already: try again later') from None
        try:
            return job.future.result(self.limits.seconds)
        except FutureTimeoutError:
            job.future.cancel()
            raise RefusedError(504, f'no answer within {self.limits.seconds:g} seconds: try again later') from None

    def _read(self, data: bytes) -> np.ndarray:
        if not data:
            raise PictureError('the request holds no picture: send the bytes of an image file as its body')
        try:
            with Image.open(io.BytesIO(data)) as picture:
                width, height = picture.size
        except Exception:  # what it is, reading tells
            width = height = 0
        if width * height > self.limits.megapixels * 1e6:
            most = f'{self.limits.megapixels:g} megapixels'
            raise RefusedError(413, f'the picture has {width} x {height} pixels; this server takes up to {most}')
        return read_picture(io.BytesIO(data), self.model.steps['exif'])

    def _work(self) -> None:
        while True:
            jobs = [self.jobs.get()]
            while len(jobs) < self.limits.batch:
                try:
                    jobs.append(self.jobs.get_nowait())
                except Empty:
                    break
            jobs = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            for kind in dict.fromkeys(job.kind for job in jobs):
                self._run([job for job in jobs if job.kind == kind])

    def _run(self, jobs: Sequence[_Job]) -> None:
        try:
            images = np.stack([job.prepared for job in jobs])
            for job, result in zip(jobs, self.model.run(images, jobs[0].size), strict=True):
                job.future.set_result(result)
        except Exception as error:  # a runtime's own, such as no memory: the next batch may fit
            for job in jobs:
                if not job.future.done():
                    job.future.set_exception(RefusedError(500, f'the model failed: {error}'))


def make_app(model: Model, limits: Limits) -> Starlette:
    """GET / is the page, GET /about what the file says of itself, POST /predict takes the bytes of a picture."""
    batches = Batches(model, limits)

    async def predict(request: Request) -> Response:
        try:
            data = await _body(request, limits)
            return JSONResponse(as_json(await run_in_threadpool(batches, data)))
        except RefusedError as error:
            return JSONResponse(dict(error=str(error)), error.status)
        except PictureError as error:
            return JSONResponse(dict(error=str(error)), 422)

    async def about(request: Request) -> Response:
        return JSONResponse(model.about)

    async def page(request: Request) -> Response:
        return FileResponse(PAGE)

    async def refused(request: Request, error: Exception) -> Response:
        wanted = f'{request.method} {request.url.path}: ask for GET /, GET /about or POST /predict'
        return JSONResponse(dict(error=wanted), cast(HTTPException, error).status_code)

    routes = [Route('/', page), Route('/about', about), Route('/predict', predict, methods=['POST'])]
    return Starlette(routes=routes, exception_handlers={HTTPException: refused})


async def _body(request: Request, limits: Limits) -> bytes:
    """The bytes sent, no more than are permitted."""
    most = limits.megabytes * 1e6
    parts, total = [], 0
    async for part in request.stream():
        total += len(part)
        if total > most:
            raise RefusedError(413, f'the request is larger than {limits.megabytes:g} MB')
        parts.append(part)
    return b''.join(parts)


def as_json(result: Result) -> dict[str, Any]:
    """Plain numbers and text. Masks are COCO's run lengths, column by column; a label map is a PNG in base64."""
    found: dict[str, Any] = dict(height=result.size[0], width=result.size[1])
    for name in ('boxes', 'scores', 'labels'):
        array = getattr(result, name)
        if array is not None:
            found[name] = array.tolist()
    if result.names is not None:
        found['names'] = result.names
    if result.masks is not None:
        found['masks'] = [run_lengths(mask) for mask in result.masks]
    if result.label_map is not None:
        wide = np.uint16 if len(result.classes) > 256 else np.uint8
        file = io.BytesIO()
        Image.fromarray(result.label_map.astype(wide)).save(file, 'PNG')
        found['label_map'] = base64.b64encode(file.getvalue()).decode()
    return found


def run_lengths(mask: np.ndarray) -> dict[str, Any]:
    """COCO's uncompressed RLE of (height, width) of bool: lengths of runs of 0 and 1 in turn, from a run of 0."""
    pixels = mask.T.ravel()
    ends = np.flatnonzero(np.diff(pixels)) + 1
    counts = np.diff([0, *ends, pixels.size]).tolist()
    return dict(size=list(mask.shape), counts=[0, *counts] if pixels[:1].any() else counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('model', help='a file that mmsoft export wrote')
    parser.add_argument('--host', default='127.0.0.1', help='this machine alone by default; 0.0.0.0 is everybody')
    parser.add_argument('--port', type=int, default=8000)
    parser.add_argument('--runtime', default='onnxruntime', choices=('onnxruntime', 'openvino'))
    parser.add_argument('--threads', type=int, help='of the runtime')
    parser.add_argument('--batch', type=int, default=Limits.batch, help='most pictures that run together')
    parser.add_argument('--waiting', type=int, default=Limits.waiting, help='most pictures that wait; more get 503')
    parser.add_argument('--seconds', type=float, default=Limits.seconds, help='longest time of a request')
    parser.add_argument('--megabytes', type=float, default=Limits.megabytes, help='largest request')
    parser.add_argument('--megapixels', type=float, default=Limits.megapixels, help='largest picture')
    args = parser.parse_args()
    for name in ('threads', 'batch', 'waiting', 'seconds', 'megabytes', 'megapixels'):
        if (value := getattr(args, name)) is not None and not value > 0:
            sys.exit(f'error: --{name} must be more than 0; got {value:g}')
    try:
        model = load(args.model, args.runtime, args.threads)
    except (OSError, ValueError) as error:
        sys.exit(f'error: {error}')
    limits = Limits(args.megabytes, args.megapixels, args.seconds, args.waiting, args.batch)
    uvicorn.run(make_app(model, limits), host=args.host, port=args.port, log_level='warning')


if __name__ == '__main__':
    main()
