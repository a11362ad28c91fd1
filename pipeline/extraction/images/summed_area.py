"""Area averages from summed-area tables: on any device, over images of any mix of sizes.

A summed-area table (Crow 1984, "Summed-area tables for texture mapping") gives the sum over any rectangle from its four
corners. The pyramid's levels and the crops of R- and O-Net are averages over rectangles, so one table per image serves
them all, and a batch of rectangles from images of any sizes is one gather, without a loop and without padding.

The tables hold int32 that may wrap around in large images. The difference of corners is exact modulo 2^32, so the sum
is exact for rectangles below 2^31 / 255 = 8.4 million pixels, and every averaged cell here is far smaller.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


class SummedAreaTables:
    """The tables of B images on one device: 12 bytes per pixel, and a transient of 12 bytes per pixel of one image.

    `pixels` [sum of H * W, 3] uint8 holds the images one after the other; `host_sizes` are their (height, width), and
    `sizes` [B, 2] int64 the same on the device.
    """

    def __init__(self, pixels: torch.Tensor, host_sizes: Sequence[tuple[int, int]], sizes: torch.Tensor) -> None:
        self.sizes = sizes
        steps = [(height + 1) * (width + 1) for height, width in host_sizes]
        self._tables = torch.zeros((sum(steps), 3), dtype=torch.int32, device=pixels.device)
        images = torch.split(pixels, [height * width for height, width in host_sizes])
        for table, image, (height, width) in zip(torch.split(self._tables, steps), images, host_sizes, strict=True):
            sums = image.view(height, width, 3).cumsum(0, dtype=torch.int32).cumsum(1, dtype=torch.int32)
            table.view(height + 1, width + 1, 3)[1:, 1:] = sums
        base = np.cumsum([0, *steps[:-1]])[: len(steps)]  # where each image's table begins
        self._base = torch.from_numpy(base).to(pixels.device, non_blocking=True)

    def rows(self, image: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        """The places in the tables where rows of images begin: int64 [n] each, for `sums`."""
        return self._base[image] + row * (self.sizes[image, 1] + 1)

    def sums(self, above: torch.Tensor, left: torch.Tensor, below: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """The sums over the rectangles between these `rows` and columns, half open: int64 arguments of shapes that
        broadcast to [...] -> int32 [..., 3]."""
        sums = self._at(below + right) - self._at(above + right)
        return sums.sub_(self._at(below + left)).add_(self._at(above + left))

    def _at(self, index: torch.Tensor) -> torch.Tensor:
        return self._tables.index_select(0, index.flatten()).view(*index.shape, 3)

    def area_crops(self, image: torch.Tensor, boxes: torch.Tensor, size: int) -> torch.Tensor:
        """See `ImageBatch.area_crops`."""
        x0, y0, x1, y1 = boxes.unbind(1)
        top, bottom = _bins(y0, y1, size)
        left, right = _bins(x0, x1, size)
        above, below = self.rows(image[:, None], top), self.rows(image[:, None], bottom)
        sums = self.sums(above[:, :, None], left[:, None, :], below[:, :, None], right[:, None, :])
        area = (bottom - top)[:, :, None] * (right - left)[:, None, :]
        return (sums.float() / area.unsqueeze(-1)).permute(0, 3, 1, 2).contiguous()


def area_bins(place: torch.Tensor, length: torch.Tensor, size: torch.Tensor | int) -> tuple[torch.Tensor, torch.Tensor]:
    """The source pixels [first, last) that output pixel `place` averages when `length` pixels become `size`; int64, of
    shapes that broadcast."""
    return place * length // size, ((place + 1) * length + size - 1) // size


def _bins(start: torch.Tensor, end: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The source pixels [first, last) of each of `size` output pixels: [n, size] int64 each."""
    first, last = area_bins(torch.arange(size, device=start.device), (end - start)[:, None], size)
    return start[:, None] + first, start[:, None] + last
