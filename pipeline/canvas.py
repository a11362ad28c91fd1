"""Packs the pyramids of a batch of images into canvases of one shape.

P-Net then runs once per few canvases, whatever the number of images and scales, and every call has the same
shape: flat memory, and fit for graph capture. A level larger than a canvas is cut into tiles that overlap by
what P-Net needs, so that no cell is lost and none comes twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.types import BoolArray, FloatArray, IntArray

CELL = 12  # pixels that one cell of P-Net's answer sees
STRIDE = 2  # pixels between neighbouring cells
OVERLAP = CELL - STRIDE


@dataclass(frozen=True)
class Level:
    """One step of an image's pyramid: the image resampled to height x width by `scale`."""

    scale: float
    height: int
    width: int


def pyramid(height: int, width: int, min_face_px: int, factor: float) -> list[Level]:
    """The levels of an image, the largest first; none for an image too small to hold a face.

    Scales and sizes as in facenet-pytorch: a face of min_face_px is as large as one cell in the first level.
    """
    scale = CELL / min_face_px
    shorter = min(height, width) * scale
    levels = []
    while shorter >= CELL:
        levels.append(Level(scale, int(height * scale + 1), int(width * scale + 1)))
        scale *= factor
        shorter *= factor
    return levels


@dataclass(frozen=True)
class Tile:
    """A rectangle of one level of one image, and where it lies."""

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
    """Where every tile lies, and what each cell of P-Net's answer means.

    `cell_tile` [K, S/2-5, S/2-5] int32: the tile of each cell, -1 for none. `inside` [K, S-2, S-2] and
    `pooled_inside` [K, S/2-1, S/2-1] bool: see models.mtcnn.CanvasPNet. Per tile: `image`, `level` [t] int64,
    `scale` [t] float32, and `origin` [t, 2] int64, the (row, column) to add to a cell's place in the canvas to
    get its place in the level.
    """

    pyramids: Sequence[Sequence[Level]]
    tiles: list[Tile]
    side: int
    canvases: int
    cell_tile: np.ndarray[tuple[int, ...], np.dtype[np.int32]]
    inside: BoolArray
    pooled_inside: BoolArray
    image: IntArray
    level: IntArray
    scale: FloatArray
    origin: IntArray


def pack(pyramids: Sequence[Sequence[Level]], side: int) -> Packing:
    """Packs the levels of all images into canvases of side x side (`side` even)."""
    tiles = [
        tile
        for image, levels in enumerate(pyramids)
        for k, level in enumerate(levels)
        for tile in _cut(image, k, level, side)
    ]
    tiles, canvases = _place(tiles, side)
    cell_tile = np.full((canvases, side // 2 - 5, side // 2 - 5), -1, dtype=np.int32)
    inside = np.zeros((canvases, side - 2, side - 2), dtype=bool)
    pooled = np.zeros((canvases, side // 2 - 1, side // 2 - 1), dtype=bool)
    for number, t in enumerate(tiles):
        inside[t.canvas, t.canvas_y : t.canvas_y + t.height - 2, t.canvas_x : t.canvas_x + t.width - 2] = True
        row, column = t.canvas_y // 2, t.canvas_x // 2
        rows, columns = (t.height - 1) // 2, (t.width - 1) // 2
        pooled[t.canvas, row : row + rows, column : column + columns] = True
        cell_tile[t.canvas, row : row + rows - 4, column : column + columns - 4] = number
    scales = [pyramids[t.image][t.level].scale for t in tiles]
    origin = [(t.y // 2 - t.canvas_y // 2, t.x // 2 - t.canvas_x // 2) for t in tiles]
    return Packing(
        pyramids,
        tiles,
        side,
        canvases,
        cell_tile,
        inside,
        pooled,
        image=np.array([t.image for t in tiles], dtype=np.int64),
        level=np.array([t.level for t in tiles], dtype=np.int64),
        scale=np.array(scales, dtype=np.float32),
        origin=np.array(origin, dtype=np.int64).reshape(-1, 2),
    )


def _cut(image: int, number: int, level: Level, side: int) -> list[Tile]:
    return [
        Tile(image, number, y, x, height, width)
        for y, height in _spans(level.height, side)
        for x, width in _spans(level.width, side)
    ]


def _spans(length: int, side: int) -> list[tuple[int, int]]:
    """(start, length) of the pieces of one axis. A piece of under 11 pixels would hold no cell."""
    step = side - OVERLAP
    return [(start, min(side, length - start)) for start in range(0, max(length - OVERLAP, 1), step)]


def _place(tiles: Sequence[Tile], side: int) -> tuple[list[Tile], int]:
    """Shelf packing: tiles from tall to low, side by side on shelves, shelves from the top; even positions."""
    placed: list[Tile] = []
    canvas, shelf_y, shelf_height, x = 0, 0, 0, 0
    for tile in sorted(tiles, key=lambda t: (-t.height, -t.width)):
        height, width = tile.height + tile.height % 2, tile.width + tile.width % 2
        if x + width > side:
            shelf_y, x, shelf_height = shelf_y + shelf_height, 0, 0
        if shelf_y + height > side:
            canvas, shelf_y, x, shelf_height = canvas + 1, 0, 0, 0
        shelf_height = max(shelf_height, height)
        placed.append(Tile(tile.image, tile.level, tile.y, tile.x, tile.height, tile.width, canvas, shelf_y, x))
        x += width
    return placed, canvas + 1 if placed else 0
