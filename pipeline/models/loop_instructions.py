"""The vector instructions of `winograd_kernels`: what numba makes no vectors of, or keeps in memory, not in registers.

Each is called as `f(arrays, numbers)`, two tuples, and counts places in numbers from an array's beginning. Sizes follow
the processor that compiles.

Importing this module needs numba. The machine code becomes a part of what calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Final

import llvmlite.binding as llvm
from llvmlite import ir

from pipeline.models.winograd_forms import FORMS, Form, Matrix
from pipeline.runtime.vector_code import Writer, cgutils, intrinsic, nothing


def _lanes() -> int:
    """How many float32 one vector of this processor holds; LLVM takes those apart that it does not have."""
    try:
        return 16 if llvm.get_host_cpu_features().get("avx512f") else 8
    except RuntimeError:  # LLVM cannot tell on this kind of processor
        return 8


LANES: Final = _lanes()
ROWS: Final = 12  # of a product that are held in registers at a time, LANES columns each

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


def _of_form(to: Writer, which: Any, write: Callable[[Form], None]) -> None:
    """What `write` writes for the form of number `which`."""
    for number, form in enumerate(FORMS):
        with to.builder.if_then(to.builder.icmp_signed("==", which, to.place(number))):
            write(form)


@_instructions
def clear(to: Writer, out: Any, at: Any, count: Any) -> None:
    """Zeros in `count` numbers."""
    cgutils.memset(to.builder, to.builder.gep(out, [at]), to.product(count, _BYTES), 0)


@_instructions
def copy(to: Writer, source: Any, out: Any, source_at: Any, out_at: Any, count: Any) -> None:
    """`count` numbers from one array to another."""
    places = to.builder.gep(out, [out_at]), to.builder.gep(source, [source_at])
    cgutils.raw_memcpy(to.builder, *places, count, _BYTES)


@_instructions
def largest(to: Writer, x: Any, out: Any, at: Any, row: Any, channels: Any, side: Any, out_at: Any) -> None:
    """The largest of side x side pixels of all channels, rows `row` apart."""
    with cgutils.for_range(to.builder, to.builder.udiv(channels, to.place(LANES))) as part:
        start = to.along(at, part.index, LANES)
        most = cgutils.alloca_once_value(to.builder, to.load(_VECTOR, x, start))
        with cgutils.for_range(to.builder, side) as i, cgutils.for_range(to.builder, side) as j:
            value = to.load(_VECTOR, x, to.along(to.along(start, row, i.index), channels, j.index))
            kept = _larger(to, to.builder.load(most), value)
            to.builder.store(to.builder.select(to.builder.fcmp_unordered("uno", value, value), value, kept), most)
        to.store(to.builder.load(most), out, to.along(out_at, part.index, LANES))


@_instructions
def multiply(
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
def multiply_and_finish(
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
    """As `multiply`, plus the bias, plus rows of `added` where `adds` is not 0; the larger of that and the floor."""
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
        at = to.along(right_at, loop.index, LANES)
        vector = to.load(_VECTOR, right, at)
        to.fetch(right, to.along(at, depth, LANES))  # of what is next in memory, which mostly is read next
        to.fetch(left, to.along(to.along(left_at, step, ROWS), loop.index, ROWS))
        for row, total in zip(rows, sums, strict=True):
            number = to.spread(to.number(left, to.sum(row, loop.index)), _VECTOR)
            to.builder.store(to.multiply_add(number, vector, to.builder.load(total)), total)
    return sums


@_instructions
def transform_tile(
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

    def write(form: Form) -> None:
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
def answer_tile(
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

    def write(form: Form) -> None:
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
def transpose(to: Writer, source: Any, out: Any, source_at: Any, step: Any, out_at: Any, out_step: Any) -> None:
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
