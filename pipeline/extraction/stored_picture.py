"""The picture stored for a reference: the face with its surroundings, a JPEG without metadata.

Most faces are of known people and need none, so it is encoded once references are chosen, from held pixels
(`HeldPictures`) or the photo, read again.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from pipeline.errors import ImageChanged
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.files import AnyPath, read_file
from pipeline.extraction.images.jpeg import jpeg_file
from pipeline.runtime.arrays import on_host
from pipeline.types import ByteArray, DecodedImage, DeviceImage, FloatArray, IntArray

MEDIA_TYPE: Final = "image/jpeg"
_AROUND = 0.5  # of the box's side, on each side: a later model can detect and align again
_QUALITY = 92
_HELD_BYTES: Final = 2**28


def cut_faces(image: DecodedImage | DeviceImage, boxes: FloatArray) -> list[ByteArray]:
    """The parts of an image to store for face boxes [n, 4] float32 xyxy: grown by half their size on each side and
    clipped, [h, w, 3] uint8 on the host; views of host images."""
    height, width = image.pixels.shape[:2]
    around = (boxes[:, 2:] - boxes[:, :2]) * _AROUND
    first = origins_of_cuts(boxes).tolist()
    last = np.minimum(np.ceil(boxes[:, 2:] + around), (width, height)).astype(int).tolist()
    cuts = [image.pixels[y0:y1, x0:x1] for (x0, y0), (x1, y1) in zip(first, last, strict=True)]
    return [on_host(cut) for cut in cuts]


def origins_of_cuts(boxes: FloatArray) -> IntArray:
    """[n, 2]: x, y of the parts' upper left corners in the image."""
    around = (boxes[:, 2:] - boxes[:, :2]) * _AROUND
    origins: IntArray = np.maximum(np.floor(boxes[:, :2] - around), 0).astype(np.int64)
    return origins


def encode_reference_image(pixels: ByteArray) -> bytes:
    """JPEG file of a face with its surroundings, [h, w, 3] uint8."""
    return jpeg_file(pixels, _QUALITY)


def pictures_of_photo(
    file: AnyPath, sha256: str | None, boxes: Sequence[Sequence[float]], decoder: Decoder
) -> list[bytes]:
    """JPEG files of the faces at these boxes (xyxy) of a photo, read again. Raises as `photo_again`."""
    cuts = cut_faces(photo_again(file, sha256, decoder), np.array(boxes, np.float32))
    return [encode_reference_image(cut) for cut in cuts]


def photo_again(file: AnyPath, sha256: str | None, decoder: Decoder) -> DecodedImage:
    """Reads a photo of the store again. Raises ImageRejected, also if its hash differs."""
    data = read_file(file, decoder.settings.max_bytes)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ImageChanged
    return decoder(data)


class HeldPictures:
    """Pixels of a run's faces until their shard is committed. Thread-safe."""

    def __init__(self, limit: int = _HELD_BYTES) -> None:
        """`limit` in bytes."""
        self._room = limit
        self._lock = threading.Lock()
        self._of_row: dict[int, list[ByteArray]] = {}

    def hold(self, row: int, pictures: Sequence[ByteArray]) -> bool:
        """Copies the pictures of a manifest row's faces, in order; False if there is no room."""
        size = sum(picture.nbytes for picture in pictures)
        with self._lock:
            if size > self._room:
                return False
            self._room -= size
        copies = [np.array(picture) for picture in pictures]
        with self._lock:
            self._of_row[row] = copies
        return True

    def of_row(self, row: int) -> Sequence[ByteArray] | None:
        """The pictures held for a row, or None."""
        return self._of_row.get(row)

    def forget(self, rows: Iterable[int]) -> None:
        """Frees the pictures of committed rows."""
        with self._lock:
            for row in rows:
                self._room += sum(picture.nbytes for picture in self._of_row.pop(row, ()))
