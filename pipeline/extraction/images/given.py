"""Images in the forms that callers have them in: path, bytes of a file, array, PIL image."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image

from pipeline.config import DecodeSettings
from pipeline.errors import ImageRejected, UsageError
from pipeline.extraction.images.decode import decode_picture
from pipeline.extraction.images.files import read_file
from pipeline.types import ByteArray, DecodedImage

# A path or an address of a bucket; the bytes of a file; [H, W, 3] uint8 RGB, upright; a PIL image of any mode.
GivenImage: TypeAlias = str | Path | bytes | ByteArray | Image.Image

_AXES, _CHANNELS = 3, 3


def read_given(image: GivenImage, settings: DecodeSettings) -> bytes | DecodedImage:
    """The bytes of a file, or the pixels of an array or a PIL image, whose EXIF orientation is applied.

    Raises ImageRejected, and UsageError for anything else.
    """
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | Path):
        try:
            return read_file(image, settings.max_bytes)
        except ImageRejected as rejected:
            rejected.args = (f"{image}: {rejected}",)
            raise
    if isinstance(image, Image.Image):
        return decode_picture(image, settings)
    if not isinstance(image, np.ndarray):
        raise UsageError(message=f"An image is a path, bytes, an array or a PIL image, not {type(image).__name__}.")
    if image.ndim != _AXES or image.shape[2] != _CHANNELS or image.dtype != np.uint8 or 0 in image.shape:
        raise UsageError(message=f"Pixels must be [H, W, 3] uint8, not {list(image.shape)} {image.dtype}.")
    return decode_picture(Image.fromarray(image), settings)


def encode_given(image: GivenImage, settings: DecodeSettings) -> bytes:
    """The image as the bytes of a file with the same pixels. Raises as `read_given`."""
    given = read_given(image, settings)
    if isinstance(given, bytes):
        return given
    file = io.BytesIO()
    Image.fromarray(given.pixels).save(file, "BMP")
    return file.getvalue()
