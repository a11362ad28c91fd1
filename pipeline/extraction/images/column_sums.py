"""Sums of neighbouring pixels of a row, red, green and blue in one vector: for the averages of `detection_kernels`.

Importing this module needs numba. The machine code becomes a part of what calls it.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir

from pipeline.runtime.vector_code import Writer, cgutils, intrinsic, nothing

_PIXEL: Final = ir.VectorType(ir.IntType(32), 4)  # the fourth number is the next pixel's, and not looked at
_FLOATS: Final = ir.VectorType(ir.FloatType(), 4)
_COLOURS: Final = 3


@intrinsic  # type: ignore[untyped-decorator]
def add_along(_: Any, sums: Any, count: Any, running: Any) -> Any:
    """The sums of the first 0 .. `count` pixels, modulo 2^32: `sums` [>= 3 * count + 1] int32 -> `running`
    [>= 4 * count + 4]."""

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
def sums_between(_: Any, running: Any, left: Any, right: Any, count: Any, out: Any, row: Any) -> Any:
    """What lies in [left, right) of `count` places, of the `running` sums: to `out`, a row of `row` numbers for each of
    three colours."""

    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to = Writer(context, builder)
        source, starts, ends, number, target, width = to.values(signature.args, arguments)
        with cgutils.for_range(builder, number) as loop:
            sums = (to.load(_PIXEL, source, to.product(to.number(each, loop.index), 4)) for each in (ends, starts))
            floats = builder.sitofp(builder.sub(*sums), _FLOATS)
            for colour in range(_COLOURS):
                value = builder.extract_element(floats, ir.Constant(ir.IntType(32), colour))
                builder.store(value, builder.gep(target, [to.sum(to.product(width, colour), loop.index)]))
        return context.get_dummy_value()

    return nothing(running, left, right, count, out, row), write
