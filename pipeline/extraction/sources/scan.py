"""A folder, bucket prefix or manifest -> a run's rows, one ImageRef each, in a deterministic order.

A problem with one file is a row with a reason (`ImageRef.rejected`), one with the source an error. Nothing is decoded;
memory does not grow with the number of rows.
"""

from __future__ import annotations

import os
import posixpath
import re
import threading
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, chain
from pathlib import Path
from typing import Final, Literal, TypeAlias
from urllib.parse import unquote_to_bytes, urlsplit

from pipeline.config import SourceSettings
from pipeline.errors import (
    ImageMissing,
    ImageOutside,
    ImageRejected,
    ImageUnreadable,
    InputError,
    ManifestInvalid,
    SourceEmpty,
    SourceMissing,
)
from pipeline.extraction.images.files import file_problem, object_state
from pipeline.extraction.sources.folder import FolderWalk, ScanCounts, check_stop, is_within, parent_label
from pipeline.extraction.sources.manifest_file import read_manifest
from pipeline.extraction.sources.selection import EXCLUDED, IMAGE, OTHER, Selection, kind_by_suffix
from pipeline.runtime import buckets
from pipeline.texts import path_text
from pipeline.types import ImageRef, Source

SourceKind: TypeAlias = Literal["folder", "csv", "jsonl", "parquet"]
_MANIFESTS: Final[dict[str, SourceKind]] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # at least two letters: "C:/" is a drive
_CHECKED = 8  # objects at a manifest's start
_CACHED_FOLDERS = 1024  # of a prefix; its listing groups them


def source_kind(path: Source) -> SourceKind:
    """The kind of `path`; prefixes are folders, unchecked. Raises SourceMissing, ManifestInvalid, or InputError if it
    is a photo or cannot be examined."""
    if buckets.is_address(path):
        return "folder"
    try:
        is_folder, is_file = os.path.isdir(path), os.path.isfile(path)
        if not (is_folder or is_file):
            os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError) as exc:
        raise SourceMissing(path=path_text(path)) from exc
    except OSError as exc:
        raise InputError(message=f"{path_text(path)} cannot be read: {exc.strerror}.") from exc
    if is_folder:
        return "folder"
    kind = _MANIFESTS.get(Path(path).suffix.lower())
    if is_file and kind_by_suffix(str(path)) == IMAGE:
        raise InputError(message=f"{path_text(path)} is a photo: give its folder, or a manifest that names it.")
    if kind is None or not is_file:
        raise ManifestInvalid(
            path=path_text(path), detail=f"it is not a folder, and a manifest is a file named {', '.join(_MANIFESTS)}"
        )
    return kind


def scan_source(
    path: Source,
    settings: SourceSettings,
    counts: ScanCounts | None = None,
    *,
    leave_out: Path | None = None,
    stop: threading.Event | None = None,
) -> Iterator[ImageRef]:
    """The rows of the folder, prefix or manifest `path`; fills `counts` on the way.

    Order: a folder's relative paths as bytes, by component; a prefix's whole keys as bytes; a manifest's own. The
    folder `leave_out` is skipped. Relative paths in a manifest start at `settings.root`, or else at its folder, and may
    not lead out of it. `settings.include` and `settings.exclude` filter all three.

    Raises SourceMissing, ManifestInvalid, BucketFailed and InputError; SourceEmpty after a source without rows;
    Interrupted once `stop` is set, in a folder even without images.
    """
    kind = source_kind(path)  # raises at the call, not at the first row
    counts = ScanCounts() if counts is None else counts
    if buckets.is_address(path):
        refs = _prefix_refs(path, settings, counts, stop)
    elif kind == "folder":
        refs = iter(FolderWalk(Path(path), settings, counts, leave_out, stop))
    else:
        refs = _checked(_manifest_refs(Path(path), kind, settings, counts))
    return _counted(refs, path, kind, counts)


def _counted(refs: Iterator[ImageRef], path: Source, kind: SourceKind, counts: ScanCounts) -> Iterator[ImageRef]:
    for ref in refs:
        if ref.rejected is None:
            counts.images += 1
        else:
            counts.rejected += 1
        yield ref
    if not counts.images and not counts.rejected:
        others = counts.left_alone.total()
        detail = f"{others:,} other files left alone" if others or kind == "folder" else "it has no rows"
        raise SourceEmpty(path=path_text(path), detail=detail)


def _prefix_refs(
    prefix: str, settings: SourceSettings, counts: ScanCounts, stop: threading.Event | None
) -> Iterator[ImageRef]:
    """Selected images below the prefix, where slashes separate folders.

    Suffixes decide, because reading costs requests. Memory: a page of the listing. Raises BucketFailed, and Interrupted
    once `stop` is set.
    """
    prefix = prefix.rstrip("/")
    selection = Selection(settings.include, settings.exclude)
    why_no_folder = lru_cache(_CACHED_FOLDERS)(selection.why_no_folder)
    outside = ImageOutside(root=path_text(settings.root)) if settings.root is not None else None
    left_out = ""
    for found in buckets.list_objects(prefix):
        check_stop(stop)
        below = found.address[len(prefix) + 1 :]
        *folders, _ = below.split("/")
        paths = accumulate(folders, "{}/{}".format)  # of the key's folders, from the top
        closed = next(((folder, why) for folder in paths if (why := why_no_folder(folder))), None)
        if closed is not None:
            if closed[0] != left_out:
                left_out = closed[0]
                counts.leave_out(buckets.below(prefix, left_out), closed[1])
            continue
        kind = kind_by_suffix(below) or OTHER
        why = selection.why_no_file(below) or (None if kind == IMAGE else kind)
        if why is not None:
            counts.left_alone[why] += 1
            continue
        yield ImageRef(
            path=path_text(found.address),
            file=found.address,
            name=parent_label(folders[-1], settings) if folders else None,
            rejected=None if settings.root is None or buckets.is_below(found.address, settings.root) else outside,
            state=object_state(found),
        )


def _checked(refs: Iterator[ImageRef]) -> Iterator[ImageRef]:
    """The same rows, after checking the buckets of leading objects."""
    first: list[ImageRef] = []
    for ref in refs:
        first.append(ref)
        if not buckets.is_address(ref.file) or len(first) == _CHECKED:
            break
    buckets.check([ref.file for ref in first if buckets.is_address(ref.file) and ref.rejected is None])
    yield from chain(first, refs)


def manifest_base(path: Source, settings: SourceSettings) -> str:
    """Where a manifest's relative paths start."""
    if buckets.is_address(settings.root):
        return settings.root.rstrip("/")
    return os.path.abspath(settings.root or os.path.dirname(os.path.abspath(path)))


def below_base(file: str, base: str) -> str:
    """What patterns match: the path below the manifest's base, else the whole path or address."""
    if buckets.is_address(file):
        return file[len(base) + 1 :] if buckets.is_address(base) and buckets.is_below(file, base) else file
    return os.path.relpath(file, base) if is_within(file, base) else file


def _manifest_refs(path: Path, kind: SourceKind, settings: SourceSettings, counts: ScanCounts) -> Iterator[ImageRef]:
    base = manifest_base(path, settings)
    root = settings.root
    real_root = None if root is None else root if buckets.is_address(root) else os.path.realpath(root)
    selection = Selection(settings.include, settings.exclude, hidden=True)
    for row in read_manifest(path, kind):
        file, problem = _resolve(row.location, base)
        if file and selection.why_no_file(below_base(file, base)) is not None:
            counts.left_alone[EXCLUDED] += 1
            continue
        problem = problem or _problem(file, real_root)
        # A row without a path is shown by its place in the manifest, for reports.
        shown_path = path_text(file) or f"{path_text(os.path.abspath(path))} ({row.where})"
        yield ImageRef(shown_path, file, row.name, row.external_id, row.directory, row.extra, problem)


def _resolve(location: str, base: str) -> tuple[str, ImageRejected | None]:
    """The absolute path or address of a location, and why it is unusable."""
    if not location:
        return "", ImageMissing()
    scheme = _SCHEME.match(location)
    if scheme:
        name = scheme[1].lower()
        if buckets.is_address(address := name + location[len(name) :]):
            return address, None
        if name != "file":
            return location, ImageUnreadable(detail=f"only files and buckets are read, not {name}: addresses")
        try:
            return _file_of_uri(location), None
        except ValueError as exc:
            return location, ImageUnreadable(detail=f"{exc}")
    if buckets.is_address(base) and not os.path.isabs(location):
        key = posixpath.normpath(location)
        return buckets.below(base, key), ImageOutside(root=path_text(base)) if key.split("/")[0] == ".." else None
    file = os.path.normpath(os.path.join(base, location))
    outside = not os.path.isabs(location) and not is_within(file, base)
    return file, ImageOutside(root=path_text(base)) if outside else None


def _file_of_uri(uri: str) -> str:
    """The path of a `file:` URI (RFC 8089). Raises ValueError for another machine or no path."""
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost"):
        raise ValueError(f"the file is on another machine ({path_text(parts.netloc)})")
    if not parts.path.startswith("/") or parts.query or parts.fragment:
        raise ValueError("a file: address is file:///path, with ? and # written as %3F and %23")
    return os.path.normpath(os.fsdecode(unquote_to_bytes(parts.path)))


def _problem(file: str, real_root: str | None) -> ImageRejected | None:
    """Why a path cannot be read, unopened; whether an address is outside."""
    is_object = buckets.is_address(file)
    problem = None if is_object else file_problem(file)
    if problem is None and real_root is not None:
        inside = buckets.is_below(file, real_root) if is_object else is_within(os.path.realpath(file), real_root)
        return None if inside else ImageOutside(root=path_text(real_root))
    return problem
