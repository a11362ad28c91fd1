"""Canvases of one shape that hold a batch's pyramids for torch's P-Net.

P-Net runs once per few canvases, always with one shape: constant memory, and fit for graph capture. Larger levels are
cut into tiles that overlap by P-Net's needs, so that every cell occurs once. On CUDA one launch paints the hundreds of
tiles of a call (`canvas_kernel`); tile by tile (`paint_by_torch`), launching would take longer than running.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from pipeline.extraction.detection.pyramid import CELL, STRIDE, Level
from pipeline.extraction.images.torch_batch import TorchBatch

OVERLAP = CELL - STRIDE


def normalise(pixels: torch.Tensor) -> torch.Tensor:
    """[0, 255] -> about [-1, 1], the networks' training range."""
    return (pixels - 127.5) * 0.0078125


class Tile(NamedTuple):
    """A rectangle of an image's level, and its place on a canvas."""

    image: int
    level: int
    y: int  # in the level
    x: int
    height: int
    width: int
    canvas: int = -1
    canvas_y: int = 0
    canvas_x: int = 0


@dataclass(frozen=True)
class Packing:
    """The tiles on `canvases` canvases of side x side, in the order of canvases."""

    pyramids: Sequence[Sequence[Level]]
    tiles: list[Tile]
    side: int
    canvases: int


def pack(pyramids: Sequence[Sequence[Level]], side: int) -> Packing:
    """Packs the levels of all images into canvases of side x side (`side` even)."""
    tiles = [
        Tile(image, k, y, x, height, width)
        for image, levels in enumerate(pyramids)
        for k, level in enumerate(levels)
        for y, height in _spans(level.height, side)
        for x, width in _spans(level.width, side)
    ]
    placed, canvases = _place(tiles, side)
    return Packing(pyramids, placed, side, canvases)


def _spans(length: int, side: int) -> list[tuple[int, int]]:
    """(start, length) of an axis's pieces, of at least 11 pixels: smaller ones have no cell."""
    step = side - OVERLAP
    return [(start, min(side, length - start)) for start in range(0, max(length - OVERLAP, 1), step)]


def _place(tiles: Sequence[Tile], side: int) -> tuple[list[Tile], int]:
    """Shelf packing at even positions: tiles by falling height, shelves from the top."""
    placed: list[Tile] = []
    canvas, shelf_y, shelf_height, x = 0, 0, 0, 0
    for tile in sorted(tiles, key=lambda t: (-t.height, -t.width)):
        height, width = tile.height + tile.height % 2, tile.width + tile.width % 2
        if x + width > side:
            shelf_y, x, shelf_height = shelf_y + shelf_height, 0, 0
        if shelf_y + height > side:
            canvas, shelf_y, x, shelf_height = canvas + 1, 0, 0, 0
        shelf_height = max(shelf_height, height)
        placed.append(tile._replace(canvas=canvas, canvas_y=shelf_y, canvas_x=x))
        x += width
    return placed, canvas + 1 if placed else 0


class TileTable:
    """A packing's tiles on a device."""

    def __init__(self, packing: Packing, device: torch.device) -> None:
        levels = [packing.pyramids[tile.image][tile.level] for tile in packing.tiles]
        rows = [(*tile, level.height, level.width) for tile, level in zip(packing.tiles, levels, strict=True)]
        # [t, 11] int64: the fields of `Tile`, and its level's height and width.
        table = torch.from_numpy(np.array(rows, dtype=np.int64).reshape(-1, 11))
        self.table = table.to(device, non_blocking=True)
        scales = np.array([level.scale for level in levels], dtype=np.float32)
        self.scale = torch.from_numpy(scales).to(device, non_blocking=True)  # [t]
        # On the host: the tiles' canvases in ascending order, and their pixel counts.
        self.canvases = [tile.canvas for tile in packing.tiles]
        self.areas = [tile.height * tile.width for tile in packing.tiles]
        self.side = packing.side

    def places(self, tile: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Image, level, row and column there of cells of these tiles at canvas positions; [n] int64 each."""
        image, level, y, x, _, _, _, canvas_y, canvas_x, _, _ = self.table[tile].unbind(1)
        return image, level, row + (y - canvas_y) // 2, column + (x - canvas_x) // 2


@dataclass(frozen=True)
class Canvases:
    """P canvases of side S, with masks for `torch_networks.CanvasPNet`."""

    pixels: torch.Tensor  # [P, 3, S, S] float32, normalised, 0 between tiles
    # bool: outputs of the first convolution and the pooling that depend on one tile alone.
    inside: torch.Tensor  # [P, 1, S - 2, S - 2]
    pooled_inside: torch.Tensor  # [P, 1, S / 2 - 1, S / 2 - 1]
    cells: torch.Tensor  # [P, S / 2 - 5, S / 2 - 5] int64: the tile of each cell of the network's output, -1 for none

    @classmethod
    def empty(cls, count: int, side: int, device: torch.device) -> Canvases:
        return cls(
            torch.zeros((count, 3, side, side), device=device),
            torch.zeros((count, 1, side - 2, side - 2), dtype=torch.bool, device=device),
            torch.zeros((count, 1, side // 2 - 1, side // 2 - 1), dtype=torch.bool, device=device),
            torch.full((count, side // 2 - 5, side // 2 - 5), -1, device=device),
        )

    def __getitem__(self, part: slice) -> Canvases:
        return Canvases(self.pixels[part], self.inside[part], self.pooled_inside[part], self.cells[part])


def paint_by_torch(batch: TorchBatch, packing: Packing, count: int) -> Canvases:
    """`count` canvases, the last ones empty, painted tile by tile."""
    canvases = Canvases.empty(count, packing.side, batch.device)
    numbers = defaultdict(list)
    for number, tile in enumerate(packing.tiles):
        numbers[tile.image, tile.level].append(number)
    for (image, k), members in numbers.items():
        level = packing.pyramids[image][k]
        pixels = normalise(batch.area_resized(image, (level.height, level.width)))
        for number in members:
            _, _, y, x, height, width, canvas, top, left = packing.tiles[number]
            tile_pixels = pixels[:, y : y + height, x : x + width]
            canvases.pixels[canvas, :, top : top + height, left : left + width] = tile_pixels
            canvases.inside[canvas, 0, top : top + height - 2, left : left + width - 2] = True
            top, left, rows, columns = top // 2, left // 2, (height - 1) // 2, (width - 1) // 2
            canvases.pooled_inside[canvas, 0, top : top + rows, left : left + columns] = True
            canvases.cells[canvas, top : top + rows - 4, left : left + columns - 4] = number
    return canvases
