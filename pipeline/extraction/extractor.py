"""FaceExtractor: a batch of images to tables of faces. The one place that knows the order of the stages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import torch

from pipeline.config import Settings
from pipeline.extraction.align import cut_crops, warp_crops
from pipeline.extraction.detection.cascade import MtcnnDetector
from pipeline.extraction.embed import Embedder
from pipeline.extraction.images.batch import ImageBatch
from pipeline.extraction.quality import assess_quality
from pipeline.extraction.rows import face_schema, fixed_lists
from pipeline.extraction.stored_picture import encode_reference_image, surroundings
from pipeline.models.registry import FIVE_POINT
from pipeline.runtime.device import halving
from pipeline.runtime.stage_times import CROP, EMBED, ENCODE, IMAGES, QUALITY, StageTimes
from pipeline.runtime.threads import over_threads
from pipeline.types import DecodedImage, Detections, DeviceImage, FaceCrops, FloatArray, IntArray

BOX_CROP_PX = 160  # of box crops: the input of the embedders that take them, and what quality was fitted on


class FaceExtractor:
    """Detects, aligns, assesses and embeds the faces of images, on the device of its models."""

    def __init__(self, detector: MtcnnDetector, embedder: Embedder, settings: Settings) -> None:
        self.detector = detector
        self.embedder = embedder
        self.settings = settings
        self.schema = face_schema(embedder.embedding_size)
        self.device = detector.networks.device

    def extract(self, images: Sequence[DecodedImage | DeviceImage], times: StageTimes | None = None) -> list[pa.Table]:
        """One table of faces (`face_schema`) per image, from the largest face to the smallest; `times`, where given,
        has what the stages took.

        Where the device runs out of memory the batch is halved; raises DeviceOutOfMemory when a single image is
        too much.
        """
        measured = StageTimes() if times is None else times
        return halving(lambda part: self._extract(part, measured), images)

    @torch.inference_mode()
    def _extract(self, images: Sequence[DecodedImage | DeviceImage], times: StageTimes) -> list[pa.Table]:
        with times.on_device(IMAGES):
            batch = ImageBatch([image.pixels for image in images], self.device)
        found = self.detector(batch, times)
        with times.on_device(CROP):
            boxed = cut_crops(batch, found, self.settings.align, BOX_CROP_PX)
            crops = self._embedded(batch, found, boxed)
        with times.on_device(QUALITY):
            quality = assess_quality(boxed, found)
        with times.on_device(EMBED):
            embeddings = self.embedder(crops)
        columns = [
            _clipped(found, batch),
            found.landmarks.flatten(1),
            torch.stack([found.scores, quality.center_pose, quality.sharpness, quality.contrast], dim=1),
            embeddings,
        ]
        index, numbers = found.image_index.cpu().numpy(), torch.cat(columns, dim=1).cpu().numpy()
        visible = (numbers[:, 2:4] - numbers[:, :2] >= 1).all(axis=1)
        index, numbers = index[visible], numbers[visible]
        with times.stage(ENCODE, calls=len(index)):
            table = self._table(batch, index, numbers)
        ends = np.searchsorted(index, np.arange(len(images)), side="right")
        return [table.slice(start, end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def _embedded(self, batch: ImageBatch, found: Detections, boxed: FaceCrops) -> torch.Tensor:
        """The crops that the embedder was trained on. Quality is judged on the box crops whatever the embedder, so that
        the gate means the same for all."""
        if self.embedder.alignment == FIVE_POINT:
            return warp_crops(batch, found, self.embedder.input_size)
        return boxed.pixels

    def _table(self, batch: ImageBatch, index: IntArray, numbers: FloatArray) -> pa.Table:
        box, landmarks, single, embedding = np.split(numbers, [4, 14, 18], axis=1)
        sizes = (batch.host_sizes[i] for i in index)
        shown = [surroundings(b, width, height) for b, (height, width) in zip(box, sizes, strict=True)]
        crops = over_threads(encode_reference_image, batch.cut(index.tolist(), shown))
        columns = [
            *(pa.array(c) for c in box.T),
            fixed_lists(landmarks),
            *(pa.array(c) for c in single.T),
            fixed_lists(embedding),
            pa.array(crops, pa.binary()),
        ]
        return pa.table(columns, schema=self.schema)


def _clipped(found: Detections, batch: ImageBatch) -> torch.Tensor:
    """The boxes, cut off at their image's edge."""
    limit = batch.sizes[found.image_index].flip(1).repeat(1, 2).float()
    return torch.minimum(found.boxes.clamp(min=0), limit)
