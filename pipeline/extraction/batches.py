"""Batches of images in several threads: workers, device memory, a bound on decoded pixels.

`BatchWorkers` run batches, in the engine through `DeviceBatches`, and keep their order. `PixelBudget` makes decoders
wait while enough images are ready.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from pipeline.config import Settings
from pipeline.errors import DeviceOutOfMemory, ImageRejected
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.device_jpeg import DeviceDecoder
from pipeline.extraction.stored_picture import cut_faces
from pipeline.runtime.device import device_errors, own_stream
from pipeline.runtime.shared_lock import SharedLock
from pipeline.runtime.stage_times import JPEGS, StageTimes
from pipeline.runtime.threads import own_threads, tell_torch
from pipeline.types import ByteArray, DecodedImage, DeviceImage, EncodedImage, boxes_of

Batch = TypeVar("Batch")
_DONE_PER_WORKER = 4  # finished batches waiting for an earlier one: faces, no pixels


class BatchWorkers(Generic[Batch]):
    """A context manager with `workers` threads that run `work(batch)` in place, on `threads` cores each.

    On CUDA one batch is uploaded and another written while the device runs a third. On a CPU each core runs its own
    batch from pixels to embeddings: splitting operations would make cores wait for each other several hundred times per
    batch, and with small images most work besides matrix products is single-threaded. Processes would avoid the
    interpreter's lock, which loops and networks release anyway, but each would hold its own weights.
    """

    def __init__(self, workers: int, work: Callable[[Batch], None], threads: int = 1) -> None:
        self._workers = workers
        self._work, self._threads = work, threads
        # One more, so that a worker's next batch is ready.
        self._room = threading.Semaphore(workers + 1)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="batch")

    def __enter__(self) -> BatchWorkers[Batch]:
        tell_torch()  # before the workers set theirs
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        tell_torch()  # or later threads would start with the workers' count

    def in_order(self, batches: Iterable[Batch]) -> Generator[Batch, None, None]:
        """The batches in order, once processed; raises what `work` raised in place of its batch.

        At most `workers` + 1 batches wait or run, and one more is taken from `batches`.
        """
        taken: deque[tuple[Batch, Future[None]]] = deque()
        for batch in batches:
            self._room.acquire()
            future = self._pool.submit(self._run, batch)
            future.add_done_callback(lambda _: self._room.release())
            taken.append((batch, future))
            while taken and (taken[0][1].done() or len(taken) > _DONE_PER_WORKER * self._workers):
                yield _result(*taken.popleft())
        while taken:
            yield _result(*taken.popleft())

    def _run(self, batch: Batch) -> None:
        own_threads(self._threads)  # each time: torch may have been imported only now
        self._work(batch)


def _result(batch: Batch, future: Future[None]) -> Batch:
    future.result()
    return batch


class ImageFaces(NamedTuple):
    """An image's faces (`face_schema`), and a remark on an accepted but damaged file."""

    faces: pa.Table
    remark: str | None
    pictures: list[ByteArray]  # `cut_faces`
    on_host: bool  # pictures are parts of a host image


class DeviceBatches:
    """Decodes what is still encoded and extracts faces, on the device. Thread-safe."""

    def __init__(self, settings: Settings, times: StageTimes) -> None:
        self._decode = DeviceDecoder(settings.decode)
        self._times = times
        self._memory = SharedLock()

    def __call__(
        self,
        extractor: BatchExtractor,
        images: Sequence[DecodedImage | EncodedImage],
        known: Sequence[pa.Table] | None = None,
    ) -> list[ImageFaces | ImageRejected]:
        """Each image's faces, found or `known`, or why its file is rejected.

        Retries a batch alone if it runs out of memory while others run; raises DeviceOutOfMemory if that fails.
        """
        with own_stream(extractor.device):
            try:
                with self._memory.shared():
                    return self._extract(extractor, images, known)
            except DeviceOutOfMemory:
                pass
            with self._memory.alone():
                return self._extract(extractor, images, known)

    def _extract(
        self,
        extractor: BatchExtractor,
        images: Sequence[DecodedImage | EncodedImage],
        known: Sequence[pa.Table] | None,
    ) -> list[ImageFaces | ImageRejected]:
        decoded: Sequence[DecodedImage | DeviceImage | ImageRejected]
        decoded = [image for image in images if isinstance(image, DecodedImage)]
        if len(decoded) < len(images):
            with self._times.on_device(JPEGS):
                decoded = self._decode(images, extractor.device)
        sound = [image for image in decoded if not isinstance(image, ImageRejected)]
        if known is not None:
            known = [faces for faces, image in zip(known, decoded, strict=True) if not isinstance(image, ImageRejected)]
        found = iter(_image_faces(sound, extractor.extract(sound, self._times, known)))
        return [image if isinstance(image, ImageRejected) else next(found) for image in decoded]


def _image_faces(images: Sequence[DecodedImage | DeviceImage], faces: Sequence[pa.Table]) -> list[ImageFaces]:
    """Raises DeviceOutOfMemory."""
    if not images:
        return []
    ends = np.cumsum([len(table) for table in faces])
    boxes = np.split(boxes_of(pa.concat_tables(faces)), ends[:-1])  # at once: a column per table is far slower
    with device_errors():
        pictures = [cut_faces(image, own) for image, own in zip(images, boxes, strict=True)]
    return [
        ImageFaces(table, image.remark, cuts, isinstance(image, DecodedImage))
        for image, table, cuts in zip(images, faces, pictures, strict=True)
    ]


class PixelBudget:
    """Makes decoders wait, so that images in decoding or waiting for a batch have at most `limit` pixels.

    The image that the next batch needs always passes: no deadlock.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._pixels = 0
        self._next = -1
        self._closed = False

    def enter(self, number: int, pixels: int) -> None:
        """Waits until image `number` may be decoded."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._pixels + pixels <= self._limit or number <= self._next)
            self._pixels += pixels

    def expect(self, number: int) -> None:
        """Notes that the next batch waits for image `number`."""
        with self._changed:
            self._next = number
            self._changed.notify_all()

    def leave(self, pixels: int) -> None:
        """Frees pixels that moved into a batch or failed."""
        with self._changed:
            self._pixels -= pixels
            self._changed.notify_all()

    def close(self) -> None:
        """Lets all pass, as nobody takes images any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
