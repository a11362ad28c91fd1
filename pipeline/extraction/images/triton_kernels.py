"""Triton kernels that resample images on CUDA.

A program averages PIXELS output pixels, TAPS x TAPS source pixels of each at a time: few idle lanes for small averages,
few steps for large ones. Integer sums and one division give the bits of the compiled loops and of torch, for windows of
up to 65,000 pixels. Needs Triton, which comes with torch on Linux.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from pipeline.extraction.images.torch_batch import TorchBatch
    from pipeline.types import ByteArray

# Per program: output pixels, and source rows and columns at a time. Not measured on a GPU yet.
PIXELS: Final = 64
TAPS: Final = 4
EXACT: Final = {"enable_fp_fusion": False}  # for every launch: keeps every rounding
_SMOOTH_TOLERANCE: Final = 1e-3  # grey levels: torch sums in float32


@triton.jit
def area_edges(first, place, length, size):
    """The source pixels [start, end) of output pixel first + place, for `length` pixels to `size`. 32-bit divisions are
    cheap: place * length must be below 2^32."""
    skipped, rest = (first * length // size).to(tl.int32), (first * length % size).to(tl.uint32)
    place, length, size = place.to(tl.uint32), length.to(tl.uint32), size.to(tl.uint32)
    start, end = (rest + place * length) // size, (rest + (place + 1) * length + size - 1) // size
    return skipped + start.to(tl.int32), skipped + end.to(tl.int32)


@triton.jit
def window_edges(place, length, size):
    """Edges of the window of `TorchBatch.smooth_crops` around output pixel `place`, as integers: the unit is a source
    pixel / (2 * size)."""
    centre, half = (2 * place + 1) * length, tl.maximum(length, size)
    return tl.maximum(centre - half, 0), tl.minimum(centre + half, 2 * size * length)


@triton.jit
def averages(pixels, width, top, bottom, left, right, unit, SMOOTH: tl.constexpr, TAPS: tl.constexpr):
    """Mean red, green and blue of windows [n] int32 of an image at `pixels` with rows of `width` int64 pixels. `unit`
    is a pixel's side in units of the windows' edges; with SMOOTH, windows may cover parts of pixels."""
    top, bottom, left, right = top[:, None], bottom[:, None], left[:, None], right[:, None]
    first_row, first_column = top // unit, left // unit
    last_row, last_column = (bottom + unit - 1) // unit, (right + unit - 1) // unit
    lane = tl.arange(0, TAPS * TAPS)[None, :]
    red = tl.full([top.shape[0], TAPS * TAPS], 0, tl.int64)
    green = tl.full([top.shape[0], TAPS * TAPS], 0, tl.int64)
    blue = tl.full([top.shape[0], TAPS * TAPS], 0, tl.int64)
    columns = tl.max(last_column - first_column)
    for y in range(0, tl.max(last_row - first_row), TAPS):
        row = first_row + y + lane // TAPS
        for x in range(0, columns, TAPS):
            column = first_column + x + lane % TAPS
            at = pixels + 3 * (row * width + column)
            inside = (row < last_row) & (column < last_column)
            weight = 1
            if SMOOTH:
                rows = tl.minimum(bottom, (row + 1) * unit) - tl.maximum(top, row * unit)
                weight = rows * (tl.minimum(right, (column + 1) * unit) - tl.maximum(left, column * unit))
            red += tl.load(at, mask=inside, other=0).to(tl.int32) * weight
            green += tl.load(at + 1, mask=inside, other=0).to(tl.int32) * weight
            blue += tl.load(at + 2, mask=inside, other=0).to(tl.int32) * weight
    area = tl.sum((bottom - top).to(tl.int64) * (right - left), axis=1).to(tl.float32)
    return (
        tl.div_rn(tl.sum(red, axis=1).to(tl.float32), area),
        tl.div_rn(tl.sum(green, axis=1).to(tl.float32), area),
        tl.div_rn(tl.sum(blue, axis=1).to(tl.float32), area),
    )


@triton.jit(do_not_specialize=["size"])
def _cut(
    pixels, bases, sizes, images, boxes, out, size, SMOOTH: tl.constexpr, PIXELS: tl.constexpr, TAPS: tl.constexpr
):
    """Program (k, b): the b-th PIXELS of crop k. Arguments of `crops`, and the images' `sizes`."""
    crop = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    row, column = tl.minimum(place, size * size - 1) // size, place % size
    image = tl.load(images + crop)
    width = tl.load(sizes + 2 * image + 1)
    x0, y0 = tl.load(boxes + 4 * crop), tl.load(boxes + 4 * crop + 1)
    x1, y1 = tl.load(boxes + 4 * crop + 2), tl.load(boxes + 4 * crop + 3)
    corner = pixels + 3 * (tl.load(bases + image) + y0 * width + x0)
    if SMOOTH:
        top, bottom = window_edges(row, (y1 - y0).to(tl.int32), size)
        left, right = window_edges(column, (x1 - x0).to(tl.int32), size)
        red, green, blue = averages(corner, width, top, bottom, left, right, 2 * size, True, TAPS)
    else:
        top, bottom = area_edges(0, row, y1 - y0, size)
        left, right = area_edges(0, column, x1 - x0, size)
        red, green, blue = averages(corner, width, top, bottom, left, right, 1, False, TAPS)
    wanted = place < size * size
    at = out + 3 * size * size * crop + place
    tl.store(at, red, mask=wanted)
    tl.store(at + size * size, green, mask=wanted)
    tl.store(at + 2 * size * size, blue, mask=wanted)


def crops(batch: TorchBatch, image: torch.Tensor, boxes: torch.Tensor, size: int, *, smooth: bool) -> torch.Tensor:
    """`TorchBatch.area_crops` or, if `smooth`, `TorchBatch.smooth_crops`."""
    out = torch.empty((len(image), 3, size, size), device=batch.device)
    where = (batch.pixels, batch.bases, batch.sizes, image.contiguous(), boxes.contiguous(), out)
    with torch.cuda.device_of(out):
        _cut[(len(image), triton.cdiv(size * size, PIXELS))](*where, size, smooth, PIXELS, TAPS, **EXACT)
    return out


def self_check(device: torch.device, batch_of: type[TorchBatch]) -> str | None:
    """How crops of small pictures differ from torch's on the CPU, or None."""
    pictures = sample_pictures()
    here, there = batch_of(pictures, device), batch_of(pictures)
    corners = [(0, 0, 97, 83), (96, 82, 97, 83), (5, 7, 8, 80), (0, 0, 3, 41), (1, 40, 3, 41), (30, 2, 91, 49)]
    index, boxes = torch.tensor([0, 0, 0, 1, 1, 0]), torch.tensor(corners)
    cut = {
        "averaged": (False, there.area_crops_by_torch, 24, 0.0),
        "smoothed": (True, there.smooth_crops_by_torch, 40, _SMOOTH_TOLERANCE),
    }
    for name, (smooth, by_torch, size, tolerance) in cut.items():
        ours = crops(here, index.to(device), boxes.to(device), size, smooth=smooth).cpu()
        difference = (ours - by_torch(index, boxes, size)).abs().max().item()
        if not difference <= tolerance:  # also for NaN
            return f"{name} crops differ by up to {difference:g} grey levels"
    return None


def sample_pictures() -> list[ByteArray]:
    """Two pictures [h, w, 3] of odd sides, all rows and columns different."""
    sides = ((83, 97, 3), (41, 3, 3))
    return [(np.arange(np.prod(side)) * 2654435761 >> 13).astype(np.uint8).reshape(side) for side in sides]
