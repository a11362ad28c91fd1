"""Images of any mix of sizes in one batch on a device, as summed-area tables.

A summed-area table (Crow 1984, "Summed-area tables for texture mapping") gives the sum over any rectangle from
its four corners. The pyramid's levels and the crops of R- and O-Net are averages over rectangles, so one
table per image serves them all, and a batch of rectangles from images of any sizes is one gather, without a loop
and without padding.

Where small faces are enlarged, averaging is not enough; `smooth_crops` interpolates, from the
pixels themselves, and so does `sample`, at any points: for faces that are turned upright.

The tables hold int32 that may wrap around in large images; the difference of corners is exact modulo 2^32, so
the sum over a rectangle is exact as long as the rectangle is below 2^31 / 255 = 8.4 million pixels, and every
averaged cell here is far smaller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from pipeline.types import ByteArray, IntArray

_SMOOTH_PIXELS = 4_000_000  # source pixels resampled at once by `smooth_crops`: about 50 MB


@dataclass(frozen=True)
class SizeGroup:
    """Images of one size, which lie one after the other in the flat table."""

    images: tuple[int, ...]  # positions in the batch
    height: int
    width: int
    tables: torch.Tensor  # [len(images), height + 1, width + 1, 3] int32, a view


class ImageBatch:
    """B upright RGB images on `device`.

    `images`: arrays [H, W, 3] uint8, sizes as they come. `sizes` is [B, 2] int64 (height, width) on the device.
    Memory: 15 bytes per pixel on the device, and a transient of 12 bytes per pixel of one image.
    """

    def __init__(self, images: Sequence[ByteArray], device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.host_sizes = [(int(i.shape[0]), int(i.shape[1])) for i in images]
        order = sorted(range(len(images)), key=lambda i: self.host_sizes[i])
        flat = [torch.from_numpy(images[i]).view(-1, 3) for i in order]
        pixels = torch.cat(flat) if flat else torch.zeros((0, 3), dtype=torch.uint8)
        self._pixels = pixels.to(self.device, non_blocking=True)  # [sum of H * W, 3], ordered by size
        rows = sum((h + 1) * (w + 1) for h, w in self.host_sizes)
        self._tables = torch.zeros((rows, 3), dtype=torch.int32, device=self.device)
        table_base = np.zeros(len(images), dtype=np.int64)
        pixel_base = np.zeros(len(images), dtype=np.int64)
        self.groups = self._fill(order, table_base, pixel_base)
        self._table_base, self._pixel_base = self._to_device(table_base), self._to_device(pixel_base)
        self.sizes = self._to_device(np.array(self.host_sizes, dtype=np.int64).reshape(-1, 2))

    def __len__(self) -> int:
        return len(self.host_sizes)

    def _to_device(self, array: IntArray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def _fill(self, order: Sequence[int], table_base: IntArray, pixel_base: IntArray) -> list[SizeGroup]:
        """Sums up the tables; writes where each image's table and pixels begin."""
        groups: list[SizeGroup] = []
        table_at = pixel_at = 0
        for (height, width), same_size in groupby(order, key=lambda i: self.host_sizes[i]):
            members = tuple(same_size)
            count, step = height * width, (height + 1) * (width + 1)
            shape = (len(members), height + 1, width + 1, 3)
            tables = self._tables[table_at : table_at + len(members) * step].view(shape)
            for k, member in enumerate(members):
                table_base[member], pixel_base[member] = table_at + k * step, pixel_at + k * count
                pixels = self._pixels[pixel_at + k * count :][:count].view(height, width, 3)
                tables[k, 1:, 1:] = pixels.cumsum(0, dtype=torch.int32).cumsum(1, dtype=torch.int32)
            groups.append(SizeGroup(members, height, width, tables))
            table_at, pixel_at = table_at + len(members) * step, pixel_at + len(members) * count
        return groups

    def corner_sums(self, image: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The tables' values at the corners y [n, a], x [n, b] of image [n]: [n, a, b, 3] int32."""
        stride = self.sizes[image, 1] + 1
        index = self._table_base[image][:, None, None] + y[:, :, None] * stride[:, None, None] + x[:, None, :]
        return self._tables.index_select(0, index.flatten()).view(*index.shape, 3)

    def area_crops(self, image: torch.Tensor, boxes: torch.Tensor, size: int) -> torch.Tensor:
        """Cuts rectangles and resamples each to size x size by area: [n, 3, size, size] float32 in [0, 255].

        `image` [n] int64; `boxes` [n, 4] int64 xyxy, half open, inside the image and not empty. Equal to
        adaptive average pooling of the cut rectangle (torch.nn.functional.interpolate with mode="area").
        """
        x0, y0, x1, y1 = boxes.unbind(1)
        top, bottom = _bins(y0, y1, size)
        left, right = _bins(x0, x1, size)
        sums = self.corner_sums(image, bottom, right) - self.corner_sums(image, top, right)
        sums -= self.corner_sums(image, bottom, left) - self.corner_sums(image, top, left)
        area = (bottom - top)[:, :, None] * (right - left)[:, None, :]
        return (sums.float() / area.unsqueeze(-1)).permute(0, 3, 1, 2).contiguous()

    def smooth_crops(self, image: torch.Tensor, boxes: torch.Tensor, size: int) -> torch.Tensor:
        """Like `area_crops`, with bilinear interpolation where the rectangle is smaller than size x size.

        Each output pixel is the average over a window of max(1, scale) source pixels about its centre, cut off
        at the rectangle's edge: the exact area average when shrinking, and linear interpolation when enlarging
        (a window one pixel wide across two pixels weighs them linearly). Two matrix products per rectangle, of
        its rows and of its columns. Waits once for the device.
        """
        out = torch.empty((len(image), 3, size, size), device=self.device)
        sides = (boxes[:, 2:] - boxes[:, :2]).amax(1).tolist()
        largest_first = sorted(range(len(sides)), key=lambda i: -sides[i])
        while largest_first:
            extent = sides[largest_first[0]]
            count = max(1, _SMOOTH_PIXELS // extent**2)
            part, largest_first = largest_first[:count], largest_first[count:]
            index = torch.tensor(part).to(self.device, non_blocking=True)
            out[index] = self._smooth(image[index], boxes[index], extent, size)
        return out

    def sample(self, image: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        """The images [n] at `points` [n, m, 2] float32 (x, y), interpolated: [n, m, 3] float32 in [0, 255].

        Bilinear; pixel centres lie at whole numbers, and beyond the image's edge all is black. What torch's
        `grid_sample` (zeros, align_corners) and OpenCV's `warpAffine` (linear, constant border) do, here in one
        gather for images of any sizes.
        """
        height, width = self.sizes[image][:, :, None].unbind(1)
        # From one pixel outside on all is black, and no number is too large to be an index.
        x = torch.minimum(points[:, :, 0].clamp(min=-1), width)
        y = torch.minimum(points[:, :, 1].clamp(min=-1), height)
        base = self._pixel_base[image][:, None]
        out = torch.zeros((*x.shape, 3), device=self.device)
        for column, across in _neighbours(x, width):
            for row, down in _neighbours(y, height):
                pixels = self._pixels.index_select(0, (base + row * width + column).flatten())
                out += pixels.view(*x.shape, 3) * (across * down).unsqueeze(-1)
        return out

    def _smooth(self, image: torch.Tensor, boxes: torch.Tensor, extent: int, size: int) -> torch.Tensor:
        """`smooth_crops` for rectangles of at most extent x extent, padded to that."""
        x0, y0, x1, y1 = boxes.unbind(1)
        i = torch.arange(extent, device=self.device)
        y = torch.minimum(y0[:, None] + i, y1[:, None] - 1)
        x = torch.minimum(x0[:, None] + i, x1[:, None] - 1)
        stride = self.sizes[image, 1]
        index = self._pixel_base[image][:, None, None] + y[:, :, None] * stride[:, None, None] + x[:, None, :]
        pixels = self._pixels.index_select(0, index.flatten()).view(len(image), extent, extent * 3).float()
        rows = torch.bmm(_window_weights(y1 - y0, extent, size), pixels).view(-1, size, extent, 3)
        columns = rows.permute(0, 2, 3, 1).reshape(-1, extent, 3 * size)
        out = torch.bmm(_window_weights(x1 - x0, extent, size), columns).view(-1, size, 3, size)
        return out.permute(0, 2, 3, 1).contiguous()


def _neighbours(at: torch.Tensor, length: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The whole numbers below and above the coordinates `at` [n, m], and the share of each; it is 0 where there is no
    such pixel in 0..length - 1 [n, 1]."""
    low = at.floor()
    for whole, share in ((low, low + 1 - at), (low + 1, at - low)):
        index = whole.long()
        inside = (index >= 0) & (index < length)
        yield torch.minimum(index.clamp(min=0), length - 1), share * inside


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


def _window_weights(lengths: torch.Tensor, extent: int, size: int) -> torch.Tensor:
    """[n, size, extent] float32: the share of each source pixel in each output pixel's window; rows sum to 1."""
    i = torch.arange(size, device=lengths.device, dtype=torch.float64)
    j = torch.arange(extent, device=lengths.device, dtype=torch.float64)
    length = lengths[:, None].double()
    scale = length / size
    centre, half = (i + 0.5) * scale, scale.clamp(min=1.0) / 2
    first, last = (centre - half).clamp(min=0), torch.minimum(centre + half, length)
    overlap = torch.minimum(last[:, :, None], j + 1) - torch.maximum(first[:, :, None], j)
    return (overlap.clamp(min=0) / (last - first)[:, :, None]).float()
