"""A batch of images of mixed sizes, and resampling.

`HostBatch` uses compiled loops; `TorchBatch` is for CUDA, and CPUs without numba. Averages and samples have equal bits
in both, crops agree up to float32's rounding.
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
    sizes: Array  # [B, 2] int64

    def __len__(self) -> int: ...

    def empty(self, shape: tuple[int, ...]) -> Array:
        """A float32 array of the batch's kind, on its device."""
        ...

    def area_crops(self, image: Array, boxes: Array, size: int) -> Array:
        """Cuts rectangles and resamples each to size x size by area: [n, 3, size, size] float32 in [0, 255].

        `image` [n] int64; `boxes` [n, 4] int64 xyxy, half open, inside the image, not empty. Equals adaptive average
        pooling (torch.nn.functional.interpolate with mode="area").
        """
        ...

    def smooth_crops(self, image: Array, boxes: Array, size: int) -> Array:
        """Like `area_crops`, but interpolates rectangles smaller than size x size.

        Output pixels average windows of max(1, scale) source pixels around their centres, clipped to the rectangle:
        exact area averages when shrinking, linear interpolation when enlarging.
        """
        ...

    def pillow_crops(self, image: Array, boxes: Array, size: int) -> Array:
        """Like Pillow's `Image.crop(box).resize((size, size), BILINEAR)`: triangular windows over two output pixels
        when shrinking; grey levels are rounded after each direction.

        On CUDA matrix products, within one grey level: versions of Pillow differ in the first direction.
        """
        ...

    def sample(self, image: Array, points: Array) -> Array:
        """The images [n] interpolated at `points` [n, m, 2] float32 (x, y): [n, m, 3] float32 in [0, 255].

        Bilinear, pixel centres at integers, black outside, like torch's `grid_sample` (zeros, align_corners) and
        OpenCV's `warpAffine` (linear, constant border).
        """
        ...


class PixelMemory:
    """Reusable host memory for batches' pixels; new memory, cleared by the kernel, takes five times as long to fill.
    Thread-safe."""

    def __init__(self, pixels: int, allocate: Callable[[int], ByteArray]) -> None:
        """`pixels` of the largest expected batch. `allocate(n)` returns [n, 3] uint8."""
        self._pixels = pixels
        self._allocate = allocate
        self._free: list[ByteArray] = []

    @contextmanager
    def taken(self, pixels: int) -> Iterator[ByteArray]:
        """[m, 3] uint8 for `pixels` pixels; the device must have read it at the end of the block."""
        memory = self._any(pixels)
        yield memory
        if len(memory) == self._pixels:  # not after an error: the device may still read it
            self._free.append(memory)

    def _any(self, pixels: int) -> ByteArray:
        if pixels <= self._pixels:
            with suppress(IndexError):
                return self._free.pop()
        return self._allocate(max(pixels, self._pixels))


def joined(images: Sequence[ByteArray], memory: ByteArray) -> ByteArray:
    """Concatenates the pixels of images [H, W, 3] uint8 at the start of `memory` [m, 3]."""
    staged = memory[: sum(image.shape[0] * image.shape[1] for image in images)]
    return np.concatenate([image.reshape(-1, 3) for image in images], out=staged) if images else staged


def pillow_crop(pixels: ByteArray, box: Sequence[int], size: int) -> ByteArray:
    """[size, size, 3] uint8: an image's box xyxy, resampled by Pillow."""
    x0, y0, x1, y1 = box
    cut = Image.fromarray(pixels[y0:y1, x0:x1])
    return np.asarray(cut.resize((size, size), Image.Resampling.BILINEAR))
