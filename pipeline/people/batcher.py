"""Micro-batching: images of concurrent requests go through the models together."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from pipeline.config import Settings
from pipeline.errors import Overloaded
from pipeline.extraction.extractor import BatchExtractor
from pipeline.runtime.stage_times import DETECTION, MODEL_STAGES, StageTimes
from pipeline.types import DecodedImage

RETRY_AFTER_S: Final = 1


@dataclass(frozen=True)
class _Waiting:
    image: DecodedImage
    known: pa.Table | None = None  # faces to measure instead of those that are detected
    answer: Future[tuple[pa.Table, float]] = field(default_factory=Future)

    @property
    def pixels(self) -> int:
        return self.image.width * self.image.height


class MicroBatcher:
    """One thread that owns the extractor. A batch is what arrived while the models were busy; it never waits to
    fill."""

    def __init__(self, extractor: BatchExtractor, settings: Settings) -> None:
        self._extractor = extractor
        self._limits, self._queue_images = settings.run, settings.serve.queue_images
        self.stage_s = dict.fromkeys(MODEL_STAGES, 0.0)  # total seconds by stage
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="micro-batcher", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """The number of waiting images."""
        return len(self._waiting)

    def extract(self, image: DecodedImage, known: pa.Table | None = None) -> tuple[pa.Table, float]:
        """Waits for the models. Returns the image's faces (`extractor.face_schema`), or the `known` ones
        (PLACES_SCHEMA), and the detector's seconds for its batch. Raises Overloaded at once if too many images wait,
        and DeviceError."""
        mine = _Waiting(image, known)
        with self._changed:
            if self._closed or len(self._waiting) >= self._queue_images:
                raise Overloaded(retry_after_s=RETRY_AFTER_S)
            self._waiting.append(mine)
            self._changed.notify()
        return mine.answer.result()

    def close(self) -> None:
        """Finishes the queued images, then stops."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                batch = self._take()
            self._run(batch)
            del batch  # frees its images

    def _take(self) -> list[_Waiting]:
        """Dequeues the next batch, at least one image; one with known faces is alone."""
        batch = [self._waiting.popleft()]
        pixels = batch[0].pixels
        while self._waiting and len(batch) < self._limits.batch_images:
            if batch[0].known is not None or self._waiting[0].known is not None:
                break
            pixels += self._waiting[0].pixels
            if pixels > self._limits.batch_pixels:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _run(self, batch: list[_Waiting]) -> None:
        times, known = StageTimes(), batch[0].known
        try:
            images = [waiting.image for waiting in batch]
            extract = self._extractor.extract
            tables = extract(images, times) if known is None else extract(images, times, [known])
            answers = list(zip(batch, tables, strict=True))
        except Exception as exc:  # noqa: BLE001 - it goes to the requests that wait for it
            if len(batch) == 1:
                batch[0].answer.set_exception(exc)
            else:  # one bad image must not fail the others
                for waiting in batch:
                    self._run([waiting])
            return
        detection_s = times.seconds(*DETECTION)
        for stage in self.stage_s:
            self.stage_s[stage] += times.seconds(stage)
        for waiting, table in answers:
            waiting.answer.set_result((table, detection_s))
