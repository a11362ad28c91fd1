"""Convolutions with fewer products than their definition has: the matrices, exact, for each kind of layer.

A form turns `places` numbers of one axis into `points` (matrix `pixels`), which are multiplied by the layer's weights,
turned likewise (`weights`), and summed over the channels; the answers are sums of these products (`answers`). In two
dimensions each axis has its form.

Toom-Cook's polynomial products (Winograd 1980, "Arithmetic Complexity of Computations"; Lavin & Gray 2015, "Fast
Algorithms for Convolutional Neural Networks") give F(m, r): m answers of r weights by m + r - 1 products. With few
points of small size the answers in float32 are as exact as some ten roundings allow; so long filters are put together
from short ones, each factor of which has few points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np

from pipeline.models.onnx_graph import Array

Matrix: TypeAlias = tuple[tuple[Fraction, ...], ...]
_Number: TypeAlias = "int | Fraction"

# More weights have to be read for a form of many points: as if each point had so many tiles more to multiply.
_READING: Final = 8


@dataclass(frozen=True)
class Axis:
    """The form of one axis, for `taps` weights every `step` pixels."""

    pixels: Matrix  # [points, places]
    weights: Matrix  # [points, taps]
    answers: Matrix  # [answers, points]
    step: int = 1
    # Where the form holds only for pixels of this number, `padding` zeros before and behind them being part of it.
    whole: int | None = None
    padding: int = 0

    @property
    def points(self) -> int:
        return len(self.pixels)

    @property
    def taps(self) -> int:
        return len(self.weights[0])

    def fits(self, taps: int, step: int, length: int, padding: int) -> bool:
        """Whether it is for an axis of `length` pixels with `padding` zeros before and behind. With more of these than
        weights, whole tiles would lie outside."""
        if (taps, step) != (self.taps, self.step) or padding > taps:
            return False
        return self.whole is None or (self.whole, self.padding) == (length, padding)

    def tiles(self, length: int) -> int:
        """How many there are, for so many answers."""
        return -(-length // len(self.answers))


@dataclass(frozen=True)
class Form:
    """Two axes: down the rows and along them."""

    down: Axis
    across: Axis

    @property
    def points(self) -> int:
        return self.down.points * self.across.points

    @property
    def places(self) -> int:
        """Pixels of a tile."""
        return len(self.down.pixels[0]) * len(self.across.pixels[0])

    @property
    def answers(self) -> int:
        return len(self.down.answers) * len(self.across.answers)

    def transform(self, weights: Array) -> Array:
        """Weights [o, c, taps, taps] -> [points, o, c] in float64."""
        first, second = (np.array(axis.weights, np.float64) for axis in (self.down, self.across))
        points: Array = np.einsum("ia,ocab,jb->ijoc", first, weights.astype(np.float64), second)
        return points.reshape(self.points, *weights.shape[:2])


def toom(answers: int, taps: int, points: Sequence[_Number]) -> Axis:
    """F(answers, taps) with these points and infinity."""
    at = [Fraction(point) for point in points]
    if len({*at}) != answers + taps - 2:
        raise ValueError(f"F({answers}, {taps}) takes {answers + taps - 2} points, besides infinity")
    products = [_product([other for other in at if other != point]) for point in at]
    places = answers + taps - 1
    return Axis(
        pixels=tuple((*product, *[Fraction(0)] * (places - len(product))) for product in (*products, _product(at))),
        weights=(
            *(
                tuple(point**tap / _value(product, point) for tap in range(taps))
                for point, product in zip(at, products, strict=True)
            ),
            tuple(Fraction(tap == taps - 1) for tap in range(taps)),
        ),
        answers=tuple((*(point**n for point in at), Fraction(n == answers - 1)) for n in range(answers)),
    )


def direct(taps: int, step: int = 1) -> Axis:
    """The definition: one answer, every product."""
    same = tuple(tuple(Fraction(i == j) for j in range(taps)) for i in range(taps))
    return Axis(same, same, ((Fraction(1),) * taps,), step)


def nested(outer: Axis, inner: Axis, taps: int, padding: int) -> Axis:
    """`outer` over blocks that `inner` does, of the first `taps` weights, for a whole axis: as many pixels as answers,
    `padding` zeros around them. Products that are always 0 are left out."""
    block = len(inner.answers)
    if block != inner.taps:
        raise ValueError("blocks of answers and of weights must be of one length")
    length = len(outer.answers) * block
    pixels = []
    for row in outer.pixels:
        for short in inner.pixels:
            places = [Fraction(0)] * ((len(row) - 1) * block + len(short))
            for i, factor in enumerate(row):
                for j, value in enumerate(short):
                    places[i * block + j] += factor * value
            pixels.append(tuple(places[padding : padding + length]))
    weights = _kron(outer.weights, inner.weights)
    answers = _kron(outer.answers, inner.answers)
    used = [k for k, row in enumerate(weights) if any(row[:taps])]
    return Axis(
        tuple(pixels[k] for k in used),
        tuple(weights[k][:taps] for k in used),
        tuple(tuple(row[k] for k in used) for row in answers),
        whole=length,
        padding=padding,
    )


def halved(short: Axis) -> Axis:
    """Three weights every second pixel: the first and third by `short` over the even pixels, the second over the odd
    ones by its definition."""
    answers = len(short.answers)
    places, none = 2 * answers + 1, Fraction(0)
    pixels = [tuple(row[i // 2] if i % 2 == 0 else none for i in range(places)) for row in short.pixels]
    pixels += [tuple(Fraction(i == 2 * n + 1) for i in range(places)) for n in range(answers)]
    weights = [(first, none, third) for first, third in short.weights]
    weights += [(none, Fraction(1), none)] * answers
    both = [(*row, *(Fraction(n == m) for m in range(answers))) for n, row in enumerate(short.answers)]
    return Axis(tuple(pixels), tuple(weights), tuple(both), step=2)


def cheapest(taps: tuple[int, int], step: int, size: tuple[int, int], padding: tuple[int, int]) -> int | None:
    """Which of FORMS convolves pictures of `size` rows and columns with the fewest products; None if none can."""
    costs = {}
    for number, form in enumerate(FORMS):
        axes = list(zip((form.down, form.across), taps, size, padding, strict=True))
        if all(axis.fits(count, step, length, zeros) for axis, count, length, zeros in axes):
            tiles = [axis.tiles(answers(count, step, length, zeros)) for axis, count, length, zeros in axes]
            costs[number] = form.points * (tiles[0] * tiles[1] + _READING)
    return min(costs, key=lambda number: costs[number], default=None)


def answers(taps: int, step: int, length: int, padding: int) -> int:
    """How many answers an axis of `length` pixels has."""
    return (length + 2 * padding - taps) // step + 1


def _product(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """The coefficients of the polynomial with these roots and leading coefficient 1, constant first."""
    found, none = [Fraction(1)], Fraction(0)
    for root in roots:
        found = [low - root * high for low, high in zip((none, *found), (*found, none), strict=True)]
    return tuple(found)


def _value(coefficients: Sequence[Fraction], at: Fraction) -> Fraction:
    found = Fraction(0)
    for factor in reversed(coefficients):
        found = found * at + factor
    return found


def _kron(a: Matrix, b: Matrix) -> Matrix:
    return tuple(tuple(x * y for x in row for y in other) for row in a for other in b)


_ONE: Final = direct(1)
_THREE4: Final = toom(4, 3, [0, 1, -1, 2, -2])
_THREE6: Final = toom(6, 3, [0, 1, -1, 2, -2, Fraction(1, 2), Fraction(-1, 2)])
_SEVEN: Final = nested(toom(2, 2, [0, 1]), toom(4, 4, [0, 1, -1, 2, -2, Fraction(1, 2)]), taps=7, padding=3)
_SECOND2: Final = halved(toom(2, 2, [0, 1]))
_SECOND3: Final = halved(toom(3, 2, [0, 1, -1]))

# What the compiled loops have instructions for.
FORMS: Final = (
    Form(_THREE4, _THREE4),
    Form(_THREE6, _THREE6),
    Form(_SECOND3, _SECOND3),
    Form(_SECOND2, _SECOND2),
    Form(_ONE, _SEVEN),
    Form(_SEVEN, _ONE),
    Form(direct(3), direct(3)),
    Form(direct(3, 2), direct(3, 2)),
    Form(_ONE, direct(3)),
    Form(direct(3), _ONE),
)
