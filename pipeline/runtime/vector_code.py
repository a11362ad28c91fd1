"""Handwritten LLVM instructions, for loops that numba does not vectorise or keeps in memory instead of registers.

An `intrinsic` returns a call's types and a function that emits instructions (numba's `extending.intrinsic`). LLVM
splits vectors that are too long for the processor. Needs numba.
"""

from __future__ import annotations

from typing import Any, Final

import numba.core.cgutils
import numba.extending
from llvmlite import ir
from numba.core import types

# numba's annotations are wrong here.
intrinsic: Final[Any] = numba.extending.intrinsic
cgutils: Final[Any] = numba.core.cgutils
nothing: Final[Any] = types.void
_PLACE: Final = ir.IntType(64)
_MAY_FUSE: Final = ("contract",)


class Writer:
    """Emits instructions with llvmlite's `builder`. A place is an index into an array."""

    def __init__(self, context: Any, builder: Any) -> None:
        self.context, self.builder = context, builder

    def values(self, kinds: Any, arguments: Any) -> list[Any]:
        """A call's arguments: an array's address, a tuple's members."""
        found: list[Any] = []
        for kind, argument in zip(kinds, arguments, strict=True):
            if isinstance(kind, types.Array):
                found.append(self.context.make_array(kind)(self.context, self.builder, argument).data)
            else:
                members = isinstance(kind, types.BaseTuple)
                found += cgutils.unpack_tuple(self.builder, argument) if members else [argument]
        return found

    def place(self, number: int) -> Any:
        return ir.Constant(_PLACE, number)

    def sum(self, first: Any, *others: Any) -> Any:
        for other in others:
            first = self.builder.add(first, self.place(other) if isinstance(other, int) else other)
        return first

    def product(self, a: Any, b: Any) -> Any:
        return self.builder.mul(a, self.place(b) if isinstance(b, int) else b)

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """a x b + c, in one instruction if possible."""
        return self.builder.fadd(self.builder.fmul(a, b, flags=_MAY_FUSE), c, flags=_MAY_FUSE)

    def number(self, array: Any, at: Any) -> Any:
        return self.builder.load(self.builder.gep(array, [at]))

    def load(self, kind: ir.VectorType, array: Any, at: Any) -> Any:
        return self.builder.load(self._vector(kind, array, at), align=4)

    def store(self, value: Any, array: Any, at: Any) -> None:
        self.builder.store(value, self._vector(value.type, array, at), align=4)

    def _vector(self, kind: ir.VectorType, array: Any, at: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(array, [at]), kind.as_pointer())

    def spread(self, number: Any, kind: ir.VectorType) -> Any:
        """A vector with the number in every element."""
        undefined, first = ir.Constant(kind, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        one = self.builder.insert_element(undefined, number, first)
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), [0] * kind.count)
        return self.builder.shuffle_vector(one, undefined, everywhere)
