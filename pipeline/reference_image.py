"""The image that is stored for a reference: the face with its surroundings, as a JPEG without metadata."""

from __future__ import annotations

import io
from typing import Final

import numpy as np
from PIL import Image

from pipeline.types import ByteArray, FloatArray

MEDIA_TYPE: Final = "image/jpeg"
_AROUND = 0.5  # of the box's side, on each side: so that a later model can detect and align anew
_QUALITY = 92


def encode_reference_image(pixels: ByteArray, box: FloatArray) -> bytes:
    """Cuts `box` (xyxy, pixels of the upright image `pixels` [H, W, 3]) with half its size more on each side."""
    height, width = pixels.shape[:2]
    low, high = box[:2], box[2:]
    around = (high - low) * _AROUND
    x0, y0 = np.maximum(np.floor(low - around), 0).astype(int)
    x1, y1 = np.minimum(np.ceil(high + around), (width, height)).astype(int)
    out = io.BytesIO()
    Image.fromarray(pixels[y0:y1, x0:x1]).save(out, "JPEG", quality=_QUALITY)
    return out.getvalue()
