"""JPEG files -> pixels in device memory, in batches, by NVIDIA's nvImageCodec (extra `cuda`).

Its deviation from libjpeg on CUDA is not measured yet, so it runs only on request, in the mode `fast` (docs/speed.md).
The reference decoder handles and reports files that it refuses.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pipeline.config import DEVICE, FAST, DecodeSettings, RunSettings
from pipeline.errors import BadValue, ImageRejected
from pipeline.extraction.images.decode import ARRAY_TURNS, decode_image
from pipeline.runtime.device import finish, is_cuda, on_cuda, raise_if_failed
from pipeline.runtime.threads import over_threads, threads_here
from pipeline.texts import install_extra
from pipeline.types import DecodedImage, DeviceImage, EncodedImage

if TYPE_CHECKING:
    import torch

_MANY: Final = 8  # if so many images fail together, the device is the cause
_log: Final = logging.getLogger(__name__)


def decodes_on_device(settings: RunSettings) -> bool:
    """Whether a run decodes JPEG files on its device."""
    return settings.mode == FAST and settings.jpeg == DEVICE and on_cuda(settings)


def load_nvimgcodec() -> Any:
    """nvImageCodec's module. Raises BadValue if it cannot be imported."""
    # It prints messages about refused files unless this is 0 before the first import.
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")
    try:
        from nvidia import nvimgcodec
    except ImportError as exc:
        problem = f"nvImageCodec cannot be imported ({exc}): {install_extra('cuda')}, or use cpu"
        raise BadValue(key="run.jpeg", where="the settings", value=DEVICE, expected=problem) from None
    return nvimgcodec


class JpegLibrary:
    """nvImageCodec's decoder for one device, with its own threads. Thread-safe."""

    def __init__(self, interpolates: bool = True) -> None:
        """`interpolates`: upsample chroma as libjpeg-turbo does."""
        self._options = f":fancy_upsampling={int(interpolates)}"
        self._decoder: Any = None
        self._lock = threading.Lock()  # one decoder breaks under concurrent calls

    def __call__(self, files: Sequence[bytes], device: str) -> list[torch.Tensor | None]:
        """[H, W, 3] uint8 RGB each, as stored (no EXIF orientation); None for a refused file.

        Runs in this thread's stream. Call `finish` before releasing the tensors: the library owns their memory and may
        not wait for readers. Raises BadValue, and RuntimeError if the library fails.
        """
        import torch

        library, cuda = load_nvimgcodec(), is_cuda(device)
        as_stored = library.DecodeParams(apply_exif_orientation=False)
        stream = torch.cuda.current_stream(device).cuda_stream if cuda else 0
        streams = [library.CodeStream(data) for data in files]
        with self._lock:
            self._decoder = self._decoder or self._decoder_for(device, library)
            images = self._decoder.decode(streams, params=as_stored, cuda_stream=stream)
        # No copies. torch reads the CUDA array interface, which host images lack.
        arrays = images if cuda else [None if image is None else np.asarray(image) for image in images]
        return [None if array is None else torch.as_tensor(array, device=device) for array in arrays]

    def _decoder_for(self, device: str, library: Any) -> Any:
        where, kinds = library.NVIMGCODEC_DEVICE_CPU_ONLY, [library.CPU_ONLY]
        if is_cuda(device):  # no CPU decoders: they accept files that ours refuses
            where = int(device.partition(":")[2] or 0)
            kinds = [library.HW_GPU_ONLY, library.GPU_ONLY, library.HYBRID_CPU_GPU]
        return library.Decoder(where, threads_here(), [library.Backend(kind) for kind in kinds], self._options)


class DeviceDecoder:
    """Decodes what `Decoder.prepare` left encoded. Thread-safe, with a stream per thread."""

    def __init__(self, settings: DecodeSettings) -> None:
        self._settings = settings
        self._library = JpegLibrary()
        self._works = True  # until the device fails for a whole batch

    def __call__(
        self, images: Sequence[DecodedImage | EncodedImage], device: str
    ) -> list[DecodedImage | DeviceImage | ImageRejected]:
        """The images in order, decoded on `device`, else on the CPU, or why they are rejected. Raises DeviceFailed."""
        encoded = [image for image in images if isinstance(image, EncodedImage)]
        by_device = self._on_device(encoded, device) if self._works and encoded else [None] * len(encoded)
        failed = [image for image, decoded in zip(encoded, by_device, strict=True) if decoded is None]
        by_cpu = iter(over_threads(self._on_cpu, failed))
        decoded = (next(by_cpu) if image is None else image for image in by_device)
        return [next(decoded) if isinstance(image, EncodedImage) else image for image in images]

    def _on_device(self, images: Sequence[EncodedImage], device: str) -> list[DeviceImage | None]:
        """The images; None if the device cannot decode one."""
        import torch

        pixels: list[DeviceImage | None] = [None] * len(images)
        problem = "it refuses them all"
        for _ in range(2):
            try:
                pixels = self._copied(images, device)
                break
            except RuntimeError as exc:  # includes lack of memory
                raise_if_failed(exc)
                problem = str(exc).split("\n", 1)[0]  # the exception itself would keep the batch's memory
            finish(device)  # raises a lost device's error again, in known words
            torch.cuda.empty_cache()  # the library cannot use torch's cached memory
        if len(images) >= _MANY and not any(pixels):
            self._works = False
            _log.warning("nvImageCodec decodes no JPEG file on %s (%s): from here on the CPU does it", device, problem)
        return pixels

    def _copied(self, images: Sequence[EncodedImage], device: str) -> list[DeviceImage | None]:
        """The decoded images in torch's memory. A separate function, so that failures keep no memory."""
        stored = self._library([image.data for image in images], device)
        pairs = zip(images, stored, strict=True)
        decoded = [None if one is None else _upright(image, one) for image, one in pairs]
        finish(device)
        return decoded

    def _on_cpu(self, image: EncodedImage) -> DecodedImage | ImageRejected:
        try:
            return decode_image(image.data, self._settings)
        except ImageRejected as exc:
            return exc


def _upright(image: EncodedImage, stored: torch.Tensor) -> DeviceImage | None:
    """An upright copy; None if the size is not the header's."""
    swapped, *steps = ARRAY_TURNS.get(image.orientation, (False, 1, 1))
    mirrored = [axis for axis, step in enumerate(steps) if step < 0]
    # flip copies even if nothing is mirrored.
    pixels = (stored.transpose(0, 1) if swapped else stored).flip(mirrored).contiguous()
    return DeviceImage(pixels) if pixels.shape == (image.height, image.width, 3) else None
