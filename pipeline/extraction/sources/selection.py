"""Which files and folders of a source are taken: what the user names, and not what programs leave beside photos."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from typing import Final

from pipeline.extraction.images.files import IMAGE_SUFFIXES, RAW_SUFFIXES

IMAGE: Final = "image"
RAW: Final = "raw"
VIDEO: Final = "video"
SIDECAR: Final = "sidecar"
HIDDEN: Final = "hidden"
THUMBNAILS: Final = "thumbnails"
EXCLUDED: Final = "excluded"
OTHER: Final = "other"

_VIDEO_SUFFIXES: Final = frozenset(
    {
        *(".3gp", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".vob"),
        *(".webm", ".wmv"),
    }
)
# What photo programs write beside a photo.
_SIDECAR_SUFFIXES: Final = frozenset({".aae", ".cos", ".dop", ".json", ".pp3", ".xmp"})
# Folders of small copies: of Synology, of Lightroom, of iPhoto.
_THUMBNAIL_FOLDERS: Final = ("@eadir", "*.lrdata", "ipod photo cache")


def kind_by_suffix(path: str) -> str | None:
    """The kind of a file by its suffix, IMAGE for an image; None: its content decides."""
    suffix = os.path.splitext(path)[1].lower()
    kinds = {IMAGE: IMAGE_SUFFIXES, RAW: RAW_SUFFIXES, VIDEO: _VIDEO_SUFFIXES, SIDECAR: _SIDECAR_SUFFIXES}
    return next((kind for kind, suffixes in kinds.items() if suffix in suffixes), None)


class Selection:
    """What `include` and `exclude` choose: patterns with * and ?, separated by commas, without regard to case.

    A pattern with a slash is compared with the path below the source, another one with the name; what a folder matches
    holds for all that is in it. Hidden names (unless `hidden` is set) and folders of thumbnails are left out, unless a
    pattern of `include` that does not begin with a wildcard names them.
    """

    def __init__(self, include: str | None, exclude: str | None, *, hidden: bool = False) -> None:
        self._include = _patterns(include)
        self._exclude = _patterns(exclude)
        self._hidden = hidden

    def why_no_folder(self, path: str) -> str | None:
        """Why the folder at `path` (below the source) is not entered: hidden, thumbnails or excluded."""
        name = os.path.basename(path).casefold()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in _THUMBNAIL_FOLDERS) and not self._is_named(path):
            return THUMBNAILS
        return self._why_left_out(path)

    def why_no_file(self, path: str) -> str | None:
        """Why the file at `path` (below the source) is left alone: hidden or excluded."""
        if self._include and not _any_matches(self._include, path):
            return EXCLUDED
        return self._why_left_out(path)

    def _why_left_out(self, path: str) -> str | None:
        if os.path.basename(path).startswith(".") and not (self._hidden or self._is_named(path)):
            return HIDDEN
        return EXCLUDED if _any_matches(self._exclude, path) else None

    def _is_named(self, path: str) -> bool:
        names = (pattern for pattern in self._include if pattern.rpartition("/")[2][0] not in "*?[")
        return any(_matches(pattern, path) for pattern in names)


def _patterns(text: str | None) -> list[str]:
    parts = [part.strip().strip("/") for part in (text or "").casefold().split(",")]
    return [part for part in parts if part]


def _matches(pattern: str, path: str) -> bool:
    """Whether the path ends where the pattern points."""
    text = path.casefold()
    return fnmatch.fnmatchcase(text if "/" in pattern else os.path.basename(text), pattern)


def _any_matches(patterns: list[str], path: str) -> bool:
    """Whether a pattern matches the path or a folder above it."""
    return any(_matches(pattern, way) for pattern in patterns for way in _ways_to(path))


def _ways_to(path: str) -> Iterator[str]:
    """The path, and those of the folders above it."""
    while path.strip("/"):
        yield path
        path = os.path.dirname(path)
