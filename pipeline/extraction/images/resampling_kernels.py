"""Compiled loops that resample rectangles of images on the CPU.

`area_crops` averages whole pixels: integer sums, in vector instructions along rows, and one division give the bits of
torch in float64 and of Triton. `smooth_crops` averages windows with fractional edges; `sample` interpolates at points.

Needs numba; importing it compiles the loops or loads them from the cache.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir

from pipeline.runtime import vector_code
from pipeline.runtime.compiled import EXACT, FUSED, compiled
from pipeline.runtime.vector_code import Writer, cgutils, intrinsic, nothing

_CROPS: Final = "void(u1[::1], i8[:,::1], i8[::1], i8[::1], i8[:,::1], f4[:,:,:,::1])"
_POINTS: Final = "void(u1[::1], i8[:,::1], i8[::1], i8[::1], f4[:,:,::1], f4[:,:,::1])"
# Red, green and blue; the fourth number, the next pixel's, is ignored.
_PIXEL: Final = ir.VectorType(ir.IntType(32), 4)
_FLOATS: Final = ir.VectorType(ir.FloatType(), 4)
_COLOURS: Final = 3


@compiled(**EXACT)
def bins(length: int, left: Any, right: Any, widths: Any) -> None:
    """The pixels [left, right) of `length` per output pixel, as in torch's adaptive pooling; `widths` float32 is their
    number."""
    size = len(left)
    for j in range(size):
        left[j], right[j] = (j * length) // size, ((j + 1) * length + size - 1) // size
        widths[j] = right[j] - left[j]


@compiled(**EXACT)
def scratch_room(width: int) -> int:
    """Scratch of `average_row` for `width` pixels, in int32 values."""
    return 7 * width + 5


@compiled(**EXACT)
def average_row(
    pixels: Any, x0: int, x1: int, first: int, last: int, left: Any, right: Any, widths: Any, scratch: Any, out: Any
) -> None:
    """Averages rows first .. last - 1, columns x0 .. x1 - 1 to one row of pixels, with the `bins` of x1 - x0.

    `pixels` [height, width * 3] uint8; `scratch` [>= scratch_room(x1 - x0)] int32; `out` [3, >= size] float32. Sums may
    wrap around: differences are exact modulo 2^32.
    """
    width = x1 - x0
    sums, running = scratch[: 3 * width], scratch[3 * width + 1 :]
    _add_rows(pixels, 3 * x0, 3 * x1, first, last, sums)
    _add_along(scratch, width, running)
    _sums_between(running, left, right, len(left), out, out.shape[1])
    rows = np.float32(last - first)
    for channel in range(3):
        averages = out[channel]
        for j in range(len(left)):
            averages[j] /= rows * widths[j]  # a product of integers, rounded once


@compiled(**EXACT)
def _add_rows(pixels: Any, start: int, end: int, first: int, last: int, sums: Any) -> None:
    """Sums columns start .. end - 1 over rows first .. last - 1 into `sums` [end - start], four rows at a time to save
    memory accesses."""
    row = pixels[first, start:end]
    for i in range(len(row)):
        sums[i] = row[i]
    y = first + 1
    while last - y >= 4:
        row, below = pixels[y, start:end], pixels[y + 1, start:end]
        third, fourth = pixels[y + 2, start:end], pixels[y + 3, start:end]
        for i in range(len(row)):
            sums[i] += np.int32(row[i]) + np.int32(below[i]) + np.int32(third[i]) + np.int32(fourth[i])
        y += 4
    if (last - y) % 2:
        row, y = pixels[y, start:end], y + 1
        for i in range(len(row)):
            sums[i] += np.int32(row[i])
    if y < last:
        row, below = pixels[y, start:end], pixels[y + 1, start:end]
        for i in range(len(row)):
            sums[i] += np.int32(row[i]) + np.int32(below[i])


@intrinsic  # type: ignore[untyped-decorator]
def _add_along(_: Any, sums: Any, count: Any, running: Any) -> Any:
    """Sums of the first 0 .. `count` pixels, modulo 2^32: `sums` [>= 3 * count + 1] int32 -> `running` [>= 4 * count +
    4]."""

    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to = Writer(context, builder)
        source, number, target = to.values(signature.args, arguments)
        zero = ir.Constant(_PIXEL, [0] * 4)
        to.store(zero, target, to.place(0))
        total = cgutils.alloca_once_value(builder, zero)
        with cgutils.for_range(builder, number) as loop:
            pixel = to.load(_PIXEL, source, to.product(loop.index, _COLOURS))
            builder.store(builder.add(builder.load(total), pixel), total)
            to.store(builder.load(total), target, to.product(to.sum(loop.index, 1), 4))
        return context.get_dummy_value()

    return nothing(sums, count, running), write


@intrinsic  # type: ignore[untyped-decorator]
def _sums_between(_: Any, running: Any, left: Any, right: Any, count: Any, out: Any, row: Any) -> Any:
    """Sums over [left, right) of `count` output pixels, from `running` sums: to `out`, a row of `row` numbers per
    colour."""

    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to = Writer(context, builder)
        source, starts, ends, number, target, width = to.values(signature.args, arguments)
        with cgutils.for_range(builder, number) as loop:
            sums = (to.load(_PIXEL, source, to.product(to.number(bound, loop.index), 4)) for bound in (ends, starts))
            floats = builder.sitofp(builder.sub(*sums), _FLOATS)
            for colour in range(_COLOURS):
                value = builder.extract_element(floats, ir.Constant(ir.IntType(32), colour))
                builder.store(value, builder.gep(target, [to.sum(to.product(width, colour), loop.index)]))
        return context.get_dummy_value()

    return nothing(running, left, right, count, out, row), write


@compiled(_CROPS, inlined=(vector_code,), **EXACT)
def area_crops(flat: Any, sizes: Any, starts: Any, image: Any, boxes: Any, out: Any) -> None:
    """Averages rectangles of images to squares: fills `out` [n, 3, size, size].

    `flat` holds the images' bytes, image k of `sizes[k]` (height, width) from `starts[k]` on; `image` [n] and `boxes`
    [n, 4] xyxy are rectangles: half open, inside their image, not empty.
    """
    size, widest = out.shape[3], 0
    for k in range(len(image)):
        widest = max(widest, boxes[k, 2] - boxes[k, 0])
    scratch = np.zeros(scratch_room(widest), np.int32)
    left, right, widths = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.float32)
    top, bottom, heights = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.float32)
    row = np.empty((3, size), np.float32)
    for k in range(len(image)):
        start, height, width = starts[image[k]], sizes[image[k], 0], sizes[image[k], 1]
        pixels = flat[start : start + 3 * height * width].reshape(height, 3 * width)
        x0, y0, x1, y1 = boxes[k]
        bins(x1 - x0, left, right, widths)
        bins(y1 - y0, top, bottom, heights)
        for i in range(size):
            average_row(pixels, x0, x1, y0 + top[i], y0 + bottom[i], left, right, widths, scratch, row)
            for channel in range(3):
                for j in range(size):  # assigning the row would compile for seconds
                    out[k, channel, i, j] = row[channel, j]


@compiled(**FUSED)
def _windows(length: int, first: Any, weights: Any) -> None:
    """Per output pixel: its window's first source pixel, and the weights from there.

    first [size] int64, weights [size, taps] float32. Windows are max(1, length / size) wide, clipped to the rectangle,
    and weights sum to 1.
    """
    size = len(first)
    scale = length / size
    half = max(scale, 1.0) / 2
    for i in range(size):
        centre = (i + 0.5) * scale
        start, end = max(centre - half, 0.0), min(centre + half, float(length))
        first[i] = int(start)
        for k in range(weights.shape[1]):
            pixel = first[i] + k
            shared = min(end, pixel + 1.0) - max(start, float(pixel))
            weights[i, k] = max(shared, 0.0) / (end - start)


@compiled(**FUSED)
def _mixed_row(pixels: Any, x0: int, x1: int, y: int, weights: Any, row: Any) -> None:
    """The weighted sum of rows from y on, into `row` [(x1 - x0) * 3] float32; rows of weight 0 need not exist."""
    for i in range(3 * (x1 - x0)):
        row[i] = 0
    for k in range(len(weights)):
        weight = weights[k]
        if weight > 0:
            source = pixels[y + k, 3 * x0 : 3 * x1]
            for i in range(len(source)):
                row[i] += weight * np.float32(source[i])


@compiled(_CROPS, **FUSED)
def smooth_crops(flat: Any, sizes: Any, starts: Any, image: Any, boxes: Any, out: Any) -> None:
    """`ImageBatch.smooth_crops`, with the arguments of `area_crops`."""
    size = out.shape[3]
    first_row, first_column = np.empty(size, np.int64), np.empty(size, np.int64)
    for n in range(len(image)):
        start, height, width = starts[image[n]], sizes[image[n], 0], sizes[image[n], 1]
        pixels = flat[start : start + 3 * height * width].reshape(height, 3 * width)
        x0, y0, x1, y1 = boxes[n]
        down = np.empty((size, (y1 - y0) // size + 3), np.float32)
        across = np.empty((size, (x1 - x0) // size + 3), np.float32)
        _windows(y1 - y0, first_row, down)
        _windows(x1 - x0, first_column, across)
        row = np.zeros(3 * (x1 - x0 + across.shape[1]), np.float32)  # with room for taps beyond the edge
        for i in range(size):
            _mixed_row(pixels, x0, x1, y0 + first_row[i], down[i], row)
            for j in range(size):
                at = 3 * first_column[j]
                red, green, blue = np.float32(0), np.float32(0), np.float32(0)
                for k in range(across.shape[1]):
                    weight = across[j, k]
                    red += weight * row[at + 3 * k]
                    green += weight * row[at + 3 * k + 1]
                    blue += weight * row[at + 3 * k + 2]
                out[n, 0, i, j], out[n, 1, i, j], out[n, 2, i, j] = red, green, blue


@compiled(_POINTS, **EXACT)
def sample(flat: Any, sizes: Any, starts: Any, image: Any, points: Any, out: Any) -> None:
    """`ImageBatch.sample` of images as in `area_crops`, at `points` [n, m, 2]: fills `out` [n, m, 3].

    Sums in the order of `TorchBatch.sample`, for equal bits.
    """
    one = np.float32(1)
    for n in range(len(image)):
        start, height, width = starts[image[n]], sizes[image[n], 0], sizes[image[n], 1]
        for m in range(points.shape[1]):
            x, y = points[n, m]
            if np.isnan(x) or np.isnan(y):
                out[n, m] = np.nan
                continue
            x, y = min(max(x, -one), np.float32(width)), min(max(y, -one), np.float32(height))
            left, above = np.floor(x), np.floor(y)
            red, green, blue = np.float32(0), np.float32(0), np.float32(0)
            for right in range(2):
                column = int(left) + right
                if column < 0 or column >= width:
                    continue
                across = x - left if right else left + one - x
                for below in range(2):
                    row = int(above) + below
                    if row < 0 or row >= height:
                        continue
                    weight = across * (y - above if below else above + one - y)
                    at = start + 3 * (row * width + column)
                    red += np.float32(flat[at]) * weight
                    green += np.float32(flat[at + 1]) * weight
                    blue += np.float32(flat[at + 2]) * weight
            out[n, m, 0], out[n, m, 1], out[n, m, 2] = red, green, blue
