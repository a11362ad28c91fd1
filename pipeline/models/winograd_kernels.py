"""Convolutions by the forms of `winograd_forms`, products of matrices and pools, on the CPU, in vector instructions.

A tile of pixels is transformed, multiplied for each of the form's points by one product of matrices over the channels,
and turned back into answers (Lavin & Gray 2015, "Fast Algorithms for Convolutional Neural Networks"). The transforms
are sums with few and small factors: in float32 the answers are within some 1e-5 of the largest one.

Pictures are [n, rows, columns, channels], so that all vectors run along the channels. numba's own loops reach half of
what the processor can multiply; so the inner loops are written as vector instructions (`intrinsic`), which hold a block
of the product in registers. Their sizes follow the processor that compiles.

Importing this module needs numba and compiles, or loads what an earlier process compiled.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from pipeline.models import loop_instructions, winograd_forms
from pipeline.models.loop_instructions import (
    LANES,
    ROWS,
    answer_tile,
    clear,
    copy,
    largest,
    multiply,
    multiply_and_finish,
    transform_tile,
    transpose,
)
from pipeline.models.winograd_forms import FORMS
from pipeline.runtime import vector_code as instructions
from pipeline.runtime.compiled import FUSED, compiled

COLUMNS: Final = 64  # output channels that are multiplied and turned back at a time
_IN_CACHE: Final = 3 * 2**15  # numbers that a product reads and writes before it goes on to others
_PICTURES: Final = "f4[:,:,:,::1]"
_ROWS_OF: Final = "f4[:,::1]"
_LAYER: Final = "Tuple((f4[:,:,::1], f4[::1]))"
_INLINED: Final = (instructions, loop_instructions, winograd_forms)

# Of each form: points, places of a tile and answers (down, across), pixels from one answer to the next.
_GEOMETRY: Final = np.array(
    [
        (
            form.points,
            len(form.down.pixels[0]),
            len(form.across.pixels[0]),
            len(form.down.answers),
            len(form.across.answers),
            form.down.step,
            form.across.step,
        )
        for form in FORMS
    ],
    np.int64,
)


@compiled(f"void({_PICTURES}, {_PICTURES})", inlined=_INLINED, **FUSED)
def enter(x: Any, out: Any) -> None:
    """x [n, c, h, w] -> the first n of `out` [>= n, h, w, c], c a multiple of LANES."""
    _, channels, height, width = x.shape
    area = height * width
    for n in range(len(x)):
        for first in range(0, channels, LANES):
            source, target = (n * channels + first) * area, n * area * channels + first
            for i in range(0, area - LANES + 1, LANES):
                transpose((x, out), (source + i, area, target + i * channels, channels))
            for i in range(area // LANES * LANES, area):
                for c in range(LANES):
                    out[n, i // width, i % width, first + c] = x[n, first + c, i // width, i % width]


@compiled(f"void({_PICTURES}, i8, i8, i8, i8, {_ROWS_OF})", inlined=_INLINED, **FUSED)
def unfold(x: Any, down: int, across: int, step: int, columns: int, out: Any) -> None:
    """x [n, c, h, w] -> one row of `out` [>= n h' columns, c down across] for each answer of a convolution: the down x
    across pixels of all channels that it reads, `step` from one answer to the next."""
    number, channels, height, _ = x.shape
    rows = (height - down) // step + 1
    for n in range(number):
        for y in range(rows):
            for k in range(channels * down):
                source = x[n, k // down, y * step + k % down]
                first, at = (n * rows + y) * columns, k * across
                for i in range(columns):
                    for j in range(across):
                        out[first + i, at + j] = source[i * step + j]


@compiled(f"void({_PICTURES}, {_PICTURES})", inlined=_INLINED, **FUSED)
def leave(x: Any, out: Any) -> None:
    """The other way: of x [>= n, h, w, c] the first n -> `out` [n, c, h, w]."""
    _, channels, height, width = out.shape
    area = height * width
    for n in range(len(out)):
        for first in range(0, channels, LANES):
            source, target = n * area * channels + first, (n * channels + first) * area
            for i in range(0, area - LANES + 1, LANES):
                transpose((x, out), (source + i * channels, channels, target + i, area))
            for i in range(area // LANES * LANES, area):
                for c in range(LANES):
                    out[n, first + c, i // width, i % width] = x[n, i // width, i % width, first + c]


@compiled(**FUSED)
def _read_tile(x: Any, n: int, top: int, left: int, down: int, across: int, patch: Any) -> None:
    """A tile that reaches beyond picture n of x [*, h, w, c], zeros there: fills the first down x across x c numbers of
    `patch`."""
    _, height, width, channels = x.shape
    row = across * channels
    first, last = max(0, -left) * channels, min(across, width - left) * channels
    for i in range(down):
        begin, end = (first, last) if 0 <= top + i < height else (row, row)
        source = ((n * height + top + i) * width + left) * channels
        clear((patch,), (i * row, begin))
        copy((x, patch), (source + begin, i * row + begin, end - begin))
        clear((patch,), (i * row + end, row - end))


@compiled(**FUSED)
def _write_tile(
    patch: Any, down: int, across: int, count: int, n: int, top: int, left: int, out: Any, first: int
) -> None:
    """The part of a tile's answers [down, across, COLUMNS] that is inside picture n of `out` [*, h, w, c], `count`
    channels from `first` on."""
    _, height, width, wide = out.shape
    for i in range(top, min(top + down, height)):
        for j in range(left, min(left + across, width)):
            at = ((i - top) * across + j - left) * COLUMNS
            copy((patch, out), (at, ((n * height + i) * width + j) * wide + first, count))


@compiled(
    f"void(i8, {_PICTURES}, i8, UniTuple(i8, 2), {_LAYER}, f4, i8, f4[::1], f4[::1], f4[::1], {_PICTURES}, i8)",
    inlined=_INLINED,
    **FUSED,
)
def convolve(
    which: int,
    x: Any,
    count: int,
    padding: Any,
    layer: Any,
    floor: float,
    tiles: int,
    spectra: Any,
    products: Any,
    patch: Any,
    out: Any,
    first: int,
) -> None:
    """A convolution by the form of number `which` of the first `count` pictures x [n, h, w, c], with `padding` zeros
    around, and the larger of it and the floor: `out` [n, h', w', *] from channel `first` on.

    `layer`: weights in blocks [c, LANES], and bias [o], c and o multiples of LANES; of COLUMNS outputs the blocks of
    one point after the other, then of the next outputs. `tiles`, a multiple of ROWS, are done at a time, in the scratch
    `spectra` [points (tiles c + LANES)] and `products` [points (tiles COLUMNS + LANES)]; `patch` has room for one, in
    pixels or answers.
    """
    weights, bias = layer
    points, places_down, places_across, answers_down, answers_across, step_down, step_across = _GEOMETRY[which]
    height, width, channels = x.shape[1:]
    rows, columns, wide = out.shape[1:]
    outputs = len(bias)
    across = -(-columns // answers_across)
    each = -(-rows // answers_down) * across
    # Not a multiple of a page: the points of a tile would share a few lines of the cache.
    apart = tiles * channels + LANES
    for start in range(0, count * each, tiles):
        number = min(tiles, count * each - start)
        for t in range(number):
            n, place = divmod(start + t, each)
            top = place // across * answers_down * step_down - padding[0]
            left = place % across * answers_across * step_across - padding[1]
            inside = top >= 0 and left >= 0 and top + places_down <= height and left + places_across <= width
            at, row = ((n * height + top) * width + left) * channels, width * channels
            if not inside:
                _read_tile(x, n, top, left, places_down, places_across, patch)
                at, row = 0, places_across * channels
            transform_tile((x, patch, spectra), (which, int(inside), at, row, channels, t * channels, apart))
        for begin in range(0, outputs, COLUMNS):
            some = min(COLUMNS, outputs - begin)
            between = tiles * some + LANES
            for k in range(points):
                for part in range(some // LANES):
                    block = (points * begin + k * some + part * LANES) * channels
                    for t in range(0, number, ROWS):
                        at = k * apart + t * channels
                        to = k * between + t * some + part * LANES
                        multiply((spectra, weights, products), (at, channels, block, to, some, channels))
            for t in range(number):
                n, place = divmod(start + t, each)
                top, left = place // across * answers_down, place % across * answers_across
                inside = top + answers_down <= rows and left + answers_across <= columns
                at, row, pixel = ((n * rows + top) * columns + left) * wide + first + begin, columns * wide, wide
                if not inside:
                    at, row, pixel = 0, answers_across * COLUMNS, COLUMNS
                places = (which, int(inside), t * some, between, begin, some, at, row, pixel, floor)
                answer_tile((products, bias, out, patch), places)
                if not inside:
                    _write_tile(patch, answers_down, answers_across, some, n, top, left, out, first + begin)


@compiled(
    f"void({_ROWS_OF}, i8, {_LAYER}, f4, b1, {_ROWS_OF}, {_ROWS_OF}, i8)",
    inlined=_INLINED,
    **FUSED,
)
def product(x: Any, count: int, layer: Any, floor: float, adds: bool, added: Any, out: Any, first: int) -> None:
    """A convolution 1 x 1 of the first `count` pixels x [n, c], plus `added` [n, o] where `adds`, and the larger of
    that and the floor: `out` [n, *] from channel `first` on. `layer`: weights in blocks [c, LANES], and bias [o].

    Whole ROWS are read and written, so all have room for ROWS - 1 more pixels.
    """
    weights, bias = layer
    channels, outputs, wide = x.shape[1], len(bias), out.shape[1]
    together = max(1, _IN_CACHE // (channels + 2 * outputs) // ROWS) * ROWS
    for start in range(0, count, together):
        for part in range(outputs // LANES):
            column = part * LANES
            for row in range(start, min(start + together, count), ROWS):
                arrays = (x, weights, bias, added, out)
                source = (row * channels, channels, column * channels, column)
                other = (int(adds), row * added.shape[1] + column, added.shape[1])
                multiply_and_finish(arrays, source + other + (row * wide + first + column, wide, floor))


@compiled(f"void({_PICTURES}, i8, i8, i8, {_PICTURES}, i8)", inlined=_INLINED, **FUSED)
def pool(x: Any, count: int, side: int, step: int, out: Any, first: int) -> None:
    """The largest of each side x side pixels, a step apart, of the first `count` pictures x [n, h, w, c]: `out` [n, h',
    w', *] from channel `first` on."""
    _, height, width, channels = x.shape
    _, rows, columns, wide = out.shape
    for n in range(count):
        for i in range(rows):
            for j in range(columns):
                at = ((n * height + i * step) * width + j * step) * channels
                to = ((n * rows + i) * columns + j) * wide + first
                largest((x, out), (at, width * channels, channels, side, to))
