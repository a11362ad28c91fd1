"""What a network's part for the compiled loops is made of: convolutions, pools and sums, from one value to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pipeline.models.onnx_graph import Array
from pipeline.models.winograd_forms import answers

Pair: TypeAlias = tuple[int, int]  # down the rows, and along them
Size: TypeAlias = tuple[int, int, int]  # rows, columns, channels


@dataclass(frozen=True)
class Convolution:
    """`weights` [o, c, rows, columns] every `step` pixels and `bias` [o], with `padding` zeros around; `relu`: and its
    ReLU."""

    weights: Array
    bias: Array
    padding: Pair = (0, 0)
    step: int = 1
    relu: bool = False

    @property
    def taps(self) -> Pair:
        return self.weights.shape[2], self.weights.shape[3]

    @property
    def pointwise(self) -> bool:
        """Whether each answer reads one pixel, and each pixel has one."""
        return (*self.taps, self.step) == (1, 1, 1) and self.padding == (0, 0)

    def size(self, source: Size) -> Size:
        """Of its answer."""
        rows, columns = (answers(self.taps[axis], self.step, source[axis], self.padding[axis]) for axis in (0, 1))
        return rows, columns, len(self.bias)


@dataclass(frozen=True)
class Pool:
    """The largest of each side x side pixels, `step` apart, without padding; what is cut off at the end is left out."""

    side: int
    step: int

    def size(self, source: Size) -> Size:
        """Of its answer."""
        return answers(self.side, self.step, source[0], 0), answers(self.side, self.step, source[1], 0), source[2]


Layer: TypeAlias = "Convolution | Pool"


@dataclass(frozen=True)
class Step:
    """A layer from one value to the channels of another from `first` on. `added`: a value that a pointwise convolution
    adds to its answer, before the ReLU."""

    layer: Layer
    source: str
    target: str
    first: int = 0
    added: str | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.source,) if self.added is None else (self.source, self.added)


class Unfit(ValueError):
    """The loops cannot do these steps."""


def sizes_of(steps: Sequence[Step], source: str, size: Size) -> dict[str, Size]:
    """Of every value, where `source` has `size`. Raises Unfit where the steps do not go together."""
    sizes = {source: size}
    for step in steps:
        if step.source not in sizes:
            raise Unfit(f"{step.source} is read before it is made")
        rows, columns, channels = step.layer.size(sizes[step.source])
        known = sizes.get(step.target, (rows, columns, 0))
        if known[:2] != (rows, columns) or min(rows, columns) < 1:
            raise Unfit(f"{step.target} would have parts of {rows} x {columns} and {known[:2]} pixels")
        if step.added is not None and sizes.get(step.added) != (rows, columns, channels):
            raise Unfit(f"{step.added} is added to {(rows, columns, channels)}")
        sizes[step.target] = rows, columns, max(known[2], step.first + channels)
    return sizes
