"""A batch of images to tables of faces: the one place that knows the order of the stages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import pyarrow as pa

from pipeline.config import Settings
from pipeline.extraction.align import cut_crops, warp_crops
from pipeline.extraction.detection.cascade import MtcnnDetector
from pipeline.extraction.embed import Embedder
from pipeline.extraction.images.batch import ImageBatch, PixelMemory
from pipeline.extraction.quality import assess_quality
from pipeline.extraction.rows import face_schema, fixed_lists
from pipeline.models.registry import FIVE_POINT
from pipeline.runtime.arrays import floats, module_of, on_host
from pipeline.runtime.device import FittingBatches
from pipeline.runtime.stage_times import CROP, EMBED, IMAGES, QUALITY, StageTimes
from pipeline.types import DecodedImage, DeviceImage, FloatArray

BOX_CROP_PX = 160  # side of box crops: the input of the embedders that take them, and of the quality measures


class BatchExtractor:
    """Detects, aligns, assesses and embeds the faces of images, on the device of its models."""

    def __init__(self, detector: MtcnnDetector, embedder: Embedder, settings: Settings) -> None:
        self.detector = detector
        self.embedder = embedder
        self.settings = settings
        self.schema = face_schema(embedder.embedding_size)
        self.device = detector.networks.device
        self._memory = PixelMemory(settings.run.batch_pixels, detector.networks.memory)
        self._fitting = FittingBatches[DecodedImage | DeviceImage](
            lambda image: image.pixels.shape[0] * image.pixels.shape[1]
        )

    def extract(self, images: Sequence[DecodedImage | DeviceImage], times: StageTimes | None = None) -> list[pa.Table]:
        """One table of faces (`face_schema`) per image, from the largest face to the smallest; `times` takes the time
        of each stage.

        Halves batches that the device has no memory for; raises DeviceOutOfMemory when a single image is too much.
        """
        stage_times = StageTimes() if times is None else times
        return self._fitting(lambda part: self._extract(part, stage_times), images)

    def _extract(self, images: Sequence[DecodedImage | DeviceImage], times: StageTimes) -> list[pa.Table]:
        networks = self.detector.networks
        pixels = sum(image.width * image.height for image in images if isinstance(image, DecodedImage))
        with self._memory.taken(pixels) if pixels else nullcontext() as memory, networks.computing():
            with times.on_device(IMAGES):
                batch = networks.batch([image.pixels for image in images], memory)
            return self._extract_batch(batch, times)

    def _extract_batch(self, batch: ImageBatch, times: StageTimes) -> list[pa.Table]:
        """Waits for the device in the end."""
        detections = self.detector(batch, times)
        with times.on_device(CROP):
            boxed = cut_crops(batch, detections, self.settings.align, BOX_CROP_PX)
            five_point = self.embedder.alignment == FIVE_POINT
            crops = warp_crops(batch, detections, self.embedder.input_size) if five_point else boxed.pixels
        with times.on_device(QUALITY):  # of the box crops, whatever the embedder takes: the gate means the same for all
            quality = assess_quality(boxed, detections)
        with times.on_device(EMBED):
            embeddings = self.embedder(crops)
        xp = module_of(embeddings)
        limit = floats(xp.flip(batch.sizes[detections.image_index], (1,)))
        columns = [
            xp.minimum(detections.boxes.clip(min=0), xp.concatenate([limit, limit], axis=1)),
            detections.landmarks.reshape(-1, 10),
            detections.scores[:, None],
            quality,
            embeddings,
            floats(detections.image_index[:, None]),  # exact below 2**24, in the same copy to the host
        ]
        numbers = on_host(xp.concatenate(columns, axis=1))
        visible = (numbers[:, 2:4] - numbers[:, :2] >= 1).all(axis=1)
        index, numbers = numbers[visible, -1], numbers[visible, :-1]
        table = self._table(numbers)
        ends = np.searchsorted(index, np.arange(len(batch)), side="right")
        return [table.slice(start, end - start) for start, end in zip([0, *ends][:-1], ends, strict=True)]

    def _table(self, numbers: FloatArray) -> pa.Table:
        box, landmarks, single, embedding = np.split(numbers, [4, 14, 18], axis=1)
        columns = [
            *(pa.array(c) for c in box.T),
            fixed_lists(landmarks),
            *(pa.array(c) for c in single.T),
            fixed_lists(embedding),
        ]
        return pa.table(columns, schema=self.schema)
