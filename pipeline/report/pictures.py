"""Small pictures of faces for a page: stored ones, or cut from unchanged photos."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from PIL import Image

from pipeline.config import DecodeSettings
from pipeline.errors import ImageRejected, StoreDamaged
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.stored_picture import cut_faces, photo_again
from pipeline.store import Folder, open_image, read_object

# Pixels of photos decoded for the page: 1 or 2 seconds. Bytes of pictures: the page stays below 10 MB.
MOST_PIXELS: Final = 200_000_000
MOST_BYTES: Final = 8_000_000
SIDE_PX: Final = 96  # of a small copy
_FACE_PX: Final = 160  # of a face
_SHOWN: Final = 0.75  # of a stored picture's sides, which has the face in its middle half


class FacePictures:
    """The pictures of one page, up to its limits, and whom they show."""

    def __init__(self, folder: Folder, key: bytes | None, decode: DecodeSettings) -> None:
        """`folder`: the store's; `key`: of the account's pictures, if encrypted."""
        self._folder = folder
        self._key = key
        self._decoder = Decoder(decode)
        self._pixels, self._bytes = MOST_PIXELS, MOST_BYTES
        self._cuts: dict[int, str | None] = {}  # by face
        self.person_ids: set[str] = set()  # persons shown or named
        self.media_ids: set[int] = set()  # photos with a picture or path on the page

    def stored(self, person: Mapping[str, Any]) -> str | None:
        """The stored picture of a person, or None."""
        self.person_ids.add(person["person_id"])
        guid = person["image_guid"]
        if guid is None:
            return None
        self.media_ids.add(person["image_media_id"])
        try:
            data = open_image(self._folder, guid, read_object(self._folder, guid), person["image_sha256"], self._key)
        except StoreDamaged:  # deleted since, or damaged: `check` reports it
            return None
        try:
            return self._counted(Image.open(io.BytesIO(data)))
        except OSError:  # no picture, or one that Pillow can no longer read
            return None

    def cut(self, face: Mapping[str, Any], spare: float = 0.0) -> str | None:
        """Cuts a face from its photo; None if the photo has changed. Keeps the share `spare` of the pixel budget for
        others."""
        if face["face_id"] not in self._cuts:
            cost = face["pixels"] or 0
            if face["path"] is None or cost > self._pixels - spare * MOST_PIXELS:
                return None
            self._pixels -= cost
            self._cuts[face["face_id"]] = self._cut(face)
        return self._cuts[face["face_id"]]

    def _cut(self, face: Mapping[str, Any]) -> str | None:
        try:
            photo = photo_again(face["path"], face["sha256"], self._decoder)
        except ImageRejected:
            return None
        (pixels,) = cut_faces(photo, np.array([[face[name] for name in ("x1", "y1", "x2", "y2")]], np.float32))
        self.media_ids.add(face["media_id"])
        self.person_ids.update({face["record_id"]} - {None})
        return self._counted(Image.fromarray(pixels))

    def _counted(self, picture: Image.Image) -> str | None:
        width, height = picture.size
        margins = [round(side * (1 - _SHOWN) / 2) for side in (width, height)]
        face = picture.crop((margins[0], margins[1], width - margins[0], height - margins[1]))
        uri = small_copy(face, _FACE_PX)
        self._bytes -= len(uri)
        return uri if self._bytes > 0 else None


def small_copy(picture: Image.Image, side_px: int = SIDE_PX) -> str:
    """A copy with sides up to `side_px`, as a JPEG in a `data:` address: with SIDE_PX of 2 to 4 KB."""
    small = picture.convert("RGB")
    small.thumbnail((side_px, side_px))
    out = io.BytesIO()
    small.save(out, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode("ascii")
