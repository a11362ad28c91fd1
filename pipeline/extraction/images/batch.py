"""Images of any mix of sizes in one batch on a device, and all resampling of them.

`area_crops` averages rectangles straight from the pixels: on CUDA by `triton_kernels`, on the CPU by compiled loops
(`resampling_kernels`), and without Triton or numba by torch, box by box, always with the same bits.

To enlarge small faces averaging is not enough: `smooth_crops` interpolates between the pixels, and `sample` does so at
arbitrary points, for faces that are turned upright. `pillow_crops` resamples like the reference implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import ModuleType
from typing import cast

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

from pipeline.runtime.optional_kernels import SelfCheck, if_checked, if_compiled
from pipeline.runtime.threads import over_threads, parts
from pipeline.types import ByteArray


@if_compiled
def load_kernels() -> ModuleType:
    """The loops that resample images on the CPU."""
    from pipeline.extraction.images import resampling_kernels

    return resampling_kernels


@if_checked
def load_triton() -> tuple[ModuleType, SelfCheck]:
    """The kernels that resample images on CUDA."""
    from pipeline.extraction.images import triton_kernels

    return triton_kernels, partial(triton_kernels.self_check, batch_of=ImageBatch)


class PixelMemory:
    """Host memory for the pixels of batches, pinned where they go on to a CUDA device. One batch after the other uses
    it: new memory, which the kernel clears first, would take five times as long to fill. Threads may share it."""

    def __init__(self, device: torch.device, pixels: int) -> None:
        """`pixels`: of the largest batch that is to be expected."""
        self._device = device
        self._pixels = pixels
        self._free: list[torch.Tensor] = []

    @contextmanager
    def taken(self, pixels: int) -> Iterator[torch.Tensor]:
        """[m, 3] uint8 with room for so many pixels, for the block; the device must have read it by the end."""
        memory = self._any(pixels)
        yield memory
        if len(memory) == self._pixels:  # and not after an error: the device might read it still
            self._free.append(memory)

    def _any(self, pixels: int) -> torch.Tensor:
        if pixels <= self._pixels:
            with suppress(IndexError):
                return self._free.pop()
        with torch.inference_mode(False):  # later batches write into it in any mode
            return _host_memory(max(pixels, self._pixels), self._device)


class ImageBatch:
    """B upright RGB images on `device`.

    `images`: [H, W, 3] uint8, of any sizes: arrays, or tensors for images that are on the device already. On the
    device are `pixels` [sum of H * W, 3] uint8, one image after the other, `bases` [B] int64, the pixel where each
    begins, and `sizes` [B, 2] int64 (height, width).
    """

    def __init__(
        self,
        images: Sequence[ByteArray | torch.Tensor],
        device: torch.device | str = "cpu",
        memory: torch.Tensor | None = None,
    ) -> None:
        """`memory` [m, 3] uint8 on the host, for the pixels of the arrays among the images (`PixelMemory`)."""
        self.device = torch.device(device)
        self.host_sizes = [(int(i.shape[0]), int(i.shape[1])) for i in images]
        self.pixels = _joined(images, self.device, memory)
        host_sizes = np.array(self.host_sizes, dtype=np.int64).reshape(-1, 2)
        counts = host_sizes.prod(axis=1)
        self._host_base = counts.cumsum() - counts  # where each image's pixels begin
        self.bases = torch.from_numpy(self._host_base).to(self.device, non_blocking=True)
        self.sizes = torch.from_numpy(host_sizes).to(self.device, non_blocking=True)

    def __len__(self) -> int:
        return len(self.host_sizes)

    def host_pixels(self, image: int) -> ByteArray:
        """The image [H, W * 3] uint8, a view. Only for a batch on the CPU."""
        return self._image(image).flatten(1).numpy()

    def _image(self, image: int) -> torch.Tensor:
        """The image [H, W, 3] uint8 on the device, a view."""
        height, width = self.host_sizes[image]
        start = int(self._host_base[image])
        return self.pixels[start : start + height * width].view(height, width, 3)

    def area_crops(self, image: torch.Tensor, boxes: torch.Tensor, size: int) -> torch.Tensor:
        """Cuts rectangles and resamples each to size x size by area: [n, 3, size, size] float32 in [0, 255].

        `image` [n] int64; `boxes` [n, 4] int64 xyxy, half open, inside the image and not empty. Equal to
        adaptive average pooling of the cut rectangle (torch.nn.functional.interpolate with mode="area").
        """
        if triton := load_triton(self.device):
            return cast(torch.Tensor, triton.crops(self, image, boxes, size, smooth=False))
        if kernels := load_kernels(self.device.type):
            return self._cut(kernels.area_crops, image, boxes, size)
        return self.area_crops_by_torch(image, boxes, size)

    def area_crops_by_torch(self, image: torch.Tensor, boxes: torch.Tensor, size: int) -> torch.Tensor:
        """As `area_crops`, box by box."""
        return self._one_by_one(lambda pixels: _area_average(pixels, (size, size)), image, boxes, size)

    def area_resized(self, image: int, size: tuple[int, int]) -> torch.Tensor:
        """The image resampled by area to `size` (height, width): [3, height, width] float32 in [0, 255]."""
        return _area_average(self._image(image), size)

    def _cut(self, kernel: Callable[..., None], image: torch.Tensor, boxes: torch.Tensor, size: int) -> torch.Tensor:
        """The crops [n, 3, size, size] that a compiled loop makes of the host's pixels."""
        return self._filled(kernel, image, boxes, torch.empty((len(image), 3, size, size)))

    def _filled(
        self, kernel: Callable[..., None], image: torch.Tensor, places: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        """`out` [n, ...], filled by a compiled loop from the host's pixels: at `places` [n, ...] of the images [n]."""
        arrays = [np.ascontiguousarray(a.numpy()) for a in (image, places, out)]
        flat, sizes, starts = self.pixels.view(-1).numpy(), self.sizes.numpy(), self._host_base * 3
        over_threads(lambda part: kernel(flat, sizes, starts, *(a[part] for a in arrays)), parts(len(image)))
        return out

    def smooth_crops(self, image: torch.Tensor, boxes: torch.Tensor, size: int) -> torch.Tensor:
        """Like `area_crops`, with bilinear interpolation where the rectangle is smaller than size x size.

        Each output pixel is the average over a window of max(1, scale) source pixels around its centre, clipped to the
        rectangle: the exact area average when shrinking, and linear interpolation when enlarging (a window one pixel
        wide across two pixels weights them linearly).
        """
        if triton := load_triton(self.device):
            return cast(torch.Tensor, triton.crops(self, image, boxes, size, smooth=True))
        if kernels := load_kernels(self.device.type):
            return self._cut(kernels.smooth_crops, image, boxes, size)
        return self.smooth_crops_by_torch(image, boxes, size)

    def smooth_crops_by_torch(self, image: torch.Tensor, boxes: torch.Tensor, size: int) -> torch.Tensor:
        """As `smooth_crops`, up to float32's rounding, box by box."""
        return self._one_by_one(lambda pixels: _smooth(pixels, size), image, boxes, size)

    def _one_by_one(
        self, resample: Callable[[torch.Tensor], torch.Tensor], image: torch.Tensor, boxes: torch.Tensor, size: int
    ) -> torch.Tensor:
        """The crops [n, 3, size, size] that `resample` makes of each rectangle's pixels [h, w, 3]. Waits once for the
        device."""
        crops = torch.empty((len(image), 3, size, size), device=self.device)
        for crop, k, (x0, y0, x1, y1) in zip(crops, image.tolist(), boxes.tolist(), strict=True):
            crop[:] = resample(self._image(k)[y0:y1, x0:x1])
        return crops

    def pillow_crops(self, image: torch.Tensor, boxes: torch.Tensor, size: int) -> torch.Tensor:
        """Like Pillow's `Image.crop(box).resize((size, size), BILINEAR)`: triangular windows over two output pixels
        when shrinking, and whole grey levels, rounded after each direction.

        On the CPU Pillow itself does it; elsewhere matrix products, at most one grey level apart: versions of Pillow
        differ in the direction that they begin with.
        """
        if self.device.type != "cpu":
            return self._one_by_one(lambda pixels: as_pillow(pixels, size), image, boxes, size)
        faces = list(zip(image.tolist(), boxes.tolist(), strict=True))
        crops = over_threads(lambda face: self._pillow_crop(*face, size), faces)
        pixels = np.stack(crops) if crops else np.zeros((0, size, size, 3), np.uint8)
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).float().contiguous()

    def _pillow_crop(self, image: int, box: Sequence[int], size: int) -> ByteArray:
        """[size, size, 3] uint8."""
        x0, y0, x1, y1 = box
        cut = self.host_pixels(image)[y0:y1, 3 * x0 : 3 * x1].reshape(y1 - y0, x1 - x0, 3)
        return np.asarray(Image.fromarray(cut).resize((size, size), Image.Resampling.BILINEAR))

    def sample(self, image: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        """The images [n] at `points` [n, m, 2] float32 (x, y), interpolated: [n, m, 3] float32 in [0, 255].

        Bilinear; pixel centres lie at whole numbers, and outside the image is black: the same as torch's `grid_sample`
        (zeros, align_corners) and OpenCV's `warpAffine` (linear, constant border), but for images of any sizes at once:
        in a compiled loop, or with the same bits in one gather.
        """
        kernels = load_kernels(self.device.type)
        if kernels is None:
            return self._sample(image, points)
        return self._filled(kernels.sample, image, points, torch.empty((*points.shape[:2], 3)))

    def _sample(self, image: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        height, width = self.sizes[image][:, :, None].unbind(1)
        # From one pixel outside on everything is black; clamped there, every coordinate fits an index.
        x = torch.minimum(points[:, :, 0].clamp(min=-1), width)
        y = torch.minimum(points[:, :, 1].clamp(min=-1), height)
        base = self.bases[image][:, None]
        out = torch.zeros((*x.shape, 3), device=self.device)
        for column, across in _neighbours(x, width):
            for row, down in _neighbours(y, height):
                pixels = self.pixels.index_select(0, (base + row * width + column).flatten())
                out += pixels.view(*x.shape, 3) * (across * down).unsqueeze(-1)
        return out


def _area_average(pixels: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """[h, w, 3] uint8 -> [3, *size] float32 in [0, 255]: in float64 sums are exact, so this is their quotient, rounded
    once."""
    planes = pixels.permute(2, 0, 1)[None].to(torch.float64, memory_format=torch.contiguous_format)  # 7 times as fast
    return interpolate(planes, size=size, mode="area")[0].float()


def _host_memory(pixels: int, device: torch.device) -> torch.Tensor:
    """[pixels, 3] uint8, from which a copy to the device need not wait."""
    return torch.empty((pixels, 3), dtype=torch.uint8, pin_memory=device.type == "cuda")


def _joined(
    images: Sequence[ByteArray | torch.Tensor], device: torch.device, memory: torch.Tensor | None
) -> torch.Tensor:
    """The images' pixels one after the other on the device: [sum of H * W, 3] uint8. Arrays are uploaded in one copy
    from pinned memory, while the host goes on."""
    flat = [torch.from_numpy(image).view(-1, 3) for image in images if isinstance(image, np.ndarray)]
    pixels = sum(map(len, flat))
    if memory is None:
        memory = _host_memory(pixels, device)
    staged = memory[:pixels]
    uploaded = (torch.cat(flat, out=staged) if flat else staged).to(device, non_blocking=True)
    if len(flat) == len(images):
        return uploaded
    parts = iter(torch.split(uploaded, [len(part) for part in flat]))
    return torch.cat([next(parts) if isinstance(image, np.ndarray) else image.view(-1, 3) for image in images])


def _neighbours(coordinates: torch.Tensor, length: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The pixels below and above the coordinates [n, m], and the weight of each: 0 for a pixel outside 0..length - 1
    [n, 1]."""
    low = coordinates.floor()
    for pixel, share in ((low, low + 1 - coordinates), (low + 1, coordinates - low)):
        index = pixel.long()
        inside = (index >= 0) & (index < length)
        yield torch.minimum(index.clamp(min=0), length - 1), share * inside


def _smooth(pixels: torch.Tensor, size: int) -> torch.Tensor:
    """[h, w, 3] uint8 -> [3, size, size] float32, as `ImageBatch.smooth_crops`."""
    down, across = (_window_weights(length, size, pixels.device) for length in pixels.shape[:2])
    return down @ (pixels.permute(2, 0, 1).float() @ across.T)


def as_pillow(pixels: torch.Tensor, size: int) -> torch.Tensor:
    """As `_smooth`, but as Pillow does it: first across, then down, with whole grey levels after each."""
    down, across = (_triangle_weights(length, size, pixels.device) for length in pixels.shape[:2])
    return _whole_levels(down @ _whole_levels(pixels.permute(2, 0, 1).float() @ across.T))


def _window_weights(length: int, size: int, device: torch.device) -> torch.Tensor:
    """[size, length] float32: the weight of each source pixel in each output pixel's window; rows sum to 1."""
    centre, scale = _centres(length, size, device)
    half = max(scale, 1.0) / 2
    first, last = (centre - half).clamp(min=0), (centre + half).clamp(max=length)
    pixel = torch.arange(length, dtype=torch.float64, device=device)
    overlap = torch.minimum(last, pixel + 1) - torch.maximum(first, pixel)
    return (overlap.clamp(min=0) / (last - first)).float()


def _triangle_weights(length: int, size: int, device: torch.device) -> torch.Tensor:
    """As `_window_weights`, but Pillow's bilinear filter: triangles of twice max(1, scale) source pixels, clipped to
    the rectangle."""
    centre, scale = _centres(length, size, device)
    away = (torch.arange(length, dtype=torch.float64, device=device) + 0.5 - centre).abs() / max(scale, 1.0)
    weights = (1 - away).clamp(min=0)
    return (weights / weights.sum(dim=1, keepdim=True)).float()


def _centres(length: int, size: int, device: torch.device) -> tuple[torch.Tensor, float]:
    """Where the centres of the output pixels lie among `length` source pixels, [size, 1] float64, and the scale."""
    scale = length / size
    return (torch.arange(size, dtype=torch.float64, device=device)[:, None] + 0.5) * scale, scale


def _whole_levels(pixels: torch.Tensor) -> torch.Tensor:
    """Rounds grey levels as 8 bits do."""
    return (pixels + 0.5).floor().clamp(0, 255)
