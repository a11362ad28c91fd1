"""Runs of convolutions in the compiled loops of `winograd_kernels`, with pools and 1 x 1 convolutions between them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Final, TypeAlias

import numpy as np

from pipeline.models.onnx_graph import Array

# Pictures that go through a run together have at least as many tiles, or weights are read more often than need be.
_TILES_TOGETHER: Final = 96
# The paper's G for F(4, 3): the weights as a polynomial, at 0, 1, -1, 2, -2 and infinity.
_WEIGHTS: Final = np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]], np.float64) / 24


@dataclass(frozen=True)
class Convolution:
    """A convolution of step 1 and its ReLU: `weights` [o, c, 3, 3] or [o, c, 1, 1], `bias` [o]; `padding` on each
    side, none for 1 x 1."""

    weights: Array
    bias: Array
    padding: int


@dataclass(frozen=True)
class Pool:
    """The largest of each side x side pixels, `step` apart, without padding; what is cut off at the end is left out."""

    side: int
    step: int


Layer: TypeAlias = "Convolution | Pool"
_Packed: TypeAlias = tuple[Array, Array]
_Size: TypeAlias = tuple[int, int]


@functools.cache
def load_kernels() -> ModuleType | None:
    """The compiled loops; None without a numba that works with this Python and NumPy.

    The first call compiles them, some ten seconds, or loads what an earlier process compiled.
    """
    try:
        return import_module("pipeline.models.winograd_kernels")
    except (ImportError, OSError):  # OSError: numba's own library is missing
        return None


def is_winograd(layer: Layer) -> bool:
    """Whether it is a convolution 3 x 3."""
    return isinstance(layer, Convolution) and layer.weights.shape[2] == 3


class Chain:
    """Layers one after the other, the first and the last a 3 x 3 convolution. Several threads may call it at once.

    Each thread keeps its own scratch memory, of the size that a few pictures need however many there are.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        kernels = load_kernels()
        if kernels is None:
            raise RuntimeError("the compiled loops need numba")
        self._layers = tuple(layers)
        self._kernels = kernels
        self._packed = [_packed(layer, kernels.LANES) if isinstance(layer, Convolution) else None for layer in layers]
        self._own = threading.local()

    def __call__(self, x: Array) -> Array:
        """[n, c, h, w] float32 -> [n, o, h', w']."""
        scratch = self._scratch(x.shape)
        out = np.empty((len(x), scratch.pictures[-1].shape[3], *scratch.sizes[-1]), np.float32)
        for start in range(0, len(x), scratch.together):
            part = slice(start, start + scratch.together)
            self._run(x[part], scratch, out[part])
        return out

    def _run(self, x: Array, scratch: _Scratch, out: Array) -> None:
        kernels = self._kernels
        kernels.enter(x, scratch.offsets[0], scratch.pictures[0])
        for i, (layer, packed) in enumerate(zip(self._layers, self._packed, strict=True)):
            source, target = scratch.pictures[i], (scratch.pictures[i + 1], scratch.offsets[i + 1])
            sizes = len(x), *scratch.sizes[i + 1]
            if isinstance(layer, Pool):
                kernels.pool(source, *sizes, layer.side, layer.step, *target)
            elif layer.weights.shape[2] == 1:
                kernels.pointwise(scratch.pixels[i], *sizes, packed, *target)
            else:
                kernels.convolve(source, *sizes, packed, scratch.spectra, scratch.products, *target)
        kernels.leave(scratch.pictures[-1], out)

    def _scratch(self, shape: tuple[int, ...]) -> _Scratch:
        """This thread's, made anew when pictures of another size come."""
        found: _Scratch | None = getattr(self._own, "scratch", None)
        if found is None or found.shape != shape[1:]:
            found = self._own.scratch = _Scratch(self._layers, shape[1:], self._kernels)
        return found


class _Scratch:
    """What one thread needs for pictures of one shape [c, h, w]: before, between and behind the layers.

    Pictures are [n, rows, columns, channels], from row and column `offset` on: the padding of the layer that reads
    them. Only what is a picture is ever written; the rest stays zero.
    """

    def __init__(self, layers: Sequence[Layer], shape: tuple[int, ...], kernels: ModuleType) -> None:
        self.shape = shape
        self.sizes: list[_Size] = [(shape[1], shape[2])]
        channels, held, tiles = [shape[0]], [], []
        for layer in layers:
            channels.append(len(layer.bias) if isinstance(layer, Convolution) else channels[-1])
            self.sizes.append(_answers(layer, self.sizes[-1]))
            if is_winograd(layer):
                down, across = (-(-length // kernels.SIDE) for length in self.sizes[-1])
                tiles.append(down * across)
                held.append((down * kernels.SIDE + 2, across * kernels.SIDE + 2))
            else:
                held.append(self.sizes[-2])
        self.together = -(-_TILES_TOGETHER // min(tiles))
        self.offsets = [layer.padding if isinstance(layer, Convolution) else 0 for layer in layers] + [0]
        self.pixels: list[Array] = []  # one below the other, [n, c], of each of the `pictures`
        self.pictures: list[Array] = []
        for count, (rows, columns) in zip(channels, [*held, self.sizes[-1]], strict=True):
            number = self.together * rows * columns
            self.pixels.append(np.zeros((number + kernels.ROWS, count), np.float32))  # whole ROWS are read
            self.pictures.append(self.pixels[-1][:number].reshape(self.together, rows, columns, count))
        self.spectra = np.zeros(36 * (kernels.TILES * max(channels) + kernels.LANES), np.float32)
        self.products = np.zeros(36 * (kernels.TILES * kernels.COLUMNS + kernels.LANES), np.float32)


def _answers(layer: Layer, size: _Size) -> _Size:
    """How many rows and columns come out."""
    height, width = size
    if isinstance(layer, Pool):
        return (height - layer.side) // layer.step + 1, (width - layer.side) // layer.step + 1
    less = layer.weights.shape[2] - 1 - 2 * layer.padding
    return height - less, width - less


def _packed(layer: Convolution, lanes: int) -> _Packed:
    """Weights as the loops read them, [36 or 1, o / lanes, c, lanes], computed in float64; and the bias."""
    outputs, channels, side, _ = layer.weights.shape
    weights: Any = layer.weights.astype(np.float64)
    if side == 3:
        weights = np.einsum("ia,ocab,jb->ijoc", _WEIGHTS, weights, _WEIGHTS)
    blocks = weights.reshape(-1, outputs // lanes, lanes, channels).swapaxes(2, 3)
    return np.ascontiguousarray(blocks, np.float32), np.array(layer.bias, np.float32)
