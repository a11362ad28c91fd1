"""Reads labels of photos from a manifest or a folder with one subfolder per person, and lists of photos to leave
out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final, TypeVar

import numpy as np

from pipeline.config import SourceSettings
from pipeline.errors import InputError, ManifestInvalid, SourceMissing, UsageError
from pipeline.evaluation.report import Skipped
from pipeline.extraction.sources.scan import scan_source, source_kind
from pipeline.runtime.buckets import is_address
from pipeline.texts import path_text
from pipeline.types import IntArray

Name = TypeVar("Name", bound=Hashable)

NO_NAME: Final = "the label names nobody"
REPEATED: Final = "the same path and label once more"


@dataclass(frozen=True)
class LabelledPhotos:
    """n photos in the order of the source, each with one person's name; no path twice."""

    paths: list[str]  # [n] as in the store and reports
    names: list[str]  # [n]
    columns: list[Any]  # [n] the values of the further column; None without one
    files: dict[str, Path]  # path -> file, if the file exists
    problems: dict[str, str]  # path -> why there is no file

    def to_embed(self, in_store: bool, skipped: Skipped) -> dict[str, Path]:
        """path -> file of the photos to embed: with a store all, as it may have photos with missing files; else
        existing files, counting others in `skipped`."""
        if in_store:
            return {path: self.files.get(path, Path(path)) for path in self.paths}
        for path, reason in self.problems.items():
            skipped.add(reason, path)
        return self.files


def read_labels(
    source: Path,
    settings: SourceSettings,
    skipped: Skipped,
    *,
    column: str | None = None,
    advance: Callable[[], None] = lambda: None,
) -> LabelledPhotos:
    """Reads the rows of a manifest with `name`, or the photos of a folder with `settings.labels` = parent.

    A photo with a missing file keeps its label, because a store may have it. Counts unnamed and repeated rows in
    `skipped`. `column`: a further manifest column to keep. Raises SourceMissing, SourceEmpty, UsageError for a folder
    without labels, InputError if nobody is named, and ManifestInvalid if a path has two names, or two values in
    `column`.
    """
    if source_kind(source) == "folder" and settings.labels != "parent":
        raise UsageError(
            message=f"The folder {path_text(source)} has no labels. If its subfolders are named after people, "
            "add --labels parent; else give a manifest with the columns path and name."
        )
    labels: dict[str, tuple[str, Any]] = {}
    files: dict[str, Path] = {}
    problems: dict[str, str] = {}
    for ref in scan_source(source, settings):
        advance()
        if ref.name is None:
            skipped.add(NO_NAME, ref.path)
            continue
        label = (ref.name, None if column is None else ref.extra.get(column))
        earlier = labels.setdefault(ref.path, label)
        if earlier is not label:
            for kind, first, second in zip(("name", column), earlier, label, strict=True):
                if first != second:
                    detail = f'it lists {ref.path} twice, with {kind} "{first}" and with "{second}"'
                    raise ManifestInvalid(path=path_text(source), detail=detail)
            skipped.add(REPEATED, ref.path)
        elif is_address(ref.file):
            problems[ref.path] = "an object in a bucket: only files are evaluated"
        elif ref.rejected is None:
            files[ref.path] = Path(ref.file)
        else:
            problems[ref.path] = f"{ref.rejected.status}: {ref.rejected.reason}"
    if not labels:
        raise InputError(message=f"No photo of {path_text(source)} has a name, so there is nothing to compare with.")
    names, columns = (list(parts) for parts in zip(*labels.values(), strict=True))
    return LabelledPhotos(list(labels), names, columns, files, problems)


def named_photos(file: Path) -> set[tuple[str, ...]]:
    """Reads ends of paths, as their parts. One per line, optionally with a reason after ` #`; empty lines, and lines
    that begin with #, are comments. Raises SourceMissing, and InputError if it is not text."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except OSError as exc:
        raise SourceMissing(path=file) from exc
    except ValueError as exc:
        raise InputError(message=f"{path_text(file)} is not a list of photos in UTF-8.") from exc
    return {PurePath(line.split(" #")[0].strip()).parts for line in lines if not line.startswith("#")} - {()}


def read_leave_out(file: Path, paths: Iterable[str]) -> set[str]:
    """Returns those of `paths` that end in a line of `file`.

    Raises what `named_photos` raises, and InputError for lines that match no path, so that mistyped names are noticed.
    """
    named = named_photos(file)
    found: dict[tuple[str, ...], set[str]] = {parts: set() for parts in named}
    lengths = {len(parts) for parts in named}
    for path in paths:
        parts = PurePath(path).parts
        for end in {parts[-length:] for length in lengths} & named:
            found[end].add(path)
    missing = sorted("/".join(parts) for parts, photos in found.items() if not photos)
    if missing:
        raise InputError(message=f"{path_text(file)} names {', '.join(missing[:3])}, and no photo here is called so.")
    return set().union(*found.values())


def numbered(names: Sequence[Name]) -> tuple[list[Name], IntArray]:
    """Returns the distinct names in order of first use, and the number [n] of each name among them."""
    numbers: dict[Name, int] = {}
    codes = np.fromiter((numbers.setdefault(name, len(numbers)) for name in names), np.int64, len(names))
    return list(numbers), codes
