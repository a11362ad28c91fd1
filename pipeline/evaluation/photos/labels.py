"""Reads who is on which photo, from a labelled manifest or a folder with one subfolder per person."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from pipeline.config import SourceSettings
from pipeline.errors import InputError, ManifestInvalid, UsageError
from pipeline.evaluation.photos.skipped import Skipped
from pipeline.extraction.images.files import shown
from pipeline.extraction.sources.scan import scan_source, source_kind
from pipeline.types import ImageRef, IntArray

NO_NAME: Final = "the label names nobody"
REPEATED: Final = "the same path and label once more"


@dataclass
class LabelledPhotos:
    """n photos in the order of the source, each with one person's name; no path twice."""

    paths: list[str] = field(default_factory=list)  # [n] as the store and reports show them
    names: list[str] = field(default_factory=list)  # [n]
    columns: list[Any] = field(default_factory=list)  # [n] the values of the further column
    files: dict[str, Path] = field(default_factory=dict)  # path -> file, where the file exists
    problems: dict[str, str] = field(default_factory=dict)  # path -> why there is no file

    def __len__(self) -> int:
        return len(self.paths)

    def to_embed(self, in_store: bool, skipped: Skipped) -> dict[str, Path]:
        """path -> file of the photos to embed. With a store these are all, as it may have photos whose files are gone;
        else those whose file exists. Counts the others in `skipped`."""
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
    """The rows of a manifest with `name`, or the photos of a folder with `settings.labels` = parent.

    A photo whose file is missing keeps its label, because a store may have it. Counts rows without a name and repeated
    rows in `skipped`. `column`: a further column of a manifest to keep.
    Raises SourceMissing, SourceEmpty, UsageError for a folder without labels, InputError where nobody is named, and
    ManifestInvalid where one path has two names, or two values in `column`.
    """
    if source_kind(source) == "folder" and settings.labels != "parent":
        raise UsageError(
            message=f"The folder {shown(source)} has no labels. If its subfolders are named after people, "
            "add --labels parent; else give a manifest with the columns path and name."
        )
    photos, labels = LabelledPhotos(), dict[str, tuple[str, Any]]()
    for ref in scan_source(source, settings):
        advance()
        if ref.name is None:
            skipped.add(NO_NAME, ref.path)
        elif _is_new(source, labels, ref, column):
            _add(photos, ref, ref.name, column)
        else:
            skipped.add(REPEATED, ref.path)
    if not photos.paths:
        raise InputError(message=f"No photo of {shown(source)} has a name, so there is nothing to compare with.")
    return photos


def _is_new(source: Path, labels: dict[str, tuple[str, Any]], ref: ImageRef, column: str | None) -> bool:
    """Whether `ref` is new. Raises ManifestInvalid where an earlier row has another label."""
    label = (str(ref.name), None if column is None else ref.extra.get(column))
    if ref.path not in labels:
        labels[ref.path] = label
        return True
    earlier = labels[ref.path]
    if earlier[0] != label[0]:
        _contradicts(source, ref.path, "name", earlier[0], label[0])
    if earlier[1] != label[1]:
        _contradicts(source, ref.path, str(column), earlier[1], label[1])
    return False


def _contradicts(source: Path, path: str, column: str, first: object, second: object) -> None:
    detail = f'it lists {path} twice, with {column} "{first}" and with "{second}"'
    raise ManifestInvalid(path=shown(source), detail=detail)


def _add(photos: LabelledPhotos, ref: ImageRef, name: str, column: str | None) -> None:
    photos.paths.append(ref.path)
    photos.names.append(name)
    if column is not None:
        photos.columns.append(ref.extra.get(column))
    if ref.rejected is None:
        photos.files[ref.path] = ref.file
    else:
        photos.problems[ref.path] = f"{ref.rejected.status}: {ref.rejected.reason}"


def numbered(texts: Sequence[str]) -> tuple[list[str], IntArray]:
    """The distinct texts in the order of their first use, and the number [n] of each text among them."""
    numbers: dict[str, int] = {}
    codes = np.fromiter((numbers.setdefault(text, len(numbers)) for text in texts), np.int64, len(texts))
    return list(numbers), codes
