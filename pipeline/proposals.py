"""P-Net over the pyramids of a batch: the cells where a face may be.

Zhang et al. 2016, "Joint Face Detection and Alignment Using Multitask Cascaded Convolutional Networks", first stage.
`CanvasCells` runs torch's network over canvases of one shape that hold the levels of many images: for any device.
`CompiledCells` runs compiled loops over each level by itself: for the CPU, where the cache counts most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from pipeline.canvas import Level, Packing, Tile, pack
from pipeline.counts import NetworkCounts
from pipeline.imagebatch import ImageBatch
from pipeline.kernels import Kernels
from pipeline.models.mtcnn import CanvasPNet, normalise
from pipeline.packed_layers import packed_layer
from pipeline.summed_area import area_levels
from pipeline.types import ByteArray, FloatArray
from pipeline.workers import over_threads

CANVAS_SIDE = 512
CANVASES_PER_CALL = 4
# The likely cells of one level: (row, column) [n, 2], and probability and regression [n, 5].
_Found: TypeAlias = tuple[npt.NDArray[np.int32], FloatArray]


@dataclass(frozen=True)
class Cells:
    """n cells of P-Net's answers, on the batch's device."""

    image: torch.Tensor  # [n] int64
    level: torch.Tensor  # [n] int64
    scale: torch.Tensor  # [n] float32, of the level
    column: torch.Tensor  # [n] int64, in the level
    row: torch.Tensor  # [n] int64
    probability: torch.Tensor  # [n] float32
    regression: torch.Tensor  # [n, 4] float32, shares of the cell's sides


class LikelyCells(Protocol):
    """Finds the cells of all levels with a probability of a face of at least `threshold`."""

    def __call__(
        self, batch: ImageBatch, pyramids: Sequence[Sequence[Level]], threshold: float, counts: NetworkCounts
    ) -> Cells: ...


class CanvasCells:
    """By torch, `CANVASES_PER_CALL` canvases at a time."""

    def __init__(self, pnet: CanvasPNet) -> None:
        self._pnet = pnet

    def __call__(
        self, batch: ImageBatch, pyramids: Sequence[Sequence[Level]], threshold: float, counts: NetworkCounts
    ) -> Cells:
        packing = pack(pyramids, CANVAS_SIDE)
        canvases = _paint(batch, packing)
        cell_tile = torch.from_numpy(packing.cell_tile).to(batch.device, non_blocking=True)
        probabilities, regressions = self._run(canvases, packing, counts)
        hit = (probabilities >= threshold) & (cell_tile >= 0)
        canvas, row, column = hit.nonzero().unbind(1)  # the one wait of this stage
        tile = cell_tile[canvas, row, column].long()
        image, level, scale, origin = (
            torch.from_numpy(a).to(batch.device, non_blocking=True)[tile]
            for a in (packing.image, packing.level, packing.scale, packing.origin)
        )
        return Cells(
            image,
            level,
            scale,
            column + origin[:, 1],
            row + origin[:, 0],
            probabilities[canvas, row, column],
            regressions[canvas, :, row, column],
        )

    def _run(
        self, canvases: torch.Tensor, packing: Packing, counts: NetworkCounts
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cells = CANVAS_SIDE // 2 - 5
        probabilities = canvases.new_empty((packing.canvases, cells, cells))
        regressions = canvases.new_empty((packing.canvases, 4, cells, cells))
        for start in range(0, packing.canvases, CANVASES_PER_CALL):
            part = slice(start, start + CANVASES_PER_CALL)
            inside, pooled = (
                torch.from_numpy(m[part]).to(canvases.device, non_blocking=True)[:, None]
                for m in (packing.inside, packing.pooled_inside)
            )
            probabilities[part], regressions[part] = self._pnet(normalise(canvases[part]), inside, pooled)
            counts.add(len(inside))
        return probabilities, regressions


def _paint(batch: ImageBatch, packing: Packing) -> torch.Tensor:
    """The canvases [K, 3, S, S] float32 in [0, 255]: every tile in its place, zeros between."""
    canvases = torch.zeros((packing.canvases, 3, packing.side, packing.side), device=batch.device)
    tiles: dict[tuple[int, int], list[Tile]] = {}
    for tile in packing.tiles:
        tiles.setdefault((tile.image, tile.level), []).append(tile)
    for group in batch.tables.groups:
        for number, level in enumerate(packing.pyramids[group.images[0]]):
            resampled = area_levels(group, level.height, level.width).permute(0, 3, 1, 2)
            for pixels, image in zip(resampled, group.images, strict=True):
                for t in tiles[image, number]:
                    target = canvases[
                        t.canvas, :, t.canvas_y : t.canvas_y + t.height, t.canvas_x : t.canvas_x + t.width
                    ]
                    target.copy_(pixels[:, t.y : t.y + t.height, t.x : t.x + t.width])
    return canvases


class CompiledCells:
    """By compiled loops, level by level, on as many threads as torch uses. Nothing depends on the batch."""

    def __init__(self, pnet: CanvasPNet, kernels: Kernels) -> None:
        self._kernels = kernels
        self._layers = _layers(pnet)

    def __call__(
        self, batch: ImageBatch, pyramids: Sequence[Sequence[Level]], threshold: float, counts: NetworkCounts
    ) -> Cells:
        jobs = [(image, k, level) for image, levels in enumerate(pyramids) for k, level in enumerate(levels)]
        order = sorted(range(len(jobs)), key=lambda j: -jobs[j][2].height * jobs[j][2].width)  # no long job at the end
        pixels = [batch.host_pixels(image) for image in range(len(batch))]
        found = over_threads(lambda j: self._scan(pixels[jobs[j][0]], jobs[j][2], threshold), order)
        in_order = [part for _, part in sorted(zip(order, found, strict=True), key=lambda each: each[0])]
        counts.add(len(jobs))
        return _joined(jobs, in_order)

    def _scan(self, pixels: ByteArray, level: Level, threshold: float) -> _Found:
        room = max(0, (level.height - 1) // 2 - 4) * max(0, (level.width - 1) // 2 - 4)
        # What is not written takes no memory.
        cells, answers = np.empty((room, 2), np.int32), np.empty((room, 5), np.float32)
        count = self._kernels.scan_level(pixels, level.height, level.width, *self._layers, threshold, cells, answers)
        return cells[:count].copy(), answers[:count].copy()


def _layers(pnet: CanvasPNet) -> list[FloatArray | tuple[FloatArray, FloatArray]]:
    """P-Net's parameters as `detection_kernels.scan_level` takes them."""
    net = pnet.net
    hidden = ((net.conv1, net.prelu1), (net.conv2, net.prelu2), (net.conv3, net.prelu3))
    answers = [(c.weight.flatten(1).numpy(), c.bias.numpy()) for c in (net.conv4_1, net.conv4_2)]
    return [*(packed_layer(*pair) for pair in hidden), *answers]


def _joined(jobs: Sequence[tuple[int, int, Level]], found: Sequence[_Found]) -> Cells:
    counts = [len(cells) for cells, _ in found]
    image, level = (np.repeat(np.array([job[k] for job in jobs], dtype=np.int64), counts) for k in (0, 1))
    scale = np.repeat(np.array([job[2].scale for job in jobs], dtype=np.float32), counts)
    cells = np.concatenate([np.empty((0, 2), np.int32), *(part for part, _ in found)]).astype(np.int64)
    answers = np.concatenate([np.empty((0, 5), np.float32), *(part for _, part in found)])
    columns = (image, level, scale, cells[:, 1], cells[:, 0], answers[:, 0], answers[:, 1:])
    return Cells(*(torch.from_numpy(np.ascontiguousarray(column)) for column in columns))
