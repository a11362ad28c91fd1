"""A batch of images of any mix of sizes, and all resampling of them.

`HostBatch` does it in compiled loops over NumPy's arrays, `TorchBatch` on CUDA, and on a CPU without numba. Both give
the same bits for averages and samples, and the same crops up to float32's rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

import numpy as np
from PIL import Image

from pipeline.types import Array, ByteArray


class ImageBatch(Protocol):
    """B upright RGB images [H, W, 3] uint8."""

    host_sizes: list[tuple[int, int]]  # (height, width)
    sizes: Array  # the same, [B, 2] int64

    def __len__(self) -> int: ...

    def empty(self, shape: tuple[int, ...]) -> Array:
        """A float32 array of the batch's kind, on its device."""
        ...

    def area_crops(self, image: Array, boxes: Array, size: int) -> Array:
        """Cuts rectangles and resamples each to size x size by area: [n, 3, size, size] float32 in [0, 255].

        `image` [n] int64; `boxes` [n, 4] int64 xyxy, half open, inside the image and not empty. Equal to
        adaptive average pooling of the cut rectangle (torch.nn.functional.interpolate with mode="area").
        """
        ...

    def smooth_crops(self, image: Array, boxes: Array, size: int) -> Array:
        """Like `area_crops`, with bilinear interpolation if the rectangle is smaller than size x size.

        Each output pixel is the average over a window of max(1, scale) source pixels around its centre, clipped to the
        rectangle: the exact area average when shrinking, and linear interpolation when enlarging (a window one pixel
        wide across two pixels weights them linearly).
        """
        ...

    def pillow_crops(self, image: Array, boxes: Array, size: int) -> Array:
        """Like Pillow's `Image.crop(box).resize((size, size), BILINEAR)`: triangular windows over two output pixels
        when shrinking, and whole grey levels, rounded after each direction.

        On the CPU Pillow itself does it; on CUDA matrix products, at most one grey level apart: versions of Pillow
        differ in the direction that they begin with.
        """
        ...

    def sample(self, image: Array, points: Array) -> Array:
        """The images [n] at `points` [n, m, 2] float32 (x, y), interpolated: [n, m, 3] float32 in [0, 255].

        Bilinear; pixel centres lie at whole numbers, and outside the image is black: the same as torch's `grid_sample`
        (zeros, align_corners) and OpenCV's `warpAffine` (linear, constant border), but for images of any sizes at once.
        """
        ...


class PixelMemory:
    """Host memory for the pixels of batches. One batch after the other uses it: new memory, which the kernel clears
    first, would take five times as long to fill. Threads may share it."""

    def __init__(self, pixels: int, allocate: Callable[[int], ByteArray]) -> None:
        """`pixels`: of the largest batch that is to be expected. `allocate(n)` gives [n, 3] uint8."""
        self._pixels = pixels
        self._allocate = allocate
        self._free: list[ByteArray] = []

    @contextmanager
    def taken(self, pixels: int) -> Iterator[ByteArray]:
        """[m, 3] uint8 with room for so many pixels, for the block; the device must have read it by the end."""
        memory = self._any(pixels)
        yield memory
        if len(memory) == self._pixels:  # and not after an error: the device might read it still
            self._free.append(memory)

    def _any(self, pixels: int) -> ByteArray:
        if pixels <= self._pixels:
            with suppress(IndexError):
                return self._free.pop()
        return self._allocate(max(pixels, self._pixels))


def joined(images: Sequence[ByteArray], memory: ByteArray) -> ByteArray:
    """The pixels of images [H, W, 3] uint8 one after the other: the beginning of `memory` [m, 3]."""
    staged = memory[: sum(image.shape[0] * image.shape[1] for image in images)]
    return np.concatenate([image.reshape(-1, 3) for image in images], out=staged) if images else staged


def pillow_crop(pixels: ByteArray, box: Sequence[int], size: int) -> ByteArray:
    """[size, size, 3] uint8: the box xyxy of an image [H, W, 3], resampled by Pillow."""
    x0, y0, x1, y1 = box
    cut = Image.fromarray(pixels[y0:y1, x0:x1])
    return np.asarray(cut.resize((size, size), Image.Resampling.BILINEAR))
