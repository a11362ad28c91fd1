"""The image pyramids of a batch, and the canvases of one shape on which torch's P-Net sees them.

P-Net then runs once per few canvases, whatever the number of images and scales, and every call has the same shape:
constant memory, and fit for graph capture. A level larger than a canvas is cut into tiles that overlap by what P-Net
needs, so that every cell comes exactly once.

A batch has hundreds of canvases with dozens of tiles each; with one operation per tile, launching them would take
longer than the arithmetic. So every pixel of a canvas looks up the tile that it shows, for all tiles at once, on any
device, without waiting for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from pipeline.extraction.images.summed_area import SummedAreaTables, area_bins

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


class Tile(NamedTuple):
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
        placed.append(tile._replace(canvas=canvas, canvas_y=shelf_y, canvas_x=x))
        x += width
    return placed, canvas + 1 if placed else 0


class TileTable:
    """The tiles of a packing as columns on a device, [t] each: int64, except `scale`, float32."""

    def __init__(self, packing: Packing, device: torch.device) -> None:
        levels = [packing.pyramids[tile.image][tile.level] for tile in packing.tiles]
        rows = [(*tile, level.height, level.width) for tile, level in zip(packing.tiles, levels, strict=True)]
        table = np.array(rows, dtype=np.int64).reshape(-1, 11).T.copy()
        columns = torch.from_numpy(table).to(device, non_blocking=True)
        self.image, self.level, self.y, self.x, self.height, self.width, *others = columns
        self.canvas, self.canvas_y, self.canvas_x, self.level_height, self.level_width = others
        scales = np.array([level.scale for level in levels], dtype=np.float32)
        self.scale = torch.from_numpy(scales).to(device, non_blocking=True)
        # On the host: the tiles' canvases in ascending order, and the total of their rows and columns.
        self.canvases = [tile.canvas for tile in packing.tiles]
        self.rows = sum(tile.height for tile in packing.tiles)
        self.columns = sum(tile.width for tile in packing.tiles)
        self.side = packing.side
        self.device = device

    def origin(self, tile: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The offset from a cell's row and column on its canvas to those in its level; [n] each."""
        return (self.y[tile] - self.canvas_y[tile]) // 2, (self.x[tile] - self.canvas_x[tile]) // 2


class CanvasMaps:
    """Maps of the canvases first .. end - 1 of a packing, P of side S."""

    def __init__(self, tiles: TileTable, first: int, end: int) -> None:
        self._tiles = tiles
        self._slots = _slots(tiles, first, end)
        # For each pixel its tile, or -1, and its row and column there: int64 [P, S, S].
        self.tile = self._slots.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)
        place = torch.arange(tiles.side, device=tiles.device)
        self.row = place[:, None] - tiles.canvas_y[self.tile]
        self.column = place - tiles.canvas_x[self.tile]

    def shown(self) -> torch.Tensor:
        """Whether a pixel lies in its tile: bool [P, S, S]. `tile` alone does not say: a pixel next to a tile of odd
        sides has its number, too."""
        return self._within(margin=0)

    def cells(self) -> torch.Tensor:
        """The tile of each cell of P-Net's output, int64 [P, S/2-5, S/2-5], -1 for none."""
        edge = self._tiles.side // 2 - 5
        return torch.where(self._pooled(margin=4), self._slots, -1)[:, :edge, :edge]

    def inside(self) -> tuple[torch.Tensor, torch.Tensor]:
        """bool [P, 1, S-2, S-2] and [P, 1, S/2-1, S/2-1]: see `networks.CanvasPNet`."""
        return self._within(margin=2)[:, None, :-2, :-2], self._pooled(margin=0)[:, None, :-1, :-1]

    def _within(self, margin: int) -> torch.Tensor:
        """Whether a pixel lies in a tile, at least `margin` pixels from its end: bool [P, S, S]."""
        height, width = self._tiles.height[self.tile] - margin, self._tiles.width[self.tile] - margin
        within: torch.Tensor = (self.tile >= 0) & (self.row < height) & (self.column < width)
        return within

    def _pooled(self, margin: int) -> torch.Tensor:
        """The same for the pooling's output, [P, S/2, S/2]: one value for two pixels of the first convolution."""
        tiles, slots = self._tiles, self._slots
        row, column = self.row[:, ::2, ::2] // 2, self.column[:, ::2, ::2] // 2
        rows, columns = (tiles.height[slots] - 1) // 2 - margin, (tiles.width[slots] - 1) // 2 - margin
        within: torch.Tensor = (slots >= 0) & (row < rows) & (column < columns)
        return within


def _slots(tiles: TileTable, first: int, end: int) -> torch.Tensor:
    """The tile of each square of 2 x 2 pixels: [P, S/2, S/2] int64, -1 for none. Tiles begin at even positions, and the
    pixels next to the last row or column of an odd one are empty.

    Each tile's number is written to its four corners with alternating signs; running sums spread it over the tile.
    """
    part = slice(bisect_left(tiles.canvases, first), bisect_left(tiles.canvases, end))
    top, left = tiles.canvas_y[part] // 2, tiles.canvas_x[part] // 2
    bottom, right = top + (tiles.height[part] + 1) // 2, left + (tiles.width[part] + 1) // 2
    number = torch.arange(part.start + 1, part.stop + 1, device=tiles.device)
    side = tiles.side // 2 + 1
    canvas = (tiles.canvas[part] - first) * side
    corners = torch.zeros((end - first) * side * side, dtype=torch.int64, device=tiles.device)
    for row, column, sign in ((top, left, 1), (top, right, -1), (bottom, left, -1), (bottom, right, 1)):
        corners.scatter_add_(0, (canvas + row) * side + column, sign * number)
    return corners.view(-1, side, side).cumsum(1).cumsum(2)[:, :-1, :-1] - 1


class TilePixels:
    """The pixels of tiles, by area: the source pixels that each row and column of a tile averages.

    The tiles' rows, R in all, are listed one tile after the other, and so are their columns, C in all.
    """

    def __init__(self, tiles: TileTable, tables: SummedAreaTables) -> None:
        self._tables = tables
        self._first_row, tile, row = _unrolled(tiles.height, tiles.rows)
        image = tiles.image[tile]
        top, bottom = area_bins(tiles.y[tile] + row, tables.sizes[image, 0], tiles.level_height[tile])
        self._above, self._below = tables.rows(image, top), tables.rows(image, bottom)  # [R] int64
        self._height = bottom - top
        self._first_column, tile, column = _unrolled(tiles.width, tiles.columns)
        image = tiles.image[tile]
        self._left, self._right = area_bins(
            tiles.x[tile] + column, tables.sizes[image, 1], tiles.level_width[tile]
        )  # [C]
        self._width = self._right - self._left

    def paint(self, maps: CanvasMaps) -> torch.Tensor:
        """The canvases [P, 3, S, S] float32 in [0, 255]: every tile in its place, zeros between."""
        shown = maps.shown()
        row = torch.where(shown, self._first_row[maps.tile] + maps.row, 0)
        column = torch.where(shown, self._first_column[maps.tile] + maps.column, 0)
        above, below, left, right = self._above[row], self._below[row], self._left[column], self._right[column]
        sums = self._tables.sums(above, left, below, right).float()
        means = sums.div_((self._height[row] * self._width[column]).unsqueeze(-1))
        return means.mul_(shown.unsqueeze(-1)).permute(0, 3, 1, 2).contiguous()


def _unrolled(lengths: torch.Tensor, total: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pieces of these lengths in a row, `total` long: where each piece begins, [t]; and for each place in the row,
    [total], its piece and its offset from that piece's beginning. int64."""
    first = lengths.cumsum(0) - lengths
    number = torch.arange(len(lengths), device=lengths.device)
    owner = number.repeat_interleave(lengths, output_size=total)
    return first, owner, torch.arange(total, device=lengths.device) - first[owner]
