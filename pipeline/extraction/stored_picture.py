"""The image stored for a reference: the face with its surroundings, as a JPEG without metadata.

Most faces are of people that the store knows, and need none. So it is made once it is decided which faces become
references, from pixels that are held until then (`HeldPictures`) or else from the photo, read again.
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
_AROUND = 0.5  # of the box's side, on each side: room for a later model to detect and align the face again
_QUALITY = 92
_HELD_BYTES: Final = 2**28


def cut_faces(image: DecodedImage | DeviceImage, boxes: FloatArray) -> list[ByteArray]:
    """The parts of an image to store for faces at these boxes [n, 4] float32 xyxy: each grown by half its size on each
    side and clipped, [h, w, 3] uint8 on the host; views where the image is there."""
    height, width = image.pixels.shape[:2]
    around = (boxes[:, 2:] - boxes[:, :2]) * _AROUND
    first = origins_of_cuts(boxes).tolist()
    last = np.minimum(np.ceil(boxes[:, 2:] + around), (width, height)).astype(int).tolist()
    cuts = [image.pixels[y0:y1, x0:x1] for (x0, y0), (x1, y1) in zip(first, last, strict=True)]
    return [on_host(cut) for cut in cuts]


def origins_of_cuts(boxes: FloatArray) -> IntArray:
    """[n, 2] x, y: where in the image these parts of it begin."""
    around = (boxes[:, 2:] - boxes[:, :2]) * _AROUND
    origins: IntArray = np.maximum(np.floor(boxes[:, :2] - around), 0).astype(np.int64)
    return origins


def encode_reference_image(pixels: ByteArray) -> bytes:
    """The JPEG file of a face with its surroundings, [h, w, 3] uint8."""
    return jpeg_file(pixels, _QUALITY)


def pictures_of_photo(
    file: AnyPath, sha256: str | None, boxes: Sequence[Sequence[float]], decoder: Decoder
) -> list[bytes]:
    """The JPEG files of the faces at these boxes (xyxy) of a photo, which is read again. Raises as `photo_again`."""
    cuts = cut_faces(photo_again(file, sha256, decoder), np.array(boxes, np.float32))
    return [encode_reference_image(cut) for cut in cuts]


def photo_again(file: AnyPath, sha256: str | None, decoder: Decoder) -> DecodedImage:
    """A photo of the store, read again. Raises ImageRejected, also where its bytes have another hash."""
    data = read_file(file, decoder.settings.max_bytes)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ImageChanged
    return decoder(data)


class HeldPictures:
    """What would be stored of the faces of a run's photos, as pixels, until their shard is committed. Threads share
    it."""

    def __init__(self, limit: int = _HELD_BYTES) -> None:
        """`limit`: in bytes."""
        self._room = limit
        self._lock = threading.Lock()
        self._of_row: dict[int, list[ByteArray]] = {}

    def hold(self, row: int, pictures: Sequence[ByteArray]) -> bool:
        """Copies what belongs to the faces of a row of the manifest, in their order. False: there is no room."""
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
        """What was held of a row's faces; None: nothing."""
        return self._of_row.get(row)

    def forget(self, rows: Iterable[int]) -> None:
        """Makes room again: these rows are in."""
        with self._lock:
            for row in rows:
                self._room += sum(picture.nbytes for picture in self._of_row.pop(row, ()))
