"""A folder as source: its image files, sorted on every machine by relative path, as bytes, component by component."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pipeline.config import SourceSettings
from pipeline.errors import ImageOutside, ImageRejected, ImageUnreadable, InputError, Interrupted
from pipeline.extraction.images.files import SNIFF_BYTES, file_problem, read_head, sniff
from pipeline.extraction.sources.selection import IMAGE, OTHER, Selection, kind_by_suffix
from pipeline.texts import path_text
from pipeline.types import ImageRef

FILE: Final = "file"
FOLDER: Final = "folder"
LINK: Final = "link"
_LISTED: Final = 1000  # excluded folders


@dataclass
class ScanCounts:
    """Counts of a scan. `images` and `rejected` become rows."""

    images: int = 0
    rejected: int = 0
    left_alone: Counter[str] = field(default_factory=Counter)  # files by kind: raw, video, sidecar, hidden, ...
    left_out: Counter[str] = field(default_factory=Counter)  # folders: hidden, thumbnails, excluded
    left_out_folders: list[str] = field(default_factory=list)  # the first ones
    loops: int = 0  # links to a folder entered before

    def leave_out(self, folder: str, why: str) -> None:
        self.left_out[why] += 1
        if len(self.left_out_folders) < _LISTED:
            self.left_out_folders.append(path_text(folder))


class FolderWalk:
    """Selected image files below `folder`, and folders that cannot be listed, as rows in byte order.

    Each folder is entered once, by its first path, and `leave_out` never. Files outside `settings.root` (links
    resolved) are rejected. Its own stack allows trees beyond Python's recursion limit. Memory: names in the current
    folders, and about 200 bytes per folder.
    """

    def __init__(
        self,
        folder: Path,
        settings: SourceSettings,
        counts: ScanCounts,
        leave_out: Path | None,
        stop: threading.Event | None,
    ) -> None:
        self.top = os.path.abspath(folder)
        self.root = None if settings.root is None else os.path.realpath(settings.root)
        self.settings = settings
        self.selection = Selection(settings.include, settings.exclude)
        self.counts = counts
        self.left_out = _identity(os.stat(leave_out)) if leave_out is not None and leave_out.exists() else None
        self.stop = stop
        self.entered: set[tuple[int, int]] = set()
        self.stack: list[tuple[str, Iterator[tuple[bytes, str]]]] = []

    def __iter__(self) -> Iterator[ImageRef]:
        """Raises InputError if `folder` cannot be listed, Interrupted once `stop` is set."""
        problem = self._enter(self.top)
        if problem is not None:
            raise InputError(message=f"The folder {path_text(self.top)} {problem.reason}.")
        while self.stack:
            check_stop(self.stop)
            folder, entries = self.stack[-1]
            entry = next(entries, None)
            if entry is None:
                self.stack.pop()
                continue
            ref = self._visit(os.path.join(folder, os.fsdecode(entry[0])), entry[1])
            if ref is not None:
                yield ref

    def _enter(self, folder: str) -> ImageRejected | None:
        """Enters `folder` unless it is skipped; returns why it cannot be listed."""
        try:
            identity = _identity(os.stat(folder))
            if identity == self.left_out:
                return None
            if identity in self.entered:
                self.counts.loops += 1
                return None
            outside = self._outside(folder)
            if outside is not None:
                return outside
            with os.scandir(folder) as listing:
                entries = sorted((os.fsencode(entry.name), _kind(entry)) for entry in listing)
        except OSError as exc:
            return ImageUnreadable(detail=f"the folder cannot be listed ({exc.strerror})")
        self.entered.add(identity)
        self.stack.append((folder, iter(entries)))
        return None

    def _visit(self, path: str, kind: str) -> ImageRef | None:
        is_link = kind == LINK
        if is_link:
            kind = self._kind_of_target(path)
        below = path[len(self.top) :].lstrip(os.sep)
        if kind == FOLDER:
            why = self.selection.why_no_folder(below)
            if why is None:
                problem = self._enter(path)
                return None if problem is None else self._row(path, problem)
            self.counts.leave_out(path, why)
            return None
        why = OTHER if kind == OTHER else self.selection.why_no_file(below) or _why_no_image(path)
        if why is not None:
            self.counts.left_alone[why] += 1
            return None
        return self._row(path, (file_problem(path) if is_link else None) or self._outside(path))

    def _row(self, path: str, problem: ImageRejected | None) -> ImageRef:
        folder = os.path.dirname(path)
        # The source folder's name is not a person's.
        label = None if folder == self.top else parent_label(os.path.basename(folder), self.settings)
        return ImageRef(path=path_text(path), file=path, name=label, rejected=problem)

    def _kind_of_target(self, path: str) -> str:
        if not self.settings.follow_symlinks:
            return OTHER
        if os.path.isdir(path):
            return FOLDER
        # A dangling link named like an image becomes a row with the status missing.
        return FILE if os.path.isfile(path) or not os.path.exists(path) else OTHER

    def _outside(self, path: str) -> ImageOutside | None:
        if self.root is None or is_within(os.path.realpath(path), self.root):
            return None
        return ImageOutside(root=path_text(self.root))


def is_within(path: str, folder: str) -> bool:
    """Whether the absolute, normalised `path` is `folder` or below it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return LINK
    if entry.is_dir(follow_symlinks=False):
        return FOLDER
    return FILE if entry.is_file(follow_symlinks=False) else OTHER


def parent_label(folder: str, settings: SourceSettings) -> str | None:
    """The name for photos in this folder, if the settings use folder names."""
    return path_text(folder).strip() or None if settings.labels == "parent" else None


def check_stop(stop: threading.Event | None) -> None:
    """Raises Interrupted once `stop` is set."""
    if stop is not None and stop.is_set():
        raise Interrupted(detail="the scan was not finished, and nothing was changed")


def _why_no_image(path: str) -> str | None:
    """A file's kind by suffix or else first bytes; None for an image."""
    kind = kind_by_suffix(path)
    if kind is not None:
        return None if kind == IMAGE else kind
    try:
        return None if sniff(read_head(path, SNIFF_BYTES)) is not None else OTHER
    except ImageRejected:  # unreadable, and not named like an image
        return OTHER
