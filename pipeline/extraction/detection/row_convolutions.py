"""Two rows of a 3 x 3 convolution at once, in vector instructions, for detection's compiled loops.

Across rows it uses Winograd's F(2, 3) (Winograd 1980, "Arithmetic Complexity of Computations"; Lavin & Gray 2015, "Fast
Algorithms for Convolutional Neural Networks"): four products of rows instead of six, at float32's usual accuracy. Along
the row columns are multiplied one by one. Registers accumulate 4 output channels and 24 numbers of a row.

Needs numba. The machine code is compiled into the calling loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from llvmlite import ir

from pipeline.runtime.compiled import FUSED, compiled
from pipeline.runtime.vector_code import Writer, cgutils, intrinsic, nothing
from pipeline.types import FloatArray

OUTPUTS: Final = 4  # output channels at a time
VECTOR: Final = 8  # numbers, 256 bits: 12 sums, 3 inputs and a weight then fill the 16 registers of AVX2
_NUMBERS: Final = ir.VectorType(ir.FloatType(), VECTOR)
_ZERO: Final = ir.Constant(_NUMBERS, [0.0] * VECTOR)


def packed_layer(weight: FloatArray, bias: FloatArray, slope: FloatArray) -> FloatArray:
    """A 3 x 3 or 2 x 2 convolution and its PReLU: [o / 4, 8 + 4 * c * k * 4] float32, o padded to a multiple of 4.

    Per 4 outputs: biases, slopes, and weights of Winograd's four products of rows, by input
    channel and column. A third row of zeros completes 2 x 2.
    """
    weights = weight.astype(np.float64)
    outputs, channels, rows, columns = weights.shape
    missing = -outputs % OUTPUTS
    padded = np.pad(weights, [(0, missing), (0, 0), (0, 3 - rows), (0, 0)])
    upper, middle, lower = padded[:, :, 0], padded[:, :, 1], padded[:, :, 2]
    products = np.stack([(upper + middle + lower) / 2, (upper - middle + lower) / 2, upper, lower], axis=1)
    by_four = products.reshape(-1, OUTPUTS, 4, channels, columns).transpose(0, 2, 3, 4, 1)
    ends = (np.pad(p, (0, missing)).reshape(-1, OUTPUTS) for p in (bias, slope))
    return np.concatenate([*ends, by_four.reshape(len(by_four), -1)], axis=1).astype(np.float32)


class _Tile(Writer):
    """Emits one tile's instructions, from the arguments in `convolve_pair`."""

    def __init__(self, context: Any, builder: Any, vectors: int, kinds: Any, arguments: Any) -> None:
        super().__init__(context, builder)
        self._vectors = vectors
        values = self.values(kinds, arguments)
        self._products, self._layer, self._out = values[:3]
        self._x, self._row, self._channels, self._taps, self._step = values[3:8]
        self._layer_at, self._upper_at, self._lower_at, self._out_row, self._lower_channels = values[8:]

    def write(self) -> None:
        """Upper row: products 0 + 1 + 2; lower row: 0 - 1 + 3. Product 0 starts with the bias."""
        bias = [self._spread(self.sum(self._layer_at, o)) for o in range(OUTPUTS)]
        even = self._add_product(0, [b for b in bias for _ in range(self._vectors)], self._channels)
        odd = self._add_product(1, [_ZERO] * len(even), self._channels)
        upper = [self.builder.fadd(e, o) for e, o in zip(even, odd, strict=True)]
        lower = [self.builder.fsub(e, o) for e, o in zip(even, odd, strict=True)]
        self._finish(self._add_product(2, upper, self._channels), self._upper_at)
        self._finish(self._add_product(3, lower, self._lower_channels), self._lower_at)

    def _add_product(self, product: int, starts: Sequence[Any], channels: Any) -> list[Any]:
        """`starts` plus one of the four products: weights times rows, summed over channels and columns."""
        sums = [cgutils.alloca_once_value(self.builder, start) for start in starts]
        weights = self.product(self.product(self._channels, self._taps), OUTPUTS)
        weights_at = self.sum(self._layer_at, 2 * OUTPUTS, self.product(weights, product))
        rows_at = self.sum(self._x, self.product(self.product(self._channels, self._row), product))
        with cgutils.for_range(self.builder, channels) as channel:
            channel_at = self.sum(rows_at, self.product(channel.index, self._row))
            first_tap = self.product(channel.index, self._taps)
            with cgutils.for_range(self.builder, self._taps) as tap:
                at = self.sum(channel_at, self.product(tap.index, self._step))
                taps = self.product(self.sum(first_tap, tap.index), OUTPUTS)
                self._add_column(sums, at, self.sum(weights_at, taps))
        return [self.builder.load(total) for total in sums]

    def _add_column(self, sums: Sequence[Any], at: Any, weights_at: Any) -> None:
        numbers = [self.load(_NUMBERS, self._products, self.sum(at, v * VECTOR)) for v in range(self._vectors)]
        for o in range(OUTPUTS):
            weight = self._spread(self.sum(weights_at, o))
            for v in range(self._vectors):
                place = sums[o * self._vectors + v]
                self.builder.store(self.multiply_add(weight, numbers[v], self.builder.load(place)), place)

    def _finish(self, sums: Sequence[Any], out_at: Any) -> None:
        """Applies PReLU and writes the output row."""
        for o in range(OUTPUTS):
            slope = self._spread(self.sum(self._layer_at, OUTPUTS + o))
            for v in range(self._vectors):
                value = sums[o * self._vectors + v]
                positive = self.builder.fcmp_ordered(">", value, _ZERO)
                value = self.builder.select(positive, value, self.builder.fmul(value, slope))
                self.store(value, self._out, self.sum(out_at, self.product(self._out_row, o), v * VECTOR))

    def _spread(self, layer_at: Any) -> Any:
        return self.spread(self.number(self._layer, layer_at), _NUMBERS)


def _tile(vectors: int) -> Any:
    """The instruction for 4 output channels and `vectors` vectors of two output rows."""

    @intrinsic  # type: ignore[untyped-decorator]
    def tile(_: Any, products: Any, layer: Any, out: Any, places: Any) -> Any:
        def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _Tile(context, builder, vectors, signature.args, arguments).write()
            return context.get_dummy_value()

        return nothing(products, layer, out, places), write

    return tile


_tile1, _tile2, _tile3 = _tile(1), _tile(2), _tile(3)


@compiled(**FUSED)
def row_room(count: int) -> int:
    """Length of a row for `count` numbers: whole vectors are read and written, from any column on."""
    return -(-count // VECTOR) * VECTOR + VECTOR


@compiled(**FUSED)
def four_products(row0: Any, row1: Any, row2: Any, row3: Any, products: Any) -> None:
    """The inputs of Winograd's F(2, 3) from four successive rows [c, n]: fills `products` [4, c, n]."""
    for channel in range(len(row0)):
        a, b, c, d = row0[channel], row1[channel], row2[channel], row3[channel]
        p0, p1, p2, p3 = products[0, channel], products[1, channel], products[2, channel], products[3, channel]
        for x in range(len(a)):
            p0[x], p1[x], p2[x], p3[x] = b[x] + c[x], c[x] - b[x], a[x] - c[x], d[x] - b[x]


@compiled(**FUSED)
def convolve_pair(
    products: Any, layer: Any, taps: int, step: int, count: int, out: Any, upper: int, lower: int, fourth: bool
) -> None:
    """Two rows of a convolution and its PReLU: fills the first `count` numbers of out[upper] and out[lower].

    `products` [4, c, n] from `four_products`; `layer` from `packed_layer`, with `taps` columns, `step` numbers
    apart; `out` [rows, o, m]. n and m are >= `row_room` of the rows' lengths; the extra room gets arbitrary values.
    Without the `fourth` product out[lower] lacks the third row of weights.
    """
    channels, row, out_row = products.shape[1], products.shape[2], out.shape[2]
    lower_channels = channels if fourth else 0
    for block in range(len(layer)):
        at, o = block * layer.shape[1], OUTPUTS * block
        up, low = (upper * out.shape[1] + o) * out_row, (lower * out.shape[1] + o) * out_row
        x = 0
        while x + 2 * VECTOR < count:
            _tile3(products, layer, out, (x, row, channels, taps, step, at, up + x, low + x, out_row, lower_channels))
            x += 3 * VECTOR
        if x + VECTOR < count:
            _tile2(products, layer, out, (x, row, channels, taps, step, at, up + x, low + x, out_row, lower_channels))
        elif x < count:
            _tile1(products, layer, out, (x, row, channels, taps, step, at, up + x, low + x, out_row, lower_channels))
