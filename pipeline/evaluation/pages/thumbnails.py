"""Small pictures embedded in an HTML page, which needs no other file and no network."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from PIL import Image

from pipeline.config import DecodeSettings
from pipeline.errors import ImageRejected
from pipeline.extraction.images.decode import decode_image
from pipeline.extraction.images.files import read_file

SIDE_PX: Final = 96


def data_uri(file: Path, settings: DecodeSettings, side_px: int = SIDE_PX) -> str:
    """The image in `file`, no side longer than `side_px`, as a JPEG in a `data:` address.

    Raises ImageRejected.
    """
    decoded = decode_image(read_file(file, settings.max_bytes), settings)
    small = Image.fromarray(decoded.pixels)
    small.thumbnail((side_px, side_px))
    out = io.BytesIO()
    small.save(out, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode("ascii")


class Thumbnails:
    """Makes at most `limit` thumbnails, to keep the page small."""

    def __init__(self, files: Mapping[str, Path], settings: DecodeSettings, limit: int) -> None:
        self._files = files
        self._settings = settings
        self._remaining = limit

    def of(self, path: str) -> str | None:
        """The picture of the image at `path`; None where it is missing, cannot be read, or exceeds the limit."""
        file = self._files.get(path)
        if file is None or self._remaining < 1:
            return None
        try:
            uri = data_uri(file, self._settings)
        except ImageRejected:
            return None
        self._remaining -= 1
        return uri
