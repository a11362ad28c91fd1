"""Convolutions 3 x 3 with a quarter of the products, on the CPU: Winograd's F(4 x 4, 3 x 3).

Lavin & Gray 2015, "Fast Algorithms for Convolutional Neural Networks": a tile of 6 x 6 pixels and the weights are
transformed, multiplied for each of the 36 places by one product of matrices over the channels, and turned back into
4 x 4 answers. The transforms are sums with few and small factors: in float32 the answers are within some 1e-5 of the
largest one.

Pictures are [n, rows, columns, channels] here, so that all vectors run along the channels. numba's own loops reach
half of what the processor can multiply; so the inner loops are written as vector instructions (`intrinsic`), which
hold a block of the product in registers. Their sizes follow the processor that compiles.

Importing this module needs numba and compiles, or loads what an earlier process compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from pipeline import instructions
from pipeline.compiled import FUSED, compiled
from pipeline.instructions import Writer, cgutils, intrinsic, nothing


def _lanes() -> int:
    """How many float32 one vector of this processor holds; LLVM takes those apart that it does not have."""
    try:
        return 16 if llvm.get_host_cpu_features().get("avx512f") else 8
    except RuntimeError:  # LLVM cannot tell on this kind of processor
        return 8


LANES: Final = _lanes()
ROWS: Final = 12  # of a product that are held in registers at a time, LANES columns each
TILES: Final = 2 * ROWS  # that are transformed and multiplied at a time: they stay in the second cache
COLUMNS: Final = 64  # output channels that are multiplied and turned back at a time
SIDE: Final = 4  # answers on a side of a tile
_PICTURES: Final = "f4[:,:,:,::1]"
_LAYER: Final = "Tuple((f4[:,:,:,::1], f4[::1]))"

# The transforms of the paper: of the pixels (6 -> 6) and of the products (6 -> 4).
_PIXELS: Final = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
_ANSWERS: Final = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))

_VECTOR: Final = ir.VectorType(ir.FloatType(), LANES)
_ZERO: Final = ir.Constant(_VECTOR, [0.0] * LANES)


def _instructions(write: Callable[..., None]) -> Any:
    """What the compiled loops call as `f(arrays, numbers)`, both tuples: `write` writes down its instructions.

    It gets a writer, a pointer to the first element of each array, and the whole numbers.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        to = Writer(context, builder)
        pointers = to.values(signature.args[0].types, cgutils.unpack_tuple(builder, arguments[0]))
        write(to, *pointers, *to.values(signature.args[1:], arguments[1:]))
        return context.get_dummy_value()

    def typed(_: Any, arrays: Any, numbers: Any) -> Any:
        return nothing(arrays, numbers), generate

    return intrinsic(typed)


def _shuffled(to: Writer, first: Any, second: Any, places: Sequence[int]) -> Any:
    return to.builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(ir.IntType(32), LANES), list(places)))


def _combined(to: Writer, factors: Sequence[int], vectors: Sequence[Any]) -> Any:
    """The sum of the vectors, each times its factor."""
    total = None
    for factor, vector in zip(factors, vectors, strict=True):
        constant = ir.Constant(_VECTOR, [float(factor)] * LANES)
        if factor and total is None:
            total = to.builder.fmul(constant, vector)
        elif factor:
            total = to.multiply_add(constant, vector, total)
    return total


def _transformed(to: Writer, matrix: Sequence[Sequence[int]], tile: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """matrix x tile x matrix transposed."""
    half = [[_combined(to, factors, column) for column in zip(*tile, strict=True)] for factors in matrix]
    return [[_combined(to, factors, row) for factors in matrix] for row in half]


@_instructions
def _multiply(
    to: Writer,
    left: Any,
    right: Any,
    out: Any,
    left_at: Any,
    step: Any,
    right_at: Any,
    out_at: Any,
    width: Any,
    depth: Any,
) -> None:
    """ROWS rows [depth] of `left`, a step apart, x right [depth, LANES]: ROWS rows of `out`, `width` apart."""
    sums = [cgutils.alloca_once_value(to.builder, _ZERO) for _ in range(ROWS)]
    rows = [to.along(left_at, step, row) for row in range(ROWS)]
    with cgutils.for_range(to.builder, depth) as loop:
        vector = to.load(_VECTOR, right, to.along(right_at, loop.index, LANES))
        for row, total in zip(rows, sums, strict=True):
            number = to.spread(to.number(left, to.sum(row, loop.index)), _VECTOR)
            to.builder.store(to.multiply_add(number, vector, to.builder.load(total)), total)
    for row, total in enumerate(sums):
        to.store(to.builder.load(total), out, to.along(out_at, width, row))


@_instructions
def _transform_tile(
    to: Writer, pixels: Any, out: Any, pixels_at: Any, row: Any, channels: Any, out_at: Any, apart: Any
) -> None:
    """6 x 6 pixels of all channels, rows `row` apart -> 36 places of all channels, `apart` from each other."""
    with cgutils.for_range(to.builder, to.builder.udiv(channels, to.place(LANES))) as loop:
        start = to.along(pixels_at, loop.index, LANES)
        rows = [to.along(start, row, i) for i in range(6)]
        tile = [[to.load(_VECTOR, pixels, to.along(at, channels, j)) for j in range(6)] for at in rows]
        values = [value for line in _transformed(to, _PIXELS, tile) for value in line]
        target = to.along(out_at, loop.index, LANES)
        for k, value in enumerate(values):
            to.store(value, out, to.along(target, apart, k))


@_instructions
def _answer_tile(
    to: Writer,
    products: Any,
    bias: Any,
    out: Any,
    products_at: Any,
    apart: Any,
    first: Any,
    count: Any,
    out_at: Any,
    row: Any,
    pixel: Any,
) -> None:
    """36 places of `count` channels, `apart` from each other -> 4 x 4 pixels plus the bias from `first` on, and the
    larger of each and 0; rows of `out` are `row` apart, pixels `pixel`. What is not a number stays so."""
    with cgutils.for_range(to.builder, to.builder.udiv(count, to.place(LANES))) as loop:
        start, shift_at, target = (to.along(at, loop.index, LANES) for at in (products_at, first, out_at))
        values = [to.load(_VECTOR, products, to.along(start, apart, k)) for k in range(36)]
        tile = [values[6 * i : 6 * i + 6] for i in range(6)]
        shift = to.load(_VECTOR, bias, shift_at)
        for i, line in enumerate(_transformed(to, _ANSWERS, tile)):
            for j, value in enumerate(line):
                shifted = to.builder.fadd(value, shift)
                larger = to.builder.select(to.builder.fcmp_ordered("<", shifted, _ZERO), _ZERO, shifted)
                to.store(larger, out, to.along(to.along(target, row, i), pixel, j))


@_instructions
def _transpose(to: Writer, source: Any, out: Any, source_at: Any, step: Any, out_at: Any, out_step: Any) -> None:
    """LANES x LANES numbers, rows a step apart, transposed (Eklundh 1972: swaps of ever larger blocks)."""
    rows = [to.load(_VECTOR, source, to.along(source_at, step, i)) for i in range(LANES)]
    size = 1
    while size < LANES:
        low = [LANES + p - size if p & size else p for p in range(LANES)]
        high = [LANES + p if p & size else p + size for p in range(LANES)]
        for i in range(LANES):
            if not i & size:
                pair = rows[i], rows[i + size]
                rows[i], rows[i + size] = _shuffled(to, *pair, low), _shuffled(to, *pair, high)
        size *= 2
    for i, row in enumerate(rows):
        to.store(row, out, to.along(out_at, out_step, i))


@compiled(f"void({_PICTURES}, i8, {_PICTURES})", inlined=(instructions,), **FUSED)
def enter(x: Any, offset: int, out: Any) -> None:
    """x [n, c, h, w] -> `out` [n, >= h + offset, >= w + offset, c] from row and column `offset` on, c a multiple of
    LANES."""
    _, channels, height, width = x.shape
    rows, columns = out.shape[1], out.shape[2]
    for n in range(len(x)):
        for first in range(0, channels, LANES):
            for y in range(height):
                source = ((n * channels + first) * height + y) * width
                target = ((n * rows + y + offset) * columns + offset) * channels + first
                for i in range(0, width - LANES + 1, LANES):
                    _transpose((x, out), (source + i, height * width, target + i * channels, channels))
                for i in range(width // LANES * LANES, width):
                    for c in range(LANES):
                        out[n, y + offset, i + offset, first + c] = x[n, first + c, y, i]


@compiled(f"void({_PICTURES}, {_PICTURES})", inlined=(instructions,), **FUSED)
def leave(x: Any, out: Any) -> None:
    """The other way: x [n, >= h, >= w, c] -> `out` [n, c, h, w]."""
    _, channels, height, width = out.shape
    rows, columns = x.shape[1], x.shape[2]
    for n in range(len(out)):
        for first in range(0, channels, LANES):
            for y in range(height):
                source = (n * rows + y) * columns * channels + first
                target = ((n * channels + first) * height + y) * width
                for i in range(0, width - LANES + 1, LANES):
                    _transpose((x, out), (source + i * channels, channels, target + i, height * width))
                for i in range(width // LANES * LANES, width):
                    for c in range(LANES):
                        out[n, first + c, y, i] = x[n, y, i, first + c]


@compiled(**FUSED)
def _write_tile(edge: Any, rows: int, columns: int, out: Any, first: int) -> None:
    """The part of a tile that is inside the picture, into `out` [>= rows, >= columns, channels]."""
    for i in range(rows):
        for j in range(columns):
            for c in range(edge.shape[2]):
                out[i, j, first + c] = edge[i, j, c]


@compiled(
    f"void({_PICTURES}, i8, i8, i8, {_LAYER}, f4[::1], f4[::1], {_PICTURES}, i8)", inlined=(instructions,), **FUSED
)
def convolve(
    x: Any, count: int, height: int, width: int, layer: Any, spectra: Any, products: Any, out: Any, offset: int
) -> None:
    """A convolution 3 x 3 of the first `count` pictures x, and its ReLU: `out` from row and column `offset` on.

    x [n, rows, columns, c] holds `height` + 2 rows and `width` + 2 columns, padding included, and zeros up to whole
    tiles: rows = 4 ceil(height / 4) + 2. `layer`: weights [36, o / LANES, c, LANES] and bias [o], c and o multiples
    of LANES. `spectra` [36 (TILES c + LANES)] and `products` [36 (TILES COLUMNS + LANES)] are scratch.
    """
    weights, bias = layer
    rows, columns, channels, outputs = x.shape[1], x.shape[2], x.shape[3], len(bias)
    across = columns // SIDE
    each = (rows // SIDE) * across
    wide = out.shape[2] * outputs
    edge = np.empty((SIDE, SIDE, COLUMNS), np.float32)
    # Not a multiple of a page: the 36 places of a tile would share a few lines of the cache.
    apart = TILES * channels + LANES
    for start in range(0, count * each, TILES):
        number = min(TILES, count * each - start)
        for t in range(number):
            n, place = divmod(start + t, each)
            at = ((n * rows + place // across * SIDE) * columns + place % across * SIDE) * channels
            _transform_tile((x, spectra), (at, columns * channels, channels, t * channels, apart))
        for first in range(0, outputs, COLUMNS):
            some = min(COLUMNS, outputs - first)
            between = TILES * some + LANES
            for k in range(36):
                for part in range(some // LANES):
                    block = (k * (outputs // LANES) + first // LANES + part) * channels * LANES
                    for t in range(0, number, ROWS):
                        at = k * apart + t * channels
                        to = k * between + t * some + part * LANES
                        _multiply((spectra, weights, products), (at, channels, block, to, some, channels))
            for t in range(number):
                n, place = divmod(start + t, each)
                y, left = place // across * SIDE, place % across * SIDE
                if y + SIDE <= height and left + SIDE <= width:
                    at = (n * out.shape[1] + y + offset) * wide + (left + offset) * outputs + first
                    _answer_tile((products, bias, out), (t * some, between, first, some, at, wide, outputs))
                else:
                    _answer_tile((products, bias, edge), (t * some, between, first, some, 0, SIDE * COLUMNS, COLUMNS))
                    inside = out[n, y + offset :, left + offset :]
                    _write_tile(edge[:, :, :some], min(SIDE, height - y), min(SIDE, width - left), inside, first)


@compiled(f"void(f4[:,::1], i8, i8, i8, {_LAYER}, {_PICTURES}, i8)", inlined=(instructions,), **FUSED)
def pointwise(x: Any, count: int, height: int, width: int, layer: Any, out: Any, offset: int) -> None:
    """A convolution 1 x 1 and its ReLU of `count` pictures x [>= count * height * width rounded up to ROWS, c]:
    `out` from row and column `offset` on. `layer`: weights [1, o / LANES, c, LANES] and bias [o]."""
    weights, bias = layer
    channels, outputs = x.shape[1], len(bias)
    answers = np.empty((ROWS, outputs), np.float32)
    for start in range(0, count * height * width, ROWS):
        for part in range(outputs // LANES):
            places = (start * channels, channels, part * channels * LANES, part * LANES, outputs, channels)
            _multiply((x, weights, answers), places)
        for i in range(min(ROWS, count * height * width - start)):
            n, place = divmod(start + i, height * width)
            row, values = out[n, place // width + offset, place % width + offset], answers[i]
            for c in range(outputs):
                value = values[c] + bias[c]
                row[c] = np.float32(0) if value < 0 else value


@compiled(f"void({_PICTURES}, i8, i8, i8, i8, i8, {_PICTURES}, i8)", inlined=(instructions,), **FUSED)
def pool(x: Any, count: int, height: int, width: int, side: int, step: int, out: Any, offset: int) -> None:
    """The largest of each side x side pixels, a step apart, of `count` pictures x: height x width of them, in `out`
    from row and column `offset` on."""
    for n in range(count):
        for i in range(height):
            for j in range(width):
                largest = out[n, i + offset, j + offset]
                largest[:] = x[n, i * step, j * step]
                for k in range(1, side * side):
                    row = x[n, i * step + k // side, j * step + k % side]
                    for c in range(len(row)):
                        largest[c] = row[c] if row[c] > largest[c] else largest[c]
