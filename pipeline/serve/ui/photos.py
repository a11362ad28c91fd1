"""An account's own photos, and faces cut from them, as far as the server's owner allows that they are shown."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import filterfalse
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from pipeline.config import Settings, listed
from pipeline.errors import BucketFailed, ImageRejected, PictureUnavailable
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.files import file_state
from pipeline.extraction.images.jpeg import jpeg_file
from pipeline.extraction.sources.folder import is_within
from pipeline.extraction.stored_picture import cut_faces, photo_again
from pipeline.runtime.buckets import is_address
from pipeline.store import StoredFace
from pipeline.types import ByteArray, DecodedImage

FACE_PX: Final = 512  # the longer side of what is shown of a face, at most
PHOTO_PX: Final = 2048
_QUALITY: Final = 88
_KEPT_BYTES: Final = 64 * 2**20


class Photos:
    """Reads photos below `ui.photo_roots`, folders and prefixes of buckets. Any threads may use it.

    A photo counts only with the bytes that a run read: nobody can have another file shown by putting it, or a link to
    it, in a photo's place. Pictures are kept while the file's size, times and inode (an object's ETag) are the same.
    What is sent is decoded and encoded again, so it has no metadata.
    """

    def __init__(self, settings: Settings) -> None:
        roots = [] if settings.ui.photo_roots is None else listed(settings.ui.photo_roots)
        named = [root if is_address(root) else str(Path(root).expanduser()) for root in roots]
        self._roots = [_real(root) for root in named]
        # What paths may call them, which go over links.
        self._called = [*self._roots, *map(os.path.abspath, filterfalse(is_address, named))]
        self._decoder = Decoder(settings.decode)
        self._max_bytes = settings.decode.max_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[object, ...], bytes] = OrderedDict()
        self._bytes = 0

    def may_show(self, path: str | None) -> bool:
        """Whether a photo or a folder is one of the roots or lies below one."""
        return path is not None and _is_below(self._called, path if is_address(path) else os.path.normpath(path))

    def face(self, face: StoredFace) -> bytes:
        """The JPEG of a face with its surroundings. Raises PictureUnavailable."""

        def cut() -> ByteArray:
            return cut_faces(self._read(face), np.array([face.box], np.float32))[0]

        return self._picture((face.sha256, face.box), face, cut, FACE_PX)

    def whole(self, face: StoredFace) -> bytes:
        """The JPEG of the upright photo that shows a face. Raises PictureUnavailable."""
        return self._picture((face.sha256,), face, lambda: self._read(face).pixels, PHOTO_PX)

    def _read(self, face: StoredFace) -> DecodedImage:
        return photo_again(face.path or "", face.sha256, self._decoder, self._max_bytes)

    def _picture(self, key: tuple[object, ...], face: StoredFace, pixels: Callable[[], ByteArray], side: int) -> bytes:
        if face.path is None or not _is_below(self._roots, _real(face.path)):
            raise PictureUnavailable()
        try:
            state = file_state(face.path)
            key = (*key, state)
            with self._lock:
                if key in self._kept:
                    self._kept.move_to_end(key)
                    return self._kept[key]
            picture = jpeg_file(_shrunk(pixels(), side), _QUALITY)
        except (ImageRejected, BucketFailed):
            raise PictureUnavailable() from None
        if state is not None:
            self._keep(key, picture)
        return picture

    def _keep(self, key: tuple[object, ...], picture: bytes) -> None:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = picture
                self._bytes += len(picture)
            while self._bytes > _KEPT_BYTES:
                _, old = self._kept.popitem(last=False)
                self._bytes -= len(old)


def _real(path: str) -> str:
    """The path without links; an address as it is."""
    return path if is_address(path) else os.path.realpath(path)


def _is_below(roots: Sequence[str], path: str) -> bool:
    return any(is_within(path, root) for root in roots)


def _shrunk(pixels: ByteArray, side: int) -> ByteArray:
    """With no side longer than `side` pixels."""
    if max(pixels.shape[:2]) <= side:
        return np.ascontiguousarray(pixels)
    image = Image.fromarray(pixels)
    image.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
    return np.asarray(image)
