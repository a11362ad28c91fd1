"""A batch of images in torch tensors, on CUDA or a CPU without numba. Triton resamples on CUDA, or else torch, box by
box."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import cast

import numpy as np
import torch
from torch.nn.functional import interpolate

from pipeline.extraction.images.batch import crops_by_pillow, joined
from pipeline.runtime.optional_kernels import SelfCheck, if_checked
from pipeline.types import ByteArray


@if_checked
def load_triton() -> tuple[ModuleType, SelfCheck]:
    """The kernels that resample images on CUDA."""
    from pipeline.extraction.images import triton_kernels

    return triton_kernels, partial(triton_kernels.self_check, batch_of=TorchBatch)


class TorchBatch:
    """An `ImageBatch` on `device`.

    `images` [H, W, 3] uint8, any sizes: arrays, or tensors on the device. On the device are `pixels` [sum of H * W, 3]
    uint8, `bases` [B] int64 (first pixels), and `sizes` [B, 2] int64 (height, width).
    """

    def __init__(
        self,
        images: Sequence[ByteArray | torch.Tensor],
        device: torch.device | str = "cpu",
        memory: ByteArray | None = None,
    ) -> None:
        """`memory` [m, 3] uint8 for the arrays' pixels (`PixelMemory`)."""
        self.device = torch.device(device)
        self.host_sizes = [(int(i.shape[0]), int(i.shape[1])) for i in images]
        self.pixels = _joined(images, self.device, memory)
        host_sizes = np.array(self.host_sizes, dtype=np.int64).reshape(-1, 2)
        counts = host_sizes.prod(axis=1)
        self._host_base = counts.cumsum() - counts  # each image's first pixel
        self.bases = torch.from_numpy(self._host_base).to(self.device, non_blocking=True)
        self.sizes = torch.from_numpy(host_sizes).to(self.device, non_blocking=True)

    def __len__(self) -> int:
        return len(self.host_sizes)

    def empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, device=self.device)

    def _image(self, image: int) -> torch.Tensor:
        """[H, W, 3] uint8 on the device, a view."""
        height, width = self.host_sizes[image]
        start = int(self._host_base[image])
        return self.pixels[start : start + height * width].view(height, width, 3)

    def area_crops(self, image: torch.Tensor, boxes: torch.Tensor, size: int) -> torch.Tensor:
        if triton := load_triton(self.device):
            return cast(torch.Tensor, triton.crops(self, image, boxes, size, smooth=False))
        return self.area_crops_by_torch(image, boxes, size)

    def area_crops_by_torch(self, image: torch.Tensor, boxes: torch.Tensor, size: int) -> torch.Tensor:
        """As `area_crops`, box by box."""
        return self._one_by_one(lambda pixels: _area_average(pixels, (size, size)), image, boxes, size)

    def area_resized(self, image: int, size: tuple[int, int]) -> torch.Tensor:
        """The image resampled by area to `size` (height, width): [3, height, width] float32 in [0, 255]."""
        return _area_average(self._image(image), size)

    def smooth_crops(self, image: torch.Tensor, boxes: torch.Tensor, size: int) -> torch.Tensor:
        if triton := load_triton(self.device):
            return cast(torch.Tensor, triton.crops(self, image, boxes, size, smooth=True))
        return self.smooth_crops_by_torch(image, boxes, size)

    def smooth_crops_by_torch(self, image: torch.Tensor, boxes: torch.Tensor, size: int) -> torch.Tensor:
        """As `smooth_crops`, up to float32's rounding, box by box."""
        return self._one_by_one(lambda pixels: _smooth(pixels, size), image, boxes, size)

    def _one_by_one(
        self, resample: Callable[[torch.Tensor], torch.Tensor], image: torch.Tensor, boxes: torch.Tensor, size: int
    ) -> torch.Tensor:
        """Crops [n, 3, size, size] by `resample` of rectangles' pixels [h, w, 3]. Waits once for the device."""
        crops = torch.empty((len(image), 3, size, size), device=self.device)
        for crop, k, (x0, y0, x1, y1) in zip(crops, image.tolist(), boxes.tolist(), strict=True):
            crop[:] = resample(self._image(k)[y0:y1, x0:x1])
        return crops

    def pillow_crops(self, image: torch.Tensor, boxes: torch.Tensor, size: int) -> torch.Tensor:
        if self.device.type != "cpu":
            return self._one_by_one(lambda pixels: as_pillow(pixels, size), image, boxes, size)
        return torch.from_numpy(crops_by_pillow(lambda k: self._image(k).numpy(), image, boxes, size))

    def sample(self, image: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        height, width = self.sizes[image][:, :, None].unbind(1)
        # Black from one pixel outside on: clamped, coordinates fit an index.
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
    """[h, w, 3] uint8 -> [3, *size] float32 in [0, 255]: exact sums in float64, one rounded division."""
    planes = pixels.permute(2, 0, 1)[None].to(torch.float64, memory_format=torch.contiguous_format)  # 7 times as fast
    return interpolate(planes, size=size, mode="area")[0].float()


def pinned_memory(pixels: int, device: torch.device | str) -> ByteArray:
    """[pixels, 3] uint8 for `joined`, for copies to the device without waiting."""
    pinned = torch.device(device).type == "cuda"
    return torch.empty((pixels, 3), dtype=torch.uint8, pin_memory=pinned).numpy()


def _joined(images: Sequence[ByteArray | torch.Tensor], device: torch.device, memory: ByteArray | None) -> torch.Tensor:
    """Concatenates the images' pixels on the device: [sum of H * W, 3] uint8. Arrays are uploaded in one asynchronous
    copy from pinned memory."""
    arrays = [image for image in images if isinstance(image, np.ndarray)]
    if memory is None:
        memory = pinned_memory(sum(image.shape[0] * image.shape[1] for image in arrays), device)
    uploaded = torch.from_numpy(joined(arrays, memory)).to(device, non_blocking=True)
    if len(arrays) == len(images):
        return uploaded
    parts = iter(torch.split(uploaded, [image.shape[0] * image.shape[1] for image in arrays]))
    return torch.cat([next(parts) if isinstance(image, np.ndarray) else image.view(-1, 3) for image in images])


def _neighbours(coordinates: torch.Tensor, length: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pixels below and above coordinates [n, m], and their weights: 0 outside 0..length - 1 [n, 1]."""
    low = coordinates.floor()
    for pixel, share in ((low, low + 1 - coordinates), (low + 1, coordinates - low)):
        index = pixel.long()
        inside = (index >= 0) & (index < length)
        yield torch.minimum(index.clamp(min=0), length - 1), share * inside


def _smooth(pixels: torch.Tensor, size: int) -> torch.Tensor:
    """[h, w, 3] uint8 -> [3, size, size] float32, as `TorchBatch.smooth_crops`."""
    down, across = (_window_weights(length, size, pixels.device) for length in pixels.shape[:2])
    return down @ (pixels.permute(2, 0, 1).float() @ across.T)


def as_pillow(pixels: torch.Tensor, size: int) -> torch.Tensor:
    """As `_smooth`, like Pillow: first across, then down, rounding grey levels after each."""
    down, across = (_triangle_weights(length, size, pixels.device) for length in pixels.shape[:2])
    return _whole_levels(down @ _whole_levels(pixels.permute(2, 0, 1).float() @ across.T))


def _window_weights(length: int, size: int, device: torch.device) -> torch.Tensor:
    """[size, length] float32: weights of source pixels in output pixels' windows; rows sum to 1."""
    centre, scale = _centres(length, size, device)
    half = max(scale, 1.0) / 2
    first, last = (centre - half).clamp(min=0), (centre + half).clamp(max=length)
    pixel = torch.arange(length, dtype=torch.float64, device=device)
    overlap = torch.minimum(last, pixel + 1) - torch.maximum(first, pixel)
    return (overlap.clamp(min=0) / (last - first)).float()


def _triangle_weights(length: int, size: int, device: torch.device) -> torch.Tensor:
    """As `_window_weights`, with Pillow's bilinear filter: triangles of twice max(1, scale) source pixels, clipped."""
    centre, scale = _centres(length, size, device)
    away = (torch.arange(length, dtype=torch.float64, device=device) + 0.5 - centre).abs() / max(scale, 1.0)
    weights = (1 - away).clamp(min=0)
    return (weights / weights.sum(dim=1, keepdim=True)).float()


def _centres(length: int, size: int, device: torch.device) -> tuple[torch.Tensor, float]:
    """Output centres among `length` source pixels, [size, 1] float64, and the scale."""
    scale = length / size
    return (torch.arange(size, dtype=torch.float64, device=device)[:, None] + 0.5) * scale, scale


def _whole_levels(pixels: torch.Tensor) -> torch.Tensor:
    """Rounds grey levels to 8 bits."""
    return (pixels + 0.5).floor().clamp(0, 255)
