"""Face detection: MTCNN over batches of images of any mix of sizes.

Zhang et al. 2016, "Joint Face Detection and Alignment Using Multitask Cascaded Convolutional Networks", with the
weights, thresholds and box arithmetic of facenet-pytorch, so that it finds the same faces. The execution is our own:
P-Net runs over the pyramids of all images at once (`proposals`), all candidate crops of a batch are cut in one gather,
and the host waits for the device four times: for P-Net's cells, and for who is left before each network and in the end.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final, NamedTuple

import torch

from pipeline.config import DetectSettings
from pipeline.extraction.detection.networks import MtcnnNetworks, crop_network
from pipeline.extraction.detection.nms import by_group, load_kernel, suppress
from pipeline.extraction.detection.proposals import cell_finder, load_painter
from pipeline.extraction.detection.pyramid import CELL, STRIDE, most_overlap, pyramid
from pipeline.extraction.images.batch import ImageBatch, load_triton
from pipeline.runtime.device import padded
from pipeline.runtime.optional_kernels import if_compiled
from pipeline.runtime.stage_times import DETECTION, ONET, PNET, RNET, CallCounts, StageTimes
from pipeline.types import Detections

# For R- and O-Net, by type of device. CUDA's is not measured but bounded by memory (0.5 GB for O-Net's first layer).
CROPS_PER_CALL: Final = {"cpu": 512, "cuda": 2048}
_CROP_COUNTS: Final = (128, 512, 2048)  # in a call, where few shapes are preferred
_ACROSS_LEVELS: Final = 0.7  # the overlap above which a box of P-Net drops one of another level


@if_compiled
def load_kernels() -> ModuleType:
    """The loops that run the networks on the CPU."""
    from pipeline.extraction.detection import network_kernels

    return network_kernels


class _Candidates(NamedTuple):
    """n boxes between two stages. Those that are not kept stay in until the host waits for the device anyway."""

    image: torch.Tensor  # [n] int64
    boxes: torch.Tensor  # [n, 4] float32 xyxy
    kept: torch.Tensor  # [n] bool


class MtcnnDetector:
    """Finds faces in an ImageBatch; `counts` are the calls of each stage's network so far."""

    def __init__(self, networks: MtcnnNetworks, settings: DetectSettings) -> None:
        self.networks = networks
        self.settings = settings
        self.counts = {stage: CallCounts() for stage in DETECTION}
        kernels = load_kernels(networks.device.type)
        self._likely_cells = cell_finder(networks.pnet, kernels)
        # Each network of crops, their size, and the widths of its outputs.
        self._crop_networks = {
            RNET: (crop_network(networks.rnet, kernels), 24, (4, 2)),
            ONET: (crop_network(networks.onet, kernels), 48, (4, 10, 2)),
        }
        for load in (load_triton, load_painter, load_kernel):
            load(networks.device)  # now, as their comparison might find no memory beside a batch

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
            return self._output(batch, faces)

    def _propose(self, batch: ImageBatch) -> _Candidates:
        """First stage: P-Net over all pyramids; boxes with their regression applied, made square."""
        settings = self.settings
        pyramids = [pyramid(h, w, settings.min_face_px, settings.factor) for h, w in batch.host_sizes]
        cells = self._likely_cells(batch, pyramids, settings.pnet_threshold, self.counts[PNET])
        cell, scale = torch.stack([cells.column, cells.row], dim=1).float() * STRIDE, cells.scale[:, None]
        boxes = torch.cat([((cell + 1) / scale).floor(), ((cell + CELL) / scale).floor()], 1)
        levels = max((len(p) for p in pyramids), default=0)
        group = cells.image * levels + cells.level
        order, kept = suppress(boxes, cells.probability, group, len(batch) * levels, 0.5)
        image, boxes = cells.image[order], boxes[order]
        scores, group = cells.probability[order], image.where(kept, len(batch))
        if most_overlap(settings.min_face_px, settings.factor) > _ACROSS_LEVELS:
            again, kept = suppress(boxes, scores, group, len(batch), _ACROSS_LEVELS)
        else:  # none would drop another, and the largest group would take longer than the networks
            _, again = by_group(scores, group)
            kept = kept[again]
        boxes = _square(_shift(boxes, cells.regression[order], extra=0))
        return _Candidates(image[again], boxes[again], kept)

    def _refine(self, batch: ImageBatch, faces: _Candidates) -> _Candidates:
        """Second stage: R-Net drops most candidates and moves the rest."""
        image, boxes, crops = _inside(batch, faces)
        regression, probability = self._run(batch, image, crops, RNET)
        scores = probability[:, 1]
        group = image.where(scores > self.settings.rnet_threshold, len(batch))
        order, kept = suppress(boxes, scores, group, len(batch), 0.7)
        boxes = _square(_shift(boxes, regression, extra=1))
        return _Candidates(image[order], boxes[order], kept)

    def _output(self, batch: ImageBatch, faces: _Candidates) -> Detections:
        """Third stage: O-Net gives the final boxes and the landmarks. By image, then from the largest box to the
        smallest, ties by confidence."""
        image, boxes, crops = _inside(batch, faces)
        regression, points, probability = self._run(batch, image, crops, ONET)
        scores = probability[:, 1]
        sides = boxes[:, None, 2:] - boxes[:, None, :2] + 1
        landmarks = points.view(-1, 2, 5).transpose(1, 2) * sides + boxes[:, None, :2] - 1
        boxes = _shift(boxes, regression, extra=1)
        group = image.where(scores > self.settings.onet_threshold, len(batch))
        order, kept = suppress(boxes, scores, group, len(batch), 0.7, of_smaller=True)
        order = order[(kept & (scores[order] >= self.settings.min_confidence)).nonzero()[:, 0]]  # waits
        area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        order = order[area[order].argsort(descending=True, stable=True)]
        order = order[image[order].argsort(stable=True)]
        return Detections(image[order], boxes[order], landmarks[order], scores[order])

    def _run(self, batch: ImageBatch, image: torch.Tensor, crops: torch.Tensor, stage: str) -> list[torch.Tensor]:
        """The outputs [n, width] of the stage's network for the crops [n, 4] of images [n]."""
        network, size, widths = self._crop_networks[stage]
        outputs = [tuple(torch.zeros((0, width), device=crops.device) for width in widths)]
        step = CROPS_PER_CALL[crops.device.type]
        for start in range(0, len(crops), step):
            part = slice(start, start + step)
            pixels = batch.area_crops(image[part], crops[part], size)
            outputs.append(tuple(output[: len(pixels)] for output in network(padded(pixels, _CROP_COUNTS))))
            self.counts[stage].add(len(pixels))
        return [torch.cat(column) for column in zip(*outputs, strict=True)]


def _inside(batch: ImageBatch, faces: _Candidates) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Image [n] and box [n, 4] of the kept candidates that overlap their image, and the overlap: [n, 4] int64, half
    open.

    The networks count pixels from 1 and include both ends, so the first pixel is x1 - 1.
    """
    corners = faces.boxes.trunc().long()
    size = batch.sizes[faces.image].flip(1)
    crops = torch.cat([corners[:, :2].clamp(min=1) - 1, torch.minimum(corners[:, 2:], size)], dim=1)
    left = (faces.kept & (crops[:, 2:] > crops[:, :2]).all(1)).nonzero()[:, 0]  # waits
    return faces.image[left], faces.boxes[left], crops[left]


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
