"""A batch of images of mixed sizes, and resampling.

`HostBatch` uses compiled loops; `torch_batch.TorchBatch` is for CUDA, and CPUs without numba. Averages and samples have
equal bits in both, crops agree up to float32's rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

import numpy as np
from PIL import Image

from pipeline.runtime.threads import over_threads, parts
from pipeline.types import Array, ByteArray, FloatArray, IntArray


class ImageBatch(Protocol):
    """B upright RGB images [H, W, 3] uint8."""

    host_sizes: list[tuple[int, int]]  # (height, width)
    sizes: Array  # [B, 2] int64

    def __len__(self) -> int: ...

    def empty(self, shape: tuple[int, ...]) -> Array:
        """A float32 array of the batch's kind, on its device."""

    def area_crops(self, image: Array, boxes: Array, size: int) -> Array:
        """Cuts rectangles and resamples each to size x size by area: [n, 3, size, size] float32 in [0, 255].

        `image` [n] int64; `boxes` [n, 4] int64 xyxy, half open, inside the image, not empty. Equals adaptive average
        pooling (torch.nn.functional.interpolate with mode="area").
        """

    def smooth_crops(self, image: Array, boxes: Array, size: int) -> Array:
        """Like `area_crops`, but interpolates rectangles smaller than size x size.

        Output pixels average windows of max(1, scale) source pixels around their centres, clipped to the rectangle:
        exact area averages when shrinking, linear interpolation when enlarging.
        """

    def pillow_crops(self, image: Array, boxes: Array, size: int) -> Array:
        """Like Pillow's `Image.crop(box).resize((size, size), BILINEAR)`: triangular windows over two output pixels
        when shrinking; grey levels are rounded after each direction.

        On CUDA matrix products, within one grey level: versions of Pillow differ in the first direction.
        """

    def sample(self, image: Array, points: Array) -> Array:
        """The images [n] interpolated at `points` [n, m, 2] float32 (x, y): [n, m, 3] float32 in [0, 255].

        Bilinear, pixel centres at integers, black outside, like torch's `grid_sample` (zeros, align_corners) and
        OpenCV's `warpAffine` (linear, constant border).
        """


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


def crops_by_pillow(pixels_of: Callable[[int], ByteArray], image: Array, boxes: Array, size: int) -> FloatArray:
    """`ImageBatch.pillow_crops` on the host; `pixels_of` an image [H, W, 3] uint8, by number."""

    def cut(face: tuple[int, list[int]]) -> ByteArray:
        x0, y0, x1, y1 = face[1]
        part = Image.fromarray(pixels_of(face[0])[y0:y1, x0:x1])
        return np.asarray(part.resize((size, size), Image.Resampling.BILINEAR))

    crops = over_threads(cut, list(zip(image.tolist(), boxes.tolist(), strict=True)))
    pixels = np.array(crops, np.float32).reshape(-1, size, size, 3)
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


def host_memory(pixels: int) -> ByteArray:
    """Memory for `joined`: [pixels, 3] uint8."""
    return np.empty((pixels, 3), np.uint8)


class HostBatch:
    """An `ImageBatch` in NumPy arrays. Needs numba, except for `pillow_crops`."""

    def __init__(self, images: Sequence[ByteArray], memory: ByteArray | None = None) -> None:
        """`images` [H, W, 3] uint8, any sizes; `memory` [m, 3] uint8 for their pixels (`PixelMemory`)."""
        self.host_sizes = [(image.shape[0], image.shape[1]) for image in images]
        self.sizes: IntArray = np.array(self.host_sizes, np.int64).reshape(-1, 2)
        counts = self.sizes.prod(axis=1)
        self._starts = counts.cumsum() - counts  # each image's first pixel
        self.pixels = joined(images, host_memory(counts.sum()) if memory is None else memory)

    def __len__(self) -> int:
        return len(self.host_sizes)

    def empty(self, shape: tuple[int, ...]) -> FloatArray:
        return np.empty(shape, np.float32)

    def image(self, number: int) -> ByteArray:
        """[H, W, 3] uint8, a view."""
        height, width = self.host_sizes[number]
        start = self._starts[number]
        return self.pixels[start : start + height * width].reshape(height, width, 3)

    def area_crops(self, image: IntArray, boxes: IntArray, size: int) -> FloatArray:
        return self._filled("area_crops", image, boxes, (3, size, size))

    def smooth_crops(self, image: IntArray, boxes: IntArray, size: int) -> FloatArray:
        return self._filled("smooth_crops", image, boxes, (3, size, size))

    def sample(self, image: IntArray, points: FloatArray) -> FloatArray:
        return self._filled("sample", image, points, (points.shape[1], 3))

    def pillow_crops(self, image: IntArray, boxes: IntArray, size: int) -> FloatArray:
        return crops_by_pillow(self.image, image, boxes, size)

    def _filled(self, loop: str, image: IntArray, places: FloatArray | IntArray, shape: tuple[int, ...]) -> FloatArray:
        """[n, *shape] from a loop of `resampling_kernels` at `places` [n, ...] of images [n]."""
        from pipeline.extraction.images import resampling_kernels

        kernel = getattr(resampling_kernels, loop)
        out = self.empty((len(image), *shape))
        arrays = [np.ascontiguousarray(image), np.ascontiguousarray(places), out]
        flat, starts = self.pixels.reshape(-1), self._starts * 3
        over_threads(lambda part: kernel(flat, self.sizes, starts, *(a[part] for a in arrays)), parts(len(image)))
        return out
