"""The pixels of tiles, by area: which source rows and columns each of their rows and columns averages."""

from __future__ import annotations

import torch

from pipeline.extraction.detection.canvases import CanvasMaps, TileTable
from pipeline.extraction.images.summed_area import SummedAreaTables, area_bins


class TilePixels:
    """The tiles' rows one tile after the other, R in all, and their columns, C in all, with what each averages."""

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
    """Where each of things of these lengths begins when they lie one after the other; and of each place, of `total`,
    which of them it belongs to and how far from its beginning it is. int64."""
    first = lengths.cumsum(0) - lengths
    number = torch.arange(len(lengths), device=lengths.device)
    owner = number.repeat_interleave(lengths, output_size=total)
    return first, owner, torch.arange(total, device=lengths.device) - first[owner]
