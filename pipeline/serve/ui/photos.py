"""An account's own photos, and faces cut from them, if the server's owner allows it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
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
from pipeline.types import ByteArray, FileState

FACE_PX: Final = 512  # the longer side of a face's picture, at most
PHOTO_PX: Final = 2048
_QUALITY: Final = 88
_KEPT_FACES: Final = 256  # of 0.22 MB at most
_KEPT_PHOTOS: Final = 32  # of 3.5 MB at most, mostly half a megabyte


class Photos:
    """Reads photos below `ui.photo_roots`, folders and bucket prefixes. Thread-safe.

    A photo must have the bytes that a run read: nobody can expose another file by putting it, or a link to it, in a
    photo's place. Pictures are cached while the file's size, times and inode (an object's ETag) are unchanged. They are
    re-encoded, so they have no metadata.
    """

    def __init__(self, settings: Settings) -> None:
        roots = [] if settings.ui.photo_roots is None else listed(settings.ui.photo_roots)
        named = [root if is_address(root) else str(Path(root).expanduser()) for root in roots]
        self._roots = [_real(root) for root in named]
        # Names that paths may use for them, over links.
        self._called = [*self._roots, *map(os.path.abspath, filterfalse(is_address, named))]
        self._decoder = Decoder(settings.decode)
        self._face_picture = lru_cache(_KEPT_FACES)(self._face_of)
        self._photo_picture = lru_cache(_KEPT_PHOTOS)(self._photo_of)

    def may_show(self, path: str | None) -> bool:
        """Whether a photo or a folder is, or is below, one of the roots."""
        return path is not None and _is_below(self._called, path if is_address(path) else os.path.normpath(path))

    def may_read(self, path: str) -> bool:
        """Whether the file is really below one of the roots, whatever links lead to it."""
        return _is_below(self._roots, _real(path))

    def face(self, face: StoredFace) -> bytes:
        """The JPEG of a face with its surroundings. Raises PictureUnavailable."""
        return self._picture(face, partial(self._face_picture, face.box))

    def whole(self, face: StoredFace) -> bytes:
        """The JPEG of the upright photo that shows a face. Raises PictureUnavailable."""
        return self._picture(face, self._photo_picture)

    def _picture(self, face: StoredFace, made: Callable[[str, str | None, FileState], bytes]) -> bytes:
        if face.path is None or not self.may_read(face.path):
            raise PictureUnavailable()
        try:
            state = file_state(face.path)
            if state is None:
                raise PictureUnavailable()
            return made(face.path, face.sha256, state)
        except (ImageRejected, BucketFailed):
            raise PictureUnavailable() from None

    def _face_of(self, box: tuple[float, ...], path: str, sha256: str | None, _: FileState) -> bytes:
        (cut,) = cut_faces(photo_again(path, sha256, self._decoder), np.array([box], np.float32))
        return jpeg_file(_shrunk(cut, FACE_PX), _QUALITY)

    def _photo_of(self, path: str, sha256: str | None, _: FileState) -> bytes:
        return jpeg_file(_shrunk(photo_again(path, sha256, self._decoder).pixels, PHOTO_PX), _QUALITY)


def _real(path: str) -> str:
    """The path with links resolved; an address unchanged."""
    return path if is_address(path) else os.path.realpath(path)


def _is_below(roots: Sequence[str], path: str) -> bool:
    return any(is_within(path, root) for root in roots)


def _shrunk(pixels: ByteArray, side: int) -> ByteArray:
    """Shrinks to sides of at most `side` pixels."""
    if max(pixels.shape[:2]) <= side:
        return np.ascontiguousarray(pixels)
    image = Image.fromarray(pixels)
    image.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
    return np.asarray(image)
