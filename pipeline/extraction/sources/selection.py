"""Selects a source's files and folders by the user's patterns, without files that programs store next to photos."""

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
# Files that photo programs write next to a photo.
_SIDECAR_SUFFIXES: Final = frozenset({".aae", ".cos", ".dop", ".json", ".pp3", ".xmp"})
# Thumbnail folders of Synology, Lightroom and iPhoto.
_THUMBNAIL_FOLDERS: Final = ("@eadir", "*.lrdata", "ipod photo cache")


def kind_by_suffix(path: str) -> str | None:
    """A file's kind by its suffix; None: its content decides."""
    suffix = os.path.splitext(path)[1].lower()
    kinds = {IMAGE: IMAGE_SUFFIXES, RAW: RAW_SUFFIXES, VIDEO: _VIDEO_SUFFIXES, SIDECAR: _SIDECAR_SUFFIXES}
    return next((kind for kind, suffixes in kinds.items() if suffix in suffixes), None)


class Selection:
    """The patterns `include` and `exclude`: with * and ?, separated by commas, ignoring case.

    Patterns with a slash match the path below the source, others the name; a folder's match applies to its contents.
    Hidden names (unless `hidden`) and thumbnail folders are skipped unless an `include` pattern without leading
    wildcard names them.
    """

    def __init__(self, include: str | None, exclude: str | None, *, hidden: bool = False) -> None:
        self._include = _patterns(include)
        self._exclude = _patterns(exclude)
        self._hidden = hidden

    def why_no_folder(self, path: str) -> str | None:
        """Why the folder at `path` (below the source) is skipped: hidden, thumbnails or excluded; else None."""
        name = os.path.basename(path).casefold()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in _THUMBNAIL_FOLDERS) and not self._is_named(path):
            return THUMBNAILS
        return self._why_left_out(path)

    def why_no_file(self, path: str) -> str | None:
        """Why the file at `path` (below the source) is skipped: hidden or excluded; else None."""
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
    """Whether the pattern matches the path, or without a slash its name."""
    text = path.casefold()
    return fnmatch.fnmatchcase(text if "/" in pattern else os.path.basename(text), pattern)


def _any_matches(patterns: list[str], path: str) -> bool:
    """Whether a pattern matches the path or a folder above it."""
    return any(_matches(pattern, way) for pattern in patterns for way in _ways_to(path))


def _ways_to(path: str) -> Iterator[str]:
    """The path, then each folder above it."""
    while path.strip("/"):
        yield path
        path = os.path.dirname(path)
