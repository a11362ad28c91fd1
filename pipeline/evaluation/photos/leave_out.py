"""Reads a list of photos to leave out: photos of one person under two names, or of somebody else than their name says.

Each line is the end of a path, and after ` #` the reason. Empty lines, and lines that begin with #, are notes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePath

from pipeline.errors import InputError, SourceMissing
from pipeline.extraction.images.files import shown


def named_photos(file: Path) -> set[tuple[str, ...]]:
    """The ends of paths in `file`, as their parts. Raises SourceMissing, and InputError for a file that is no text."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except OSError as exc:
        raise SourceMissing(path=file) from exc
    except ValueError as exc:
        raise InputError(message=f"{shown(file)} is not a list of photos in UTF-8.") from exc
    return {PurePath(line.split(" #")[0].strip()).parts for line in lines if not line.startswith("#")} - {()}


def read_leave_out(file: Path, paths: Iterable[str]) -> set[str]:
    """Those of `paths` that end in a line of `file`.

    Raises what `named_photos` raises, and InputError for lines that no path ends in: a photo whose name was mistyped
    would stay in unseen.
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
        raise InputError(message=f"{shown(file)} names {', '.join(missing[:3])}, and no photo here is called so.")
    return set().union(*found.values())
