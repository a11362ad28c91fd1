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

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Final

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from pipeline import instructions
from pipeline.compiled import FUSED, compiled
from pipeline.instructions import Writer, cgutils, intrinsic, nothing
from pipeline.models import winograd_forms
from pipeline.models.winograd_forms import FORMS, Matrix


def _lanes() -> int:
    """How many float32 one vector of this processor holds; LLVM takes those apart that it does not have."""
    try:
        return 16 if llvm.get_host_cpu_features().get("avx512f") else 8
    except RuntimeError:  # LLVM cannot tell on this kind of processor
        return 8


LANES: Final = _lanes()
ROWS: Final = 12  # of a product that are held in registers at a time, LANES columns each
COLUMNS: Final = 64  # output channels that are multiplied and turned back at a time
_IN_CACHE: Final = 3 * 2**15  # numbers that a product reads and writes before it goes on to others
_PICTURES: Final = "f4[:,:,:,::1]"
_ROWS_OF: Final = "f4[:,::1]"
_LAYER: Final = "Tuple((f4[:,:,:,::1], f4[::1]))"
_INLINED: Final = (instructions, winograd_forms)

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

_VECTOR: Final = ir.VectorType(ir.FloatType(), LANES)
_BYTES: Final = 4  # of a number
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


def _combined(to: Writer, factors: Sequence[Any], vectors: Sequence[Any]) -> Any:
    """The sum of the vectors, each times its factor; None where all factors are 0."""
    total = None
    for factor, vector in zip(factors, vectors, strict=True):
        constant = ir.Constant(_VECTOR, [float(factor)] * LANES)
        if factor and total is None:
            total = to.builder.fmul(constant, vector)
        elif factor:
            total = to.multiply_add(constant, vector, total)
    return total


def _times(to: Writer, matrix: Matrix, vectors: Sequence[Any]) -> list[Any]:
    """matrix x vectors. A point and its negative have the same factors but for the signs of every second one, in the
    columns of a matrix of answers and, where all points are such, in the rows of one of pixels: such a pair takes half
    the products."""
    columns, changed = list(zip(*matrix, strict=True)), list(vectors)
    for first, second in _pairs(columns).items():
        a, b = vectors[first], vectors[second]
        changed[first], changed[second] = to.builder.fadd(a, b), to.builder.fsub(a, b)
        columns[first], columns[second] = _halves(columns[first])
    rows = list(zip(*columns, strict=True))
    answers = [None] * len(rows)
    for first, second in _pairs(rows).items():
        even, odd = (_combined(to, half, changed) for half in _halves(rows[first]))
        answers[first], answers[second] = to.builder.fadd(even, odd), to.builder.fsub(even, odd)
    return [_combined(to, row, changed) if made is None else made for row, made in zip(rows, answers, strict=True)]


def _pairs(lines: Sequence[Sequence[Fraction]]) -> dict[int, int]:
    """Lines that differ in the signs of the second, fourth ... number; neither these nor the others are all 0."""
    found: dict[int, int] = {}
    for first, line in enumerate(lines):
        even, odd = _halves(line)
        turned = tuple(a - b for a, b in zip(even, odd, strict=True))
        if any(even) and any(odd) and turned in lines[first + 1 :]:
            found[first] = lines.index(turned)
    return found


def _halves(line: Sequence[Fraction]) -> list[tuple[Fraction, ...]]:
    """The line with zeros in the second, fourth ... place, and in all others."""
    return [tuple(number if place % 2 == kept else Fraction(0) for place, number in enumerate(line)) for kept in (0, 1)]


def _transformed(to: Writer, down: Matrix, across: Matrix, tile: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """down x tile x across transposed."""
    columns = [_times(to, down, column) for column in zip(*tile, strict=True)]
    return [_times(to, across, row) for row in zip(*columns, strict=True)]


def _larger(to: Writer, value: Any, floor: Any) -> Any:
    """The larger of each number and the floor; what is not a number stays so."""
    return to.builder.select(to.builder.fcmp_ordered("<", value, floor), floor, value)


def _of_form(to: Writer, which: Any, write: Callable[[winograd_forms.Form], None]) -> None:
    """What `write` writes for the form of number `which`."""
    for number, form in enumerate(FORMS):
        with to.builder.if_then(to.builder.icmp_signed("==", which, to.place(number))):
            write(form)


@_instructions
def _clear(to: Writer, out: Any, at: Any, count: Any) -> None:
    """Zeros in `count` numbers."""
    cgutils.memset(to.builder, to.builder.gep(out, [at]), to.product(count, _BYTES), 0)


@_instructions
def _copy(to: Writer, source: Any, out: Any, source_at: Any, out_at: Any, count: Any) -> None:
    """`count` numbers from one array to another."""
    places = to.builder.gep(out, [out_at]), to.builder.gep(source, [source_at])
    cgutils.raw_memcpy(to.builder, *places, count, _BYTES)


@_instructions
def _largest(to: Writer, x: Any, out: Any, at: Any, row: Any, channels: Any, side: Any, out_at: Any) -> None:
    """The largest of side x side pixels of all channels, rows `row` apart."""
    with cgutils.for_range(to.builder, to.builder.udiv(channels, to.place(LANES))) as part:
        start = to.along(at, part.index, LANES)
        largest = cgutils.alloca_once_value(to.builder, to.load(_VECTOR, x, start))
        with cgutils.for_range(to.builder, side) as i, cgutils.for_range(to.builder, side) as j:
            value = to.load(_VECTOR, x, to.along(to.along(start, row, i.index), channels, j.index))
            to.builder.store(_larger(to, to.builder.load(largest), value), largest)
        to.store(to.builder.load(largest), out, to.along(out_at, part.index, LANES))


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
    for row, total in enumerate(_sums(to, _ZERO, left, right, left_at, step, right_at, depth)):
        to.store(to.builder.load(total), out, to.along(out_at, width, row))


@_instructions
def _multiply_and_finish(
    to: Writer,
    left: Any,
    right: Any,
    bias: Any,
    added: Any,
    out: Any,
    left_at: Any,
    depth: Any,
    right_at: Any,
    bias_at: Any,
    adds: Any,
    added_at: Any,
    added_width: Any,
    out_at: Any,
    width: Any,
    floor: Any,
) -> None:
    """As `_multiply`, plus the bias, plus rows of `added` where `adds` is not 0; the larger of that and the floor."""
    sums = _sums(to, to.load(_VECTOR, bias, bias_at), left, right, left_at, depth, right_at, depth)
    with to.builder.if_then(to.builder.icmp_signed("!=", adds, to.place(0))):
        for row, total in enumerate(sums):
            other = to.load(_VECTOR, added, to.along(added_at, added_width, row))
            to.builder.store(to.builder.fadd(to.builder.load(total), other), total)
    least = to.spread(floor, _VECTOR)
    for row, total in enumerate(sums):
        to.store(_larger(to, to.builder.load(total), least), out, to.along(out_at, width, row))


def _sums(to: Writer, start: Any, left: Any, right: Any, left_at: Any, step: Any, right_at: Any, depth: Any) -> Any:
    """Where the sums of ROWS products are held, from `start` on."""
    sums = [cgutils.alloca_once_value(to.builder, start) for _ in range(ROWS)]
    rows = [to.along(left_at, step, row) for row in range(ROWS)]
    with cgutils.for_range(to.builder, depth) as loop:
        vector = to.load(_VECTOR, right, to.along(right_at, loop.index, LANES))
        for row, total in zip(rows, sums, strict=True):
            number = to.spread(to.number(left, to.sum(row, loop.index)), _VECTOR)
            to.builder.store(to.multiply_add(number, vector, to.builder.load(total)), total)
    return sums


@_instructions
def _transform_tile(
    to: Writer,
    pixels: Any,
    patch: Any,
    out: Any,
    which: Any,
    inside: Any,
    at: Any,
    row: Any,
    channels: Any,
    out_at: Any,
    apart: Any,
) -> None:
    """A tile of all channels, rows `row` apart, of `pixels` or (not `inside`) of `patch` -> its points of all channels,
    `apart` from each other."""
    source = to.builder.select(to.builder.icmp_signed("!=", inside, to.place(0)), pixels, patch)

    def write(form: winograd_forms.Form) -> None:
        down, across = form.down.pixels, form.across.pixels
        with cgutils.for_range(to.builder, to.builder.udiv(channels, to.place(LANES))) as loop:
            start = to.along(at, loop.index, LANES)
            rows = [to.along(start, row, i) for i in range(len(down[0]))]
            tile = [
                [to.load(_VECTOR, source, to.along(place, channels, j)) for j in range(len(across[0]))]
                for place in rows
            ]
            target = to.along(out_at, loop.index, LANES)
            values = [value for line in _transformed(to, down, across, tile) for value in line]
            for k, value in enumerate(values):
                to.store(value, out, to.along(target, apart, k))

    _of_form(to, which, write)


@_instructions
def _answer_tile(
    to: Writer,
    products: Any,
    bias: Any,
    out: Any,
    patch: Any,
    which: Any,
    inside: Any,
    products_at: Any,
    apart: Any,
    first: Any,
    count: Any,
    at: Any,
    row: Any,
    pixel: Any,
    floor: Any,
) -> None:
    """The points of `count` channels, `apart` from each other -> a tile of answers plus the bias from `first` on, and
    the larger of each and the floor; in `out` or (not `inside`) in `patch`, whose rows are `row` apart, pixels
    `pixel`."""
    target = to.builder.select(to.builder.icmp_signed("!=", inside, to.place(0)), out, patch)
    least = to.spread(floor, _VECTOR)

    def write(form: winograd_forms.Form) -> None:
        down, across = form.down.answers, form.across.answers
        with cgutils.for_range(to.builder, to.builder.udiv(count, to.place(LANES))) as loop:
            start, shift_at, place = (to.along(from_, loop.index, LANES) for from_ in (products_at, first, at))
            values = [to.load(_VECTOR, products, to.along(start, apart, k)) for k in range(form.points)]
            points = form.across.points
            tile = [values[points * i : points * (i + 1)] for i in range(form.down.points)]
            shift = to.load(_VECTOR, bias, shift_at)
            for i, line in enumerate(_transformed(to, down, across, tile)):
                for j, value in enumerate(line):
                    answer = _larger(to, to.builder.fadd(value, shift), least)
                    to.store(answer, target, to.along(to.along(place, row, i), pixel, j))

    _of_form(to, which, write)


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


@compiled(f"void({_PICTURES}, {_PICTURES})", inlined=_INLINED, **FUSED)
def enter(x: Any, out: Any) -> None:
    """x [n, c, h, w] -> the first n of `out` [>= n, h, w, c], c a multiple of LANES."""
    _, channels, height, width = x.shape
    area = height * width
    for n in range(len(x)):
        for first in range(0, channels, LANES):
            source, target = (n * channels + first) * area, n * area * channels + first
            for i in range(0, area - LANES + 1, LANES):
                _transpose((x, out), (source + i, area, target + i * channels, channels))
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
                _transpose((x, out), (source + i * channels, channels, target + i, area))
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
        _clear((patch,), (i * row, begin))
        _copy((x, patch), (source + begin, i * row + begin, end - begin))
        _clear((patch,), (i * row + end, row - end))


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
            _copy((patch, out), (at, ((n * height + i) * width + j) * wide + first, count))


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

    `layer`: weights [points, o / LANES, c, LANES] and bias [o], c and o multiples of LANES. `tiles`, a multiple of
    ROWS, are done at a time, in the scratch `spectra` [points (tiles c + LANES)] and `products` [points (tiles COLUMNS
    + LANES)]; `patch` has room for one, in pixels or answers.
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
            _transform_tile((x, patch, spectra), (which, int(inside), at, row, channels, t * channels, apart))
        for begin in range(0, outputs, COLUMNS):
            some = min(COLUMNS, outputs - begin)
            between = tiles * some + LANES
            for k in range(points):
                for part in range(some // LANES):
                    block = (k * (outputs // LANES) + begin // LANES + part) * channels * LANES
                    for t in range(0, number, ROWS):
                        at = k * apart + t * channels
                        to = k * between + t * some + part * LANES
                        _multiply((spectra, weights, products), (at, channels, block, to, some, channels))
            for t in range(number):
                n, place = divmod(start + t, each)
                top, left = place // across * answers_down, place % across * answers_across
                inside = top + answers_down <= rows and left + answers_across <= columns
                at, row, pixel = ((n * rows + top) * columns + left) * wide + first + begin, columns * wide, wide
                if not inside:
                    at, row, pixel = 0, answers_across * COLUMNS, COLUMNS
                places = (which, int(inside), t * some, between, begin, some, at, row, pixel, floor)
                _answer_tile((products, bias, out, patch), places)
                if not inside:
                    _write_tile(patch, answers_down, answers_across, some, n, top, left, out, first + begin)


@compiled(
    f"void({_ROWS_OF}, i8, {_LAYER}, f4, b1, {_ROWS_OF}, {_ROWS_OF}, i8)",
    inlined=_INLINED,
    **FUSED,
)
def product(x: Any, count: int, layer: Any, floor: float, adds: bool, added: Any, out: Any, first: int) -> None:
    """A convolution 1 x 1 of the first `count` pixels x [n, c], plus `added` [n, o] where `adds`, and the larger of
    that and the floor: `out` [n, *] from channel `first` on. `layer`: weights [1, o / LANES, c, LANES] and bias [o].

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
                _multiply_and_finish(arrays, source + other + (row * wide + first + column, wide, floor))


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
                _largest((x, out), (at, width * channels, channels, side, to))
