"""Steps made ready for the compiled loops: weights in their order, and which loop does what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final, TypeAlias

import numpy as np

from pipeline.models.layers import Convolution, Pool, Size, Step, Unfit
from pipeline.models.loop_memory import Needs, View, zeros
from pipeline.models.onnx_graph import Array
from pipeline.models.winograd_forms import FORMS, cheapest

_TILES: Final = 4  # times ROWS of a product that are transformed at a time, unless that takes more than
_SPECTRA: Final = 6 * 2**16  # numbers, which mostly stay in the second cache

# (view, number of pictures) -> nothing: does the step.
Work: TypeAlias = Callable[[View, int], None]


class ReadyStep:
    """A step with what it needs, ready to be done."""

    def __init__(self, step: Step, sizes: Mapping[str, Size], kernels: ModuleType) -> None:
        """Raises Unfit."""
        self.step = step
        self.needs = Needs()
        self.unfolds = False
        self._kernels = kernels
        if isinstance(step.layer, Pool):
            if sizes[step.source][2] % kernels.LANES:
                raise Unfit(f"a pool of {sizes[step.source][2]} channels")
            self._work: Work = self._pool(step.layer)
            return
        layer = step.layer
        outputs, channels, source = len(layer.bias), layer.weights.shape[1], sizes[step.source]
        self.unfolds = channels < kernels.LANES
        if channels != source[2] or outputs % kernels.LANES or (channels % kernels.LANES and not self.unfolds):
            raise Unfit(f"{source[2]} channels, and weights {layer.weights.shape}")
        if step.added is not None and not layer.pointwise:
            raise Unfit(f"{step.added} is added to a convolution of {layer.taps}")
        self._bias, self._floor = zeros(outputs), np.float32(0 if layer.relu else -np.inf)
        self._bias[:] = layer.bias
        if self.unfolds:
            self._work = self._unfold(layer, sizes[step.target])
        elif layer.pointwise:
            self._work = self._product(layer)
        else:
            self._work = self._convolve(layer, source)

    def __call__(self, view: View, count: int) -> None:
        """Does it for the first `count` pictures."""
        self._work(view, count)

    def _pool(self, layer: Pool) -> Work:
        step, pool = self.step, self._kernels.pool

        def work(view: View, count: int) -> None:
            pool(view.pictures(step.source), count, layer.side, layer.step, view.pictures(step.target), step.first)

        return work

    def _unfold(self, layer: Convolution, size: Size) -> Work:
        """A product with every answer's pixels side by side: of few channels, which make no vectors."""
        if layer.padding != (0, 0):
            raise Unfit("padding around few channels")
        step, kernels, floor = self.step, self._kernels, self._floor
        rows, columns, depth = size[0], size[1], layer.weights[0].size
        packed = self._packed(layer.weights.reshape(1, len(layer.weights), depth))
        self.needs = Needs(each=(rows * columns + kernels.ROWS) * depth)

        def work(view: View, count: int) -> None:
            pixels = count * rows * columns
            source = view.spectra[: (pixels + kernels.ROWS) * depth].reshape(-1, depth)
            target = view.pixels(step.target)
            kernels.unfold(view.given, *layer.taps, layer.step, columns, source)
            kernels.product(source, pixels, packed, floor, False, target, target, step.first)

        return work

    def _product(self, layer: Convolution) -> Work:
        step, product, floor = self.step, self._kernels.product, self._floor
        packed = self._packed(layer.weights[:, :, 0, 0][None])

        def work(view: View, count: int) -> None:
            rows, columns, _ = view.sizes[step.source]
            target = view.pixels(step.target)
            added = target if step.added is None else view.pixels(step.added)
            adds = step.added is not None
            source, pixels = view.pixels(step.source), count * rows * columns
            product(source, pixels, packed, floor, adds, added, target, step.first)

        return work

    def _convolve(self, layer: Convolution, source: Size) -> Work:
        step, kernels, floor = self.step, self._kernels, self._floor
        which = cheapest(layer.taps, layer.step, source[:2], layer.padding)
        if which is None:
            raise Unfit(f"a convolution of {layer.taps} every {layer.step} pixels")
        form, channels = FORMS[which], layer.weights.shape[1]
        packed = self._packed(form.transform(layer.weights))
        tiles = min(_TILES, max(1, _SPECTRA // (form.points * channels) // kernels.ROWS)) * kernels.ROWS
        self.needs = Needs(
            spectra=form.points * (tiles * channels + kernels.LANES),
            products=form.points * (tiles * kernels.COLUMNS + kernels.LANES),
            tile=max(form.places * channels, form.answers * kernels.COLUMNS),
        )
        axes = zip((form.down, form.across), layer.padding, strict=True)
        around = tuple(0 if axis.whole else padding for axis, padding in axes)  # the others' is part of the form

        def work(view: View, count: int) -> None:
            scratch = view.spectra, view.products, view.tile
            target = view.pictures(step.target), step.first
            kernels.convolve(which, view.pictures(step.source), count, around, packed, floor, tiles, *scratch, *target)

        return work

    def _packed(self, weights: Any) -> tuple[Array, Array]:
        """Weights [points, o, c] as blocks [c, lanes] in the order in which the loops read them: of COLUMNS outputs one
        point after the other, then of the next. And the bias."""
        points, outputs, channels = weights.shape
        lanes, columns = self._kernels.LANES, self._kernels.COLUMNS
        packed = zeros(points * outputs // lanes, channels, lanes)
        for first in range(0, outputs, columns):
            some = weights[:, first : first + columns]
            blocks = some.reshape(-1, lanes, channels).swapaxes(1, 2)
            start = points * first // lanes
            packed[start : start + len(blocks)] = blocks
        return packed, self._bias
