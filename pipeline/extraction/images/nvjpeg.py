"""JPEG files -> pixels in the device's memory, a batch at a time; on CUDA by nvJPEG, through torchvision.

Its pixels are not libjpeg's: it upsamples colour differently, which moves embeddings and decisions (docs/speed.md). So
it runs only on request, and only in the mode `fast`. Files that it cannot decode go to the reference decoder, one by
one, which also reports what is wrong with a file.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torchvision.io import ImageReadMode, decode_jpeg

from pipeline.config import DEVICE, FAST, DecodeSettings, RunSettings
from pipeline.errors import ImageRejected
from pipeline.extraction.images.decode import ARRAY_TURNS, decode_image, silence_decoders
from pipeline.runtime.device import finish, on_cuda
from pipeline.runtime.threads import over_threads
from pipeline.types import DecodedImage, DeviceImage, EncodedImage

_MANY: Final = 8  # if so many images all fail, the device is the reason, not the images
_log: Final = logging.getLogger(__name__)


def decodes_on_device(settings: RunSettings) -> bool:
    """Whether a run decodes JPEG files on its device."""
    return settings.mode == FAST and settings.jpeg == DEVICE and on_cuda(settings)


class DeviceDecoder:
    """Decodes what `Decoder.prepare` left encoded. Safe to call from many threads, each in its own stream."""

    def __init__(self, settings: DecodeSettings) -> None:
        self._settings = settings
        self._works = True  # until the device fails at a whole batch

    def __call__(
        self, images: Sequence[DecodedImage | EncodedImage], device: torch.device
    ) -> list[DecodedImage | DeviceImage | ImageRejected]:
        """The images in their order: decoded on `device`, else on the CPU, else the reason for their rejection."""
        encoded = [image for image in images if isinstance(image, EncodedImage)]
        by_device = self._on_device(encoded, device) if self._works else [None] * len(encoded)
        failed = [image for image, decoded in zip(encoded, by_device, strict=True) if decoded is None]
        by_cpu = iter(over_threads(self._on_cpu, failed))
        decoded = (next(by_cpu) if image is None else image for image in by_device)
        return [next(decoded) if isinstance(image, EncodedImage) else image for image in images]

    def _on_device(self, images: Sequence[EncodedImage], device: torch.device) -> list[DeviceImage | None]:
        problems: list[str] = []
        pixels = _decoded(images, device, problems)
        if len(images) >= _MANY and not any(pixels):
            self._works = False
            problem = next(iter(problems), "its pictures have other sides than the headers say")
            _log.warning("%s decodes no JPEG file (%s): from here on the CPU does it", device, problem)
        return pixels

    def _on_cpu(self, image: EncodedImage) -> DecodedImage | ImageRejected:
        try:
            return decode_image(image.data, self._settings)
        except ImageRejected as exc:
            return exc


def _decoded(images: Sequence[EncodedImage], device: torch.device, problems: list[str]) -> list[DeviceImage | None]:
    """None for each image that the device cannot decode: a failure does not name the image, so the batch is halved to
    find it."""
    if not images:
        return []
    # torchvision's stream may reuse freed memory that this stream still reads (its issue 9606).
    finish(device)
    try:
        return [_upright(image, stored) for image, stored in zip(images, _stored(images, device), strict=True)]
    except RuntimeError as exc:  # out of memory, too
        problems.append(str(exc).split("\n", 1)[0])  # keeping the exception would keep the batch's memory
    if len(images) == 1:
        return [None]
    middle = len(images) // 2
    return _decoded(images[:middle], device, problems) + _decoded(images[middle:], device, problems)


def _stored(images: Sequence[EncodedImage], device: torch.device) -> list[torch.Tensor]:
    """[3, H, W] uint8 each, as stored (no EXIF turn)."""
    files = [torch.from_numpy(np.frombuffer(image.data, np.uint8).copy()) for image in images]
    silence_decoders()
    pictures: list[torch.Tensor] = decode_jpeg(files, ImageReadMode.RGB, device)
    return pictures


def _upright(image: EncodedImage, stored: torch.Tensor) -> DeviceImage | None:
    swapped, down, across = ARRAY_TURNS.get(image.orientation, (False, 1, 1))
    pixels = stored.permute(2, 1, 0) if swapped else stored.permute(1, 2, 0)
    mirrored = [axis for axis, step in enumerate((down, across)) if step < 0]
    pixels = (pixels.flip(mirrored) if mirrored else pixels).contiguous()
    return DeviceImage(pixels) if pixels.shape == (image.height, image.width, 3) else None
