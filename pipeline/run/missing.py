"""`run.on_missing: forget`: a run forgets missing photos, unless there are too many."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from pipeline.config import FORGET
from pipeline.errors import Interrupted
from pipeline.extraction.sources.scan import below_base, manifest_base, source_kind
from pipeline.extraction.sources.selection import Selection
from pipeline.jobs.plan_counts import LISTED, PlanCounts
from pipeline.run.changed_files import Comparison
from pipeline.run.session import Session
from pipeline.runtime.buckets import describe, is_address
from pipeline.store import CorrectionRequest

_PIECE: Final = 1000  # photos per transaction, which blocks a server's requests


@dataclass(frozen=True)
class MissingPhotos:
    """Missing photos to forget, by directory: path and media ids."""

    photos: dict[str, list[tuple[str, list[int]]]]
    in_folder: bool  # source is a folder, where photos that are back again are not forgotten

    @property
    def count(self) -> int:
        """The number of paths."""
        return sum(map(len, self.photos.values()))


def missing_to_forget(session: Session, compared: Comparison, counts: PlanCounts) -> MissingPhotos | None:
    """Returns the photos to forget that this or an earlier scan missed, and counts them. Photos that only the settings
    leave out stay.

    None if there are none, or if they exceed `run.missing_limit` and the request does not allow that.
    """
    request, settings = session.request, session.settings
    if request.source is None or settings.run.on_missing != FORGET:
        return None
    in_folder = source_kind(request.source) == "folder"
    base = manifest_base(request.source, settings.source)
    selection = Selection(settings.source.include, settings.source.exclude, hidden=True)

    def stays(path: str) -> bool:
        return _may_be_there(path) if in_folder else selection.why_no_file(below_base(path, base)) is not None

    missing = [key for key in compared.missing if not stays(key[0])]
    if len(missing) > settings.run.missing_limit * compared.stored.paths and not request.forget_many:
        counts.too_many_missing = len(missing)
        return None
    paths = {path for path, _ in missing}
    counts.forgotten_missing_files = [path for path, _ in missing[:LISTED]]
    counts.vanished_files = [path for path, _ in compared.vanished if path not in paths][:LISTED]
    photos: dict[str, list[tuple[str, list[int]]]] = {}
    for key in missing:
        photos.setdefault(key[1], []).append((key[0], compared.stored.media_of(key)))
    return MissingPhotos(photos, in_folder) if missing else None


def _may_be_there(path: str) -> bool:
    """Whether a file may exist. True if unknown, as on a disconnected share, or if the name is not UTF-8: the store has
    only its printable form."""
    if "\\x" in path:
        return True
    try:
        if is_address(path):
            describe(path)
        else:
            os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def forget_missing(session: Session, missing: MissingPhotos) -> int:
    """Forgets the photos that are not back; returns how many. Raises Interrupted once the session's stop is set; the
    next run forgets the rest."""
    session.progress.start("forget", missing.count)
    forgotten = 0
    for directory, photos in missing.photos.items():
        for start in range(0, len(photos), _PIECE):
            if session.stop.is_set():
                raise Interrupted(detail="not all missing photos are forgotten")
            piece = photos[start : start + _PIECE]
            gone = [media for path, media in piece if not (missing.in_folder and _may_be_there(path))]
            media_ids = [media_id for media in gone for media_id in media]
            if media_ids:
                request = CorrectionRequest(session.account_id, directory, "forget_photos", media_ids=media_ids)
                session.store.correct(request)
            forgotten += len(gone)
            session.progress.advance(len(piece))
    return forgotten
