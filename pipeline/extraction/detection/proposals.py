"""P-Net over the pyramids of a batch: the cells where a face may be.

The first stage of Zhang et al. 2016, "Joint Face Detection and Alignment Using Multitask Cascaded Convolutional
Networks". torch's network runs over canvases of one shape that hold the levels of many images, on any device. Compiled
loops run over each level by itself, on the CPU, where the cache matters most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from pipeline.extraction.detection.networks import CanvasPNet, packed_layers
from pipeline.extraction.detection.pyramid import Canvases, Level, Packing, TileTable, pack, paint_by_torch
from pipeline.extraction.images.batch import ImageBatch
from pipeline.runtime.device import prefers_few_shapes
from pipeline.runtime.optional_kernels import SelfCheck, if_checked
from pipeline.runtime.stage_times import CallCounts
from pipeline.runtime.threads import over_threads
from pipeline.types import ByteArray, FloatArray

CANVAS_SIDE = 512
# By type of device; where few shapes are preferred, the last call has empty canvases. CUDA's is not measured but
# bounded by memory (some 30 MB a canvas).
CANVASES_PER_CALL: Final = {"cpu": 4, "cuda": 16}
# The likely cells of one level: (row, column) [n, 2], and probability and regression [n, 5].
_LevelCells: TypeAlias = tuple[npt.NDArray[np.int32], FloatArray]
_ScanLevel: TypeAlias = Callable[[ByteArray, Level, float], _LevelCells]  # of an image, above a threshold


@if_checked
def load_painter() -> tuple[ModuleType, SelfCheck]:
    """The kernel that paints canvases on CUDA."""
    from pipeline.extraction.detection import canvas_kernel

    return canvas_kernel, canvas_kernel.self_check


@dataclass(frozen=True)
class Cells:
    """n cells of P-Net's output, on the batch's device."""

    image: torch.Tensor  # [n] int64
    level: torch.Tensor  # [n] int64
    scale: torch.Tensor  # [n] float32, of the level
    column: torch.Tensor  # [n] int64, in the level
    row: torch.Tensor  # [n] int64
    probability: torch.Tensor  # [n] float32
    regression: torch.Tensor  # [n, 4] float32, shares of the cell's sides


# Finds the cells of all levels with a probability of a face of at least a threshold.
FindCells: TypeAlias = Callable[[ImageBatch, Sequence[Sequence[Level]], float, CallCounts], Cells]


def cell_finder(pnet: CanvasPNet, kernels: ModuleType | None) -> FindCells:
    """P-Net in compiled loops if there are `kernels`, else in torch."""
    if kernels is None:
        return partial(_canvas_cells, pnet)
    net = pnet.net
    outputs = [(c.weight.flatten(1).numpy(), c.bias.numpy()) for c in (net.conv4_1, net.conv4_2)]
    layers = [*packed_layers(net, 3), *outputs]  # as `network_kernels.scan_level` takes them

    def scan(pixels: ByteArray, level: Level, threshold: float) -> _LevelCells:
        room = max(0, (level.height - 1) // 2 - 4) * max(0, (level.width - 1) // 2 - 4)
        # Pages that are never written take no memory.
        cells, answers = np.empty((room, 2), np.int32), np.empty((room, 5), np.float32)
        count = kernels.scan_level(pixels, level.height, level.width, *layers, threshold, cells, answers)
        return cells[:count].copy(), answers[:count].copy()

    return partial(_compiled_cells, scan)


def _canvas_cells(
    pnet: CanvasPNet, batch: ImageBatch, pyramids: Sequence[Sequence[Level]], threshold: float, counts: CallCounts
) -> Cells:
    """Runs torch's P-Net, `CANVASES_PER_CALL` canvases at a time."""
    packing = pack(pyramids, CANVAS_SIDE)
    tiles = TileTable(packing, batch.device)
    cells = []
    for first, canvases in _painted(batch, packing, tiles):
        cells.append((canvases.cells, *pnet(canvases.pixels, canvases.inside, canvases.pooled_inside)))
        counts.add(min(len(canvases.cells), packing.canvases - first))
    if not cells:
        empty, floats = tiles.table[:, 0], tiles.scale
        return Cells(empty, empty, floats, empty, empty, floats, floats.new_zeros((0, 4)))
    tile, probability, regression = (torch.cat(column) for column in zip(*cells, strict=True))
    canvas, y, x = ((probability >= threshold) & (tile >= 0)).nonzero().unbind(1)  # the only wait
    tile = tile[canvas, y, x]
    image, level, row, column = tiles.places(tile, y, x)
    found = probability[canvas, y, x], regression[canvas, :, y, x]
    return Cells(image, level, tiles.scale[tile], column, row, *found)


def _painted(batch: ImageBatch, packing: Packing, tiles: TileTable) -> Iterator[tuple[int, Canvases]]:
    """The canvases of each call, and the number of the first."""
    step, count = CANVASES_PER_CALL[batch.device.type], packing.canvases
    if prefers_few_shapes(batch.device):
        count += -count % step
    starts = range(0, count, step)
    if kernel := load_painter(batch.device):
        return ((start, kernel.paint(batch, tiles, start, min(start + step, count))) for start in starts)
    painted = paint_by_torch(batch, packing, count)
    return ((start, painted[start : start + step]) for start in starts)


def _compiled_cells(
    scan: _ScanLevel, batch: ImageBatch, pyramids: Sequence[Sequence[Level]], threshold: float, counts: CallCounts
) -> Cells:
    """Runs the compiled P-Net level by level, on as many threads as torch uses. The answers do not depend on the
    batch."""
    jobs = [(image, k, level) for image, levels in enumerate(pyramids) for k, level in enumerate(levels)]
    pixels = [batch.host_pixels(image) for image in range(len(batch))]
    order = sorted(range(len(jobs)), key=lambda j: -jobs[j][2].height * jobs[j][2].width)  # no long job at the end
    found = over_threads(lambda job: scan(pixels[jobs[job][0]], jobs[job][2], threshold), order)
    by_job = dict(zip(order, found, strict=True))
    counts.add(len(jobs))
    return _joined(jobs, [by_job[j] for j in range(len(jobs))])


def _joined(jobs: Sequence[tuple[int, int, Level]], parts: Sequence[_LevelCells]) -> Cells:
    """The cells of all jobs: (image, level's number, level)."""
    counts = [len(cells) for cells, _ in parts]
    image, level = (np.repeat(np.array([job[k] for job in jobs], dtype=np.int64), counts) for k in (0, 1))
    scale = np.repeat(np.array([job[2].scale for job in jobs], dtype=np.float32), counts)
    cells = np.concatenate([np.empty((0, 2), np.int32), *(part for part, _ in parts)]).astype(np.int64)
    answers = np.concatenate([np.empty((0, 5), np.float32), *(part for _, part in parts)])
    columns = (image, level, scale, cells[:, 1], cells[:, 0], answers[:, 0], answers[:, 1:])
    return Cells(*(torch.from_numpy(np.ascontiguousarray(column)) for column in columns))
