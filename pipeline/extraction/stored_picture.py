"""The image stored for a reference: the face with its surroundings, as a JPEG without metadata."""

from __future__ import annotations

import io
from typing import Final

import numpy as np
from PIL import Image

from pipeline.types import ByteArray, FloatArray

MEDIA_TYPE: Final = "image/jpeg"
_AROUND = 0.5  # of the box's side, on each side: room for a later model to detect and align the face again
_QUALITY = 92


def surroundings(box: FloatArray, width: int, height: int) -> tuple[int, int, int, int]:
    """The part of an image to store: `box` (xyxy) grown by half its size on each side and clipped, half open."""
    low, high = box[:2], box[2:]
    around = (high - low) * _AROUND
    x0, y0 = np.maximum(np.floor(low - around), 0).astype(int)
    x1, y1 = np.minimum(np.ceil(high + around), (width, height)).astype(int)
    return int(x0), int(y0), int(x1), int(y1)


def encode_reference_image(pixels: ByteArray) -> bytes:
    """The JPEG file of a face with its surroundings, [h, w, 3] uint8."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=_QUALITY)
    return out.getvalue()
