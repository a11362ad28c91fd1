"""Batches of images to tables of faces: the order of the stages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from pipeline.config import AlignSettings, Settings
from pipeline.extraction.align import cut_crops, warp_crops
from pipeline.extraction.detection.cascade import MtcnnDetector
from pipeline.extraction.embed import Embedder
from pipeline.extraction.images.batch import ImageBatch, PixelMemory
from pipeline.extraction.quality import assess_quality
from pipeline.extraction.rows import MODEL, OTHER, face_schema, fixed_lists
from pipeline.models.registry import FIVE_POINT
from pipeline.runtime.arrays import floats, like, module_of, on_host
from pipeline.runtime.device import FittingBatches
from pipeline.runtime.stage_times import CROP, EMBED, IMAGES, QUALITY, SECOND_MODEL, StageTimes
from pipeline.types import Array, DecodedImage, Detections, DeviceImage, FaceCrops, FloatArray, boxes_of

BOX_CROP_PX = 160  # side of box crops, for quality and some embedders

_Photo: TypeAlias = "tuple[DecodedImage | DeviceImage, pa.Table | None]"  # with its known faces


@dataclass(frozen=True)
class FaceModel:
    """An embedder and its crop settings."""

    embedder: Embedder
    align: AlignSettings
    name: str = ""  # `StoreIdentity.model`


class BatchExtractor:
    """Detects, aligns, rates and embeds faces, on the device of its models."""

    def __init__(self, detector: MtcnnDetector, embedder: Embedder, settings: Settings, name: str = "") -> None:
        """`name`: `StoreIdentity.model`."""
        self.detector = detector
        self.settings = settings
        self._models: tuple[FaceModel, FaceModel | None] = FaceModel(embedder, settings.align, name), None
        self.device = detector.networks.device
        self._memory = PixelMemory(settings.run.batch_pixels, detector.networks.memory)
        self._fitting = FittingBatches[_Photo](lambda photo: photo[0].pixels.shape[0] * photo[0].pixels.shape[1])

    @property
    def embedder(self) -> Embedder:
        """The first model's."""
        return self._models[0].embedder

    def measure_also(self, other: FaceModel | None) -> None:
        """From the next batch on, also embeds with a second model; None: no longer."""
        self._models = self._models[0], other

    def keep_one(self, name: str) -> None:
        """From the next batch on, uses one model: the second if it has this name, else the first."""
        first, second = self._models
        self._models = second if second is not None and second.name == name else first, None

    def extract(
        self,
        images: Sequence[DecodedImage | DeviceImage],
        times: StageTimes | None = None,
        known: Sequence[pa.Table] | None = None,
    ) -> list[pa.Table]:
        """One table of faces (`face_schema`) per image, largest first, or of the `known` faces (`PLACE_COLUMNS`) of
        each. `times` records the stages.

        Halves batches that exceed the device's memory; raises DeviceOutOfMemory if a single image does.
        """
        stage_times = StageTimes() if times is None else times
        photos = [*zip(images, [None] * len(images) if known is None else known, strict=True)]
        return self._fitting(lambda part: self._extract(part, stage_times), photos)

    def _extract(self, photos: Sequence[_Photo], times: StageTimes) -> list[pa.Table]:
        networks, images = self.detector.networks, [image for image, _ in photos]
        pixels = sum(image.width * image.height for image in images if isinstance(image, DecodedImage))
        with self._memory.taken(pixels) if pixels else nullcontext() as memory, networks.computing():
            with times.on_device(IMAGES):
                batch = networks.batch([image.pixels for image in images], memory)
            known = [table for _, table in photos if table is not None]
            return self._extract_batch(
                batch, _detections(batch, known) if known else self.detector(batch, times), times
            )

    def _extract_batch(self, batch: ImageBatch, detections: Detections, times: StageTimes) -> list[pa.Table]:
        """Waits for the device at the end."""
        first, other = self._models
        boxed, quality = _assess(batch, detections, first.align, times)
        embeddings = _embed(batch, detections, boxed, first.embedder, times)
        more: list[Array] = []
        if other is not None:
            with times.on_device(SECOND_MODEL):
                parts = StageTimes()  # not reported separately
                if other.align != first.align:
                    boxed, quality_again = _assess(batch, detections, other.align, parts)
                else:
                    quality_again = quality
                more = [quality_again, _embed(batch, detections, boxed, other.embedder, parts)]
        xp = module_of(embeddings)
        limit = floats(xp.flip(batch.sizes[detections.image_index], (1,)))
        columns = [
            xp.minimum(detections.boxes.clip(min=0), xp.concatenate([limit, limit], axis=1)),
            detections.landmarks.reshape(-1, 10),
            detections.scores[:, None],
            quality,
            embeddings,
            *more,
            floats(detections.image_index[:, None]),  # exact below 2**24; avoids another copy to the host
        ]
        numbers = on_host(xp.concatenate(columns, axis=1))
        visible = (numbers[:, 2:4] - numbers[:, :2] >= 1).all(axis=1)  # known faces always are
        index, numbers = numbers[visible, -1], numbers[visible, :-1]
        table = _table(numbers, first, other)
        ends = np.searchsorted(index, np.arange(len(batch)), side="right")
        return [table.slice(start, end - start) for start, end in zip([0, *ends][:-1], ends, strict=True)]


def _assess(
    batch: ImageBatch, detections: Detections, align: AlignSettings, times: StageTimes
) -> tuple[FaceCrops, Array]:
    """Box crops of n faces, and their quality [n, 3]: from box crops for every embedder, so that one threshold fits
    all."""
    with times.on_device(CROP):
        boxed = cut_crops(batch, detections, align, BOX_CROP_PX)
    with times.on_device(QUALITY):
        return boxed, assess_quality(boxed, detections)


def _embed(batch: ImageBatch, detections: Detections, boxed: FaceCrops, embedder: Embedder, times: StageTimes) -> Array:
    """Embeddings [n, d] of n faces."""
    crops = boxed.pixels
    if embedder.alignment == FIVE_POINT:
        with times.on_device(CROP):
            crops = warp_crops(batch, detections, embedder.input_size)
    with times.on_device(EMBED):
        return embedder(crops)


def _table(numbers: FloatArray, first: FaceModel, other: FaceModel | None) -> pa.Table:
    size = first.embedder.embedding_size
    box, landmarks, single, embedding, qualities, others = np.split(numbers, [4, 14, 18, 18 + size, 21 + size], axis=1)
    columns = [
        *(pa.array(c) for c in box.T),
        fixed_lists(landmarks),
        *(pa.array(c) for c in single.T),
        fixed_lists(embedding),
        pa.nulls(len(numbers), OTHER.type) if other is None else _others(other.name, qualities, others),
    ]
    return pa.table(columns, schema=face_schema(size).with_metadata({MODEL: first.name}))


def _others(model: str, qualities: FloatArray, embeddings: FloatArray) -> pa.StructArray:
    count, size = embeddings.shape
    lists = pa.ListArray.from_arrays(np.arange(count + 1, dtype=np.int32) * size, embeddings.ravel())
    return pa.StructArray.from_arrays(
        [pa.array([model] * count, pa.string()), fixed_lists(qualities), lists], fields=[*OTHER.type]
    )


def _detections(batch: ImageBatch, known: Sequence[pa.Table]) -> Detections:
    """The known faces (`PLACE_COLUMNS`) of each image of a batch."""
    faces = pa.concat_tables(known)
    landmarks = faces["landmarks"].combine_chunks().flatten().to_numpy(zero_copy_only=False).reshape(-1, 5, 2)
    index = np.repeat(np.arange(len(known)), [len(table) for table in known])
    columns = index, boxes_of(faces), landmarks, faces["confidence"].to_numpy()
    return Detections(*(like(batch.sizes, column) for column in columns))
