"""Area averages from summed-area tables: on any device, over images of any mix of sizes.

A summed-area table (Crow 1984, "Summed-area tables for texture mapping") gives the sum over any rectangle from
its four corners. The pyramid's levels and the crops of R- and O-Net are averages over rectangles, so one
table per image serves them all, and a batch of rectangles from images of any sizes is one gather, without a loop
and without padding.

The tables hold int32 that may wrap around in large images; the difference of corners is exact modulo 2^32, so
the sum over a rectangle is exact as long as the rectangle is below 2^31 / 255 = 8.4 million pixels, and every
averaged cell here is far smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch


@dataclass(frozen=True)
class SizeGroup:
    """Images of one size, which lie one after the other in the flat table."""

    images: tuple[int, ...]  # positions in the batch
    height: int
    width: int
    tables: torch.Tensor  # [len(images), height + 1, width + 1, 3] int32, a view


class SummedAreaTables:
    """The tables of B images on one device: 12 bytes per pixel, and a transient of 12 bytes per pixel of one image.

    `pixels` [sum of H * W, 3] uint8 holds the images one after the other in `order`, those of one size together;
    `host_sizes` is (height, width) of each by its position in the batch, `sizes` [B, 2] int64 the same on the device.
    """

    def __init__(
        self,
        pixels: torch.Tensor,
        order: Sequence[int],
        host_sizes: Sequence[tuple[int, int]],
        sizes: torch.Tensor,
    ) -> None:
        self._sizes = sizes
        rows = sum((h + 1) * (w + 1) for h, w in host_sizes)
        self._tables = torch.zeros((rows, 3), dtype=torch.int32, device=pixels.device)
        base = torch.zeros(len(host_sizes), dtype=torch.int64)
        self.groups = self._fill(pixels, order, host_sizes, base)
        self._base = base.to(pixels.device, non_blocking=True)

    def _fill(
        self, pixels: torch.Tensor, order: Sequence[int], host_sizes: Sequence[tuple[int, int]], base: torch.Tensor
    ) -> list[SizeGroup]:
        """Sums up the tables; writes where each image's table begins."""
        groups: list[SizeGroup] = []
        table_at = pixel_at = 0
        for (height, width), same_size in groupby(order, key=lambda i: host_sizes[i]):
            members = tuple(same_size)
            count, step = height * width, (height + 1) * (width + 1)
            shape = (len(members), height + 1, width + 1, 3)
            tables = self._tables[table_at : table_at + len(members) * step].view(shape)
            for k, member in enumerate(members):
                base[member] = table_at + k * step
                image = pixels[pixel_at + k * count :][:count].view(height, width, 3)
                tables[k, 1:, 1:] = image.cumsum(0, dtype=torch.int32).cumsum(1, dtype=torch.int32)
            groups.append(SizeGroup(members, height, width, tables))
            table_at, pixel_at = table_at + len(members) * step, pixel_at + len(members) * count
        return groups

    def _corner_sums(self, image: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The tables' values at the corners y [n, a], x [n, b] of image [n]: [n, a, b, 3] int32."""
        stride = self._sizes[image, 1] + 1
        index = self._base[image][:, None, None] + y[:, :, None] * stride[:, None, None] + x[:, None, :]
        return self._tables.index_select(0, index.flatten()).view(*index.shape, 3)

    def area_crops(self, image: torch.Tensor, boxes: torch.Tensor, size: int) -> torch.Tensor:
        """See `ImageBatch.area_crops`."""
        x0, y0, x1, y1 = boxes.unbind(1)
        top, bottom = _bins(y0, y1, size)
        left, right = _bins(x0, x1, size)
        sums = self._corner_sums(image, bottom, right) - self._corner_sums(image, top, right)
        sums -= self._corner_sums(image, bottom, left) - self._corner_sums(image, top, left)
        area = (bottom - top)[:, :, None] * (right - left)[:, None, :]
        return (sums.float() / area.unsqueeze(-1)).permute(0, 3, 1, 2).contiguous()


def area_levels(group: SizeGroup, height: int, width: int) -> torch.Tensor:
    """All images of the group resampled by area to height x width: [n, height, width, 3] float32 in [0, 255]."""
    device = group.tables.device
    top, bottom = _level_bins(group.height, height, device)
    left, right = _level_bins(group.width, width, device)
    rows = group.tables.index_select(1, bottom) - group.tables.index_select(1, top)
    sums = rows.index_select(2, right) - rows.index_select(2, left)
    area = (bottom - top)[:, None] * (right - left)[None, :]
    return sums.float() / area.unsqueeze(-1)


def _level_bins(length: int, size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    i = torch.arange(size, device=device)
    return (i * length) // size, ((i + 1) * length + size - 1) // size


def _bins(start: torch.Tensor, end: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The source pixels [first, last) of each of `size` output pixels: [n, size] int64 each."""
    i = torch.arange(size, device=start.device)
    length = (end - start)[:, None]
    first = start[:, None] + (i * length) // size
    last = start[:, None] + ((i + 1) * length + size - 1) // size
    return first, last
