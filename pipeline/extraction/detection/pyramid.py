"""The image pyramids of a batch, and how they are packed into canvases of one shape.

P-Net then runs once per few canvases, whatever the number of images and scales, and every call has the same shape:
constant memory, and fit for graph capture. A level larger than a canvas is cut into tiles that overlap by what P-Net
needs, so that every cell comes exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

CELL = 12  # pixels that one cell of P-Net's output sees
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
    """A rectangle of one level of one image, and its place on a canvas."""

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
    """The place of every tile on `canvases` canvases of side x side; the tiles are in the order of their canvas."""

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
    """(start, length) of the pieces of one axis. A piece under 11 pixels would hold no cell."""
    step = side - OVERLAP
    return [(start, min(side, length - start)) for start in range(0, max(length - OVERLAP, 1), step)]


def _place(tiles: Sequence[Tile], side: int) -> tuple[list[Tile], int]:
    """Shelf packing at even positions: tiles from tall to low, side by side on shelves, shelves from the top down."""
    placed: list[Tile] = []
    canvas, shelf_y, shelf_height, x = 0, 0, 0, 0
    for tile in sorted(tiles, key=lambda t: (-t.height, -t.width)):
        height, width = tile.height + tile.height % 2, tile.width + tile.width % 2
        if x + width > side:
            shelf_y, x, shelf_height = shelf_y + shelf_height, 0, 0
        if shelf_y + height > side:
            canvas, shelf_y, x, shelf_height = canvas + 1, 0, 0, 0
        shelf_height = max(shelf_height, height)
        placed.append(replace(tile, canvas=canvas, canvas_y=shelf_y, canvas_x=x))
        x += width
    return placed, canvas + 1 if placed else 0
