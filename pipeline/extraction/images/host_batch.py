"""A batch of images on the host, resampled by compiled loops. Needs numba."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pipeline.extraction.images import resampling_kernels
from pipeline.extraction.images.batch import joined, pillow_crop
from pipeline.runtime.threads import over_threads, parts
from pipeline.types import ByteArray, FloatArray, IntArray


def host_memory(pixels: int) -> ByteArray:
    """Memory for `joined`: [pixels, 3] uint8."""
    return np.empty((pixels, 3), np.uint8)


class HostBatch:
    """An `ImageBatch` in NumPy arrays."""

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
        return self._filled(resampling_kernels.area_crops, image, boxes, (3, size, size))

    def smooth_crops(self, image: IntArray, boxes: IntArray, size: int) -> FloatArray:
        return self._filled(resampling_kernels.smooth_crops, image, boxes, (3, size, size))

    def sample(self, image: IntArray, points: FloatArray) -> FloatArray:
        return self._filled(resampling_kernels.sample, image, points, (points.shape[1], 3))

    def pillow_crops(self, image: IntArray, boxes: IntArray, size: int) -> FloatArray:
        faces = list(zip(image.tolist(), boxes.tolist(), strict=True))
        crops = over_threads(lambda face: pillow_crop(self.image(face[0]), face[1], size), faces)
        pixels = np.array(crops, np.float32).reshape(-1, size, size, 3)
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))

    def _filled(
        self, kernel: Callable[..., None], image: IntArray, places: FloatArray | IntArray, shape: tuple[int, ...]
    ) -> FloatArray:
        """[n, *shape] from a compiled loop at `places` [n, ...] of images [n]."""
        out = self.empty((len(image), *shape))
        arrays = [np.ascontiguousarray(image), np.ascontiguousarray(places), out]
        flat, starts = self.pixels.reshape(-1), self._starts * 3
        over_threads(lambda part: kernel(flat, self.sizes, starts, *(a[part] for a in arrays)), parts(len(image)))
        return out
