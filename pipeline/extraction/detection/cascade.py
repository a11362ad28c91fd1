"""Face detection: MTCNN over batches of images of mixed sizes.

Zhang et al. 2016, "Joint Face Detection and Alignment Using Multitask Cascaded Convolutional Networks", with
facenet-pytorch's weights, thresholds and box arithmetic, to find the same faces. P-Net runs over all pyramids at once,
one gather cuts all crops. The host waits four times: for P-Net's cells, for the candidates of each network, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from pipeline.config import DetectSettings
from pipeline.extraction.detection.pyramid import CELL, STRIDE, Cells, Level, most_overlap, pyramid
from pipeline.extraction.images.batch import ImageBatch
from pipeline.runtime.arrays import float_bits, floats, integers, like, module_of, stable_order, where_true
from pipeline.runtime.stage_times import DETECTION, ONET, PNET, RNET, CallCounts, StageTimes
from pipeline.types import Array, ByteArray, Detections

_ACROSS_LEVELS: Final = 0.7  # maximum overlap of P-Net's boxes from different levels
# Side of a crop, and widths of the outputs.
_CROPS: Final = {RNET: (24, (4, 2)), ONET: (48, (4, 10, 2))}


class MtcnnNetworks(Protocol):
    """P-, R- and O-Net on one device."""

    @property
    def device(self) -> str: ...

    @property
    def crops_per_call(self) -> int:
        """The maximum for `run`."""

    def computing(self) -> AbstractContextManager[object]:
        """For all work with the networks and their arrays."""

    def memory(self, pixels: int) -> ByteArray:
        """[pixels, 3] uint8 on the host, for a batch."""

    def batch(self, images: Sequence[Any], memory: ByteArray | None = None) -> Any:
        """The images [H, W, 3] uint8 as an `ImageBatch` on the device."""

    def likely_cells(
        self, batch: Any, pyramids: Sequence[Sequence[Level]], threshold: float, counts: CallCounts
    ) -> Cells:
        """P-Net's cells in all levels with a face probability of at least `threshold`."""

    def run(self, stage: str, pixels: Array) -> tuple[Array, ...]:
        """R- or O-Net: crops [n, 3, size, size] float32 in [0, 255] -> box regressions [n, 4], O-Net's landmarks [n,
        10], probabilities [n, 2]."""


class _Candidates(NamedTuple):
    """n boxes between stages, including dropped ones until the host waits anyway."""

    image: Array  # [n] int64
    boxes: Array  # [n, 4] float32 xyxy
    kept: Array  # [n] bool


class MtcnnDetector:
    """Detects faces in an ImageBatch; `counts` counts the calls of each network."""

    def __init__(self, networks: MtcnnNetworks, settings: DetectSettings) -> None:
        self.networks = networks
        self.settings = settings
        self.counts = {stage: CallCounts() for stage in DETECTION}

    def __call__(self, batch: ImageBatch, times: StageTimes | None = None) -> Detections:
        """Faces with a confidence of at least `settings.min_confidence`; `times` records the stages.

        Batches and single images give equal boxes up to float32's rounding.
        """
        times = StageTimes() if times is None else times
        with times.on_device(PNET):
            faces = self._propose(batch)
        with times.on_device(RNET):
            faces = self._refine(batch, faces)
        with times.on_device(ONET):
            return self._output(batch, faces)

    def _propose(self, batch: ImageBatch) -> _Candidates:
        """First stage: P-Net over all pyramids; squared boxes after regression."""
        settings = self.settings
        pyramids = [pyramid(h, w, settings.min_face_px, settings.factor) for h, w in batch.host_sizes]
        cells = self.networks.likely_cells(batch, pyramids, settings.pnet_threshold, self.counts[PNET])
        xp = module_of(cells.row)
        cell, scale = floats(xp.stack([cells.column, cells.row], axis=1)) * STRIDE, cells.scale[:, None]
        boxes = xp.concatenate([xp.floor((cell + 1) / scale), xp.floor((cell + CELL) / scale)], axis=1)
        levels = max((len(p) for p in pyramids), default=0)
        group = cells.image * levels + cells.level
        order, kept = suppress(boxes, cells.probability, group, len(batch) * levels, 0.5)
        image, boxes = cells.image[order], boxes[order]
        scores, group = cells.probability[order], xp.where(kept, image, len(batch))
        if most_overlap(settings.min_face_px, settings.factor) > _ACROSS_LEVELS:
            again, kept = suppress(boxes, scores, group, len(batch), _ACROSS_LEVELS)
        else:  # none could drop another, and the largest group would be slower than the networks
            _, again = by_group(scores, group)
            kept = kept[again]
        boxes = _square(_shift(boxes, cells.regression[order], extra=0))
        return _Candidates(image[again], boxes[again], kept)

    def _refine(self, batch: ImageBatch, faces: _Candidates) -> _Candidates:
        """Second stage: R-Net drops most candidates and moves the rest."""
        image, boxes, crops = _inside(batch, faces)
        regression, probability = self._run(batch, image, crops, RNET)
        scores = probability[:, 1]
        group = module_of(image).where(scores > self.settings.rnet_threshold, image, len(batch))
        order, kept = suppress(boxes, scores, group, len(batch), 0.7)
        boxes = _square(_shift(boxes, regression, extra=1))
        return _Candidates(image[order], boxes[order], kept)

    def _output(self, batch: ImageBatch, faces: _Candidates) -> Detections:
        """Third stage: O-Net's final boxes and landmarks, by image, then falling area, ties by confidence."""
        image, boxes, crops = _inside(batch, faces)
        regression, points, probability = self._run(batch, image, crops, ONET)
        scores = probability[:, 1]
        xp = module_of(boxes)
        sides = boxes[:, None, 2:] - boxes[:, None, :2] + 1
        landmarks = xp.stack([points[:, :5], points[:, 5:]], axis=2) * sides + boxes[:, None, :2] - 1
        boxes = _shift(boxes, regression, extra=1)
        group = xp.where(scores > self.settings.onet_threshold, image, len(batch))
        order, kept = suppress(boxes, scores, group, len(batch), 0.7, of_smaller=True)
        order = order[where_true(kept & (scores[order] >= self.settings.min_confidence))]  # waits
        area = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
        order = order[stable_order(-area[order])]
        order = order[stable_order(image[order])]
        return Detections(image[order], boxes[order], landmarks[order], scores[order])

    def _run(self, batch: ImageBatch, image: Array, crops: Array, stage: str) -> list[Array]:
        """Outputs [n, width] of the stage's network for the crops [n, 4] of images [n]."""
        size, widths = _CROPS[stage]
        outputs = [tuple(batch.empty((0, width)) for width in widths)]
        step = self.networks.crops_per_call
        for start in range(0, len(crops), step):
            part = slice(start, start + step)
            outputs.append(self.networks.run(stage, batch.area_crops(image[part], crops[part], size)))
            self.counts[stage].add(len(image[part]))
        return [module_of(crops).concatenate(column) for column in zip(*outputs, strict=True)]


def _inside(batch: ImageBatch, faces: _Candidates) -> tuple[Array, Array, Array]:
    """Image [n] and box [n, 4] of kept candidates that overlap their image, and the overlap [n, 4] int64, half open.

    The networks count pixels from 1, both ends included: the first pixel is x1 - 1.
    """
    xp, corners = module_of(faces.boxes), integers(faces.boxes)
    size = xp.flip(batch.sizes[faces.image], (1,))
    crops = xp.concatenate([corners[:, :2].clip(min=1) - 1, xp.minimum(corners[:, 2:], size)], axis=1)
    left = where_true(faces.kept & (crops[:, 2:] > crops[:, :2]).all(axis=1))  # waits
    return faces.image[left], faces.boxes[left], crops[left]


def _shift(boxes: Array, regression: Array, extra: int) -> Array:
    """Moves corners by fractions of the box's sides; `extra` is 1 if sides include both end pixels."""
    sides = boxes[:, 2:] - boxes[:, :2] + extra
    return boxes + regression * module_of(boxes).concatenate([sides, sides], axis=1)


def _square(boxes: Array) -> Array:
    """The square with the same centre and the longer side."""
    sides = boxes[:, 2:] - boxes[:, :2]
    xp = module_of(boxes)
    longer = xp.amax(sides, axis=1, keepdims=True)
    corner = boxes[:, :2] + sides * 0.5 - longer * 0.5
    return xp.concatenate([corner, corner + longer], axis=1)


def suppress(
    boxes: Array, scores: Array, groups: Array, count: int, limit: float, of_smaller: bool = False
) -> tuple[Array, Array]:
    """By falling score, each box drops those of its group that overlap it by > `limit`.

    boxes [n, 4] float32 xyxy, scores [n] float32 >= 0, groups [n] int64: images, or their levels. Boxes of group
    `count` are excluded. The overlap is relative to the union, or with `of_smaller` (MTCNN's last step) to the smaller
    area, with sides that count both end pixels. Returns indices by group, falling score and index, [n] int64, and which
    are kept, [n] bool. Does not wait for a CUDA device.
    """
    keys, order = by_group(scores, groups)
    boxes = boxes[order]
    starts = module_of(keys).searchsorted(keys, like(keys, np.arange(count + 1, dtype=np.int64) << 32))
    if isinstance(boxes, np.ndarray):
        from pipeline.extraction.detection import network_kernels

        return order, network_kernels.greedy(boxes, starts, limit, of_smaller)
    from pipeline.extraction.detection import torch_nms

    return order, torch_nms.greedy(boxes, starts, limit, of_smaller)


def by_group(scores: Array, groups: Array) -> tuple[Array, Array]:
    """Sort keys, those of group g from g << 32 on, and indices by group, falling score and index; [n] int64. Scores are
    >= 0."""
    # Bits of floats >= 0 sort like the floats, so one key suffices.
    keys = (groups + 1 << 32) - 1 - float_bits(scores)
    order = stable_order(keys)
    return keys[order], order
