"""Face detection: MTCNN over batches of images of any mix of sizes.

Zhang et al. 2016, "Joint Face Detection and Alignment Using Multitask Cascaded Convolutional Networks", with the
weights, thresholds and box arithmetic of facenet-pytorch, so that it finds the same faces. The execution is our own:
P-Net runs over the pyramids of all images at once (`proposals`), all candidate crops of a batch are cut in one gather,
and nothing waits for the device per image, scale or box.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import torch

from pipeline.config import DetectSettings
from pipeline.extraction.detection.kernels import load_kernels
from pipeline.extraction.detection.networks import CropNetwork, MtcnnNetworks, crop_network
from pipeline.extraction.detection.nms import grouped_nms, grouped_nms_min
from pipeline.extraction.detection.proposals import CanvasCells, CompiledCells, LikelyCells
from pipeline.extraction.detection.pyramid import CELL, STRIDE, pyramid
from pipeline.extraction.images.batch import ImageBatch
from pipeline.runtime.device import padded
from pipeline.runtime.stage_times import ONET, PNET, RNET, NetworkCounts, StageTimes
from pipeline.types import Detections

# For R- and O-Net, by type of device. CUDA's is not measured but bounded by memory (0.5 GB for O-Net's first layer).
CROPS_PER_CALL: Final = {"cpu": 512, "cuda": 2048}
_CROP_COUNTS: Final = (128, 512, 2048)  # in a call, where few shapes are preferred


@dataclass
class DetectorCounts:
    """The networks' calls: tests of batching and of resuming read them."""

    pnet: NetworkCounts = field(default_factory=NetworkCounts)
    rnet: NetworkCounts = field(default_factory=NetworkCounts)
    onet: NetworkCounts = field(default_factory=NetworkCounts)


@dataclass
class _Candidates:
    """n boxes on their way through the cascade."""

    image: torch.Tensor  # [n] int64
    boxes: torch.Tensor  # [n, 4] float32 xyxy
    scores: torch.Tensor  # [n] float32

    def pick(self, index: torch.Tensor) -> _Candidates:
        return _Candidates(self.image[index], self.boxes[index], self.scores[index])


class MtcnnDetector:
    """Finds faces in an ImageBatch; `counts` are the networks' calls so far."""

    def __init__(self, networks: MtcnnNetworks, settings: DetectSettings) -> None:
        self.networks = networks
        self.settings = settings
        self.counts = DetectorCounts()
        kernels = load_kernels(networks.device)
        pnet = networks.pnet
        self._likely_cells: LikelyCells = CanvasCells(pnet) if kernels is None else CompiledCells(pnet, kernels)
        self._rnet, self._onet = crop_network(networks.rnet, kernels), crop_network(networks.onet, kernels)

    @torch.inference_mode()
    def __call__(self, batch: ImageBatch, times: StageTimes | None = None) -> Detections:
        """The faces of the batch with a confidence of at least `settings.min_confidence`; `times` takes the time of
        each of the three stages.

        Batch and single image give the same boxes up to the rounding of float32 convolutions.
        """
        times = StageTimes() if times is None else times
        with times.on_device(PNET):
            faces = self._propose(batch)
        with times.on_device(RNET):
            faces = self._refine(batch, faces)
        with times.on_device(ONET):
            faces, landmarks = self._output(batch, faces)
        confident = (faces.scores >= self.settings.min_confidence).nonzero()[:, 0]  # one wait, where a mask costs four
        return _ordered(faces.pick(confident), landmarks[confident])

    def _propose(self, batch: ImageBatch) -> _Candidates:
        """First stage: P-Net over all pyramids; boxes with their regression applied, made square."""
        settings = self.settings
        pyramids = [pyramid(h, w, settings.min_face_px, settings.factor) for h, w in batch.host_sizes]
        cells = self._likely_cells(batch, pyramids, settings.pnet_threshold, self.counts.pnet)
        cell, scale = torch.stack([cells.column, cells.row], dim=1).float() * STRIDE, cells.scale[:, None]
        boxes = torch.cat([((cell + 1) / scale).floor(), ((cell + CELL) / scale).floor()], 1)
        faces = _Candidates(cells.image, boxes, cells.probability)
        levels = max((len(p) for p in pyramids), default=0)
        keep = grouped_nms(faces.boxes, faces.scores, faces.image * levels + cells.level, 0.5)
        keep = keep[grouped_nms(faces.boxes[keep], faces.scores[keep], faces.image[keep], 0.7)]
        faces = faces.pick(keep)
        faces.boxes = _square(_shift(faces.boxes, cells.regression[keep], extra=0))
        return faces

    def _refine(self, batch: ImageBatch, faces: _Candidates) -> _Candidates:
        """Second stage: R-Net drops most candidates and moves the rest."""
        faces, crops = _inside(batch, faces)
        regression, probability = _run(batch, faces, crops, self._rnet, self.counts.rnet, 24, (4, 2))
        faces.scores = probability[:, 1]
        passed = (faces.scores > self.settings.rnet_threshold).nonzero()[:, 0]
        faces, regression = faces.pick(passed), regression[passed]
        keep = grouped_nms(faces.boxes, faces.scores, faces.image, 0.7)
        faces = faces.pick(keep)
        faces.boxes = _square(_shift(faces.boxes, regression[keep], extra=1))
        return faces

    def _output(self, batch: ImageBatch, faces: _Candidates) -> tuple[_Candidates, torch.Tensor]:
        """Third stage: O-Net gives the final boxes and the landmarks [n, 5, 2]."""
        faces, crops = _inside(batch, faces)
        regression, points, probability = _run(batch, faces, crops, self._onet, self.counts.onet, 48, (4, 10, 2))
        faces.scores = probability[:, 1]
        passed = (faces.scores > self.settings.onet_threshold).nonzero()[:, 0]
        faces, regression, points = faces.pick(passed), regression[passed], points[passed]
        sides = faces.boxes[:, None, 2:] - faces.boxes[:, None, :2] + 1
        landmarks = points.view(-1, 2, 5).transpose(1, 2) * sides + faces.boxes[:, None, :2] - 1
        faces.boxes = _shift(faces.boxes, regression, extra=1)
        keep = grouped_nms_min(faces.boxes, faces.scores, faces.image, 0.7)
        return faces.pick(keep), landmarks[keep]


def _run(
    batch: ImageBatch,
    faces: _Candidates,
    crops: torch.Tensor,
    network: CropNetwork,
    counts: NetworkCounts,
    size: int,
    widths: tuple[int, ...],
) -> list[torch.Tensor]:
    """The network's outputs [n, width] for the candidates' crops [n, 4], resampled to size x size."""
    outputs = [tuple(faces.boxes.new_zeros((0, width)) for width in widths)]
    step = CROPS_PER_CALL[crops.device.type]
    for start in range(0, len(crops), step):
        part = slice(start, start + step)
        pixels = batch.area_crops(faces.image[part], crops[part], size)
        outputs.append(tuple(output[: len(pixels)] for output in network(padded(pixels, _CROP_COUNTS))))
        counts.add(len(pixels))
    return [torch.cat(column) for column in zip(*outputs, strict=True)]


def _inside(batch: ImageBatch, faces: _Candidates) -> tuple[_Candidates, torch.Tensor]:
    """The candidates that overlap their image, and the overlap of each: [n, 4] int64, half open.

    The networks count pixels from 1 and include both ends, so the first pixel is x1 - 1.
    """
    corners = faces.boxes.trunc().long()
    size = batch.sizes[faces.image].flip(1)
    crops = torch.cat([corners[:, :2].clamp(min=1) - 1, torch.minimum(corners[:, 2:], size)], dim=1)
    visible = (crops[:, 2:] > crops[:, :2]).all(1).nonzero()[:, 0]
    return faces.pick(visible), crops[visible]


def _shift(boxes: torch.Tensor, regression: torch.Tensor, extra: int) -> torch.Tensor:
    """Moves each corner by a share of the box's sides; `extra` is 1 where sides include both end pixels."""
    sides = boxes[:, 2:] - boxes[:, :2] + extra
    return boxes + regression * sides.repeat(1, 2)


def _square(boxes: torch.Tensor) -> torch.Tensor:
    """The square with the same centre and the longer side."""
    sides = boxes[:, 2:] - boxes[:, :2]
    longer = sides.amax(1, keepdim=True)
    corner = boxes[:, :2] + sides * 0.5 - longer * 0.5
    return torch.cat([corner, corner + longer], dim=1)


def _ordered(faces: _Candidates, landmarks: torch.Tensor) -> Detections:
    """By image, then from the largest box to the smallest, ties by confidence."""
    area = (faces.boxes[:, 2:] - faces.boxes[:, :2]).prod(1)
    order = faces.scores.argsort(descending=True, stable=True)
    order = order[area[order].argsort(descending=True, stable=True)]
    order = order[faces.image[order].argsort(stable=True)]
    return Detections(faces.image[order], faces.boxes[order], landmarks[order], faces.scores[order])
