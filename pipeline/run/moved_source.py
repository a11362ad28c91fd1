"""`--moved-from OLD`: an archive moved, and the store has its photos from the old place."""

from __future__ import annotations

import difflib
import os
import shlex
from pathlib import Path

from pipeline.errors import UsageError
from pipeline.extraction.sources.scan import source_kind
from pipeline.run.session import Session, source_name
from pipeline.runtime.buckets import is_address
from pipeline.store import SCANNING, SourceMove, SourceSummary


def moved_source(session: Session) -> SourceMove | None:
    """Returns the requested move; None if there is none, or an earlier run has done it.

    Raises UsageError if the store has nothing from there, a run is unfinished, or the store has photos of both.
    """
    request, progress = session.request, session.progress
    if request.moved_from is None or request.source is None:
        return None
    old, new = source_name(request.moved_from), source_name(request.source)
    _require_finished(session, old)
    known = {summary.source: summary for summary in session.store.sources(session.account_id)}
    if old not in known and new in known:
        progress.note(f"The store has nothing from {old} any more: its photos are those of {new}.")
        return None
    if old not in known:
        raise nothing_from(old, [*known.values()])
    _require_finished(session, new)
    if new in known:
        raise UsageError(
            message=f"The store has {known[new].photos:,} photos from {new} beside {known[old].photos:,} from {old}: "
            "these are two sources for it by now, and cannot be made one."
        )
    kind = source_kind(request.source)
    if (known[old].kind == "folder") != (kind == "folder"):
        raise UsageError(
            message=f"{old} was a {_called(known[old].kind)}, and {new} is a {_called(kind)}: --moved-from takes a "
            "source of the same kind."
        )
    if _holds_files(old):
        progress.note(
            f"{old} still holds files. The store takes its photos as moved to {new}, and would take those files, in a "
            "later run of them, as copies."
        )
    return SourceMove(old, _prefixes(old, new, kind))


def nothing_from(old: str, sources: list[SourceSummary]) -> UsageError:
    """The error if the store has nothing from `old`."""
    close = difflib.get_close_matches(old, [summary.source for summary in sources], n=1)
    listed = ", ".join(f"{summary.source} ({summary.photos:,} photos)" for summary in sources)
    hint = f' Did you mean "{close[0]}"?' if close else ""
    return UsageError(message=f"The store has nothing from {old}.{hint} It has photos from: {listed or 'nowhere yet'}.")


def _require_finished(session: Session, source: str) -> None:
    run = session.store.runs(source, session.account_id).unfinished
    if run is None or run.state == SCANNING:
        return
    where = f"{shlex.quote(source)} --store {shlex.quote(str(session.request.store))}"
    goes_on = f"`facepipe run {where}` goes on with it, " if is_address(source) or Path(source).exists() else ""
    raise UsageError(
        message=f"A run of {source} is not finished: {goes_on}`facepipe abandon {where}` gives it up. Then the "
        "archive can be taken as moved."
    )


def _called(kind: str) -> str:
    return "folder" if kind == "folder" else "manifest"


def _holds_files(source: str) -> bool:
    """Whether it is a manifest, or a folder that is not empty."""
    try:
        return Path(source).is_file() or any(Path(source).iterdir())
    except OSError:
        return False


def _prefixes(old: str, new: str, kind: str) -> list[tuple[str, str]]:
    """Returns (old, new) path prefixes. A manifest's files may be elsewhere; its rows without a file have its path as
    name. A wrong guess only costs a reading: equal bytes are a move."""
    if kind == "folder":
        return [(_within(old), _within(new))]
    return [(f"{old} (", f"{new} ("), (_within(str(Path(old).parent)), _within(str(Path(new).parent)))]


def _within(folder: str) -> str:
    return folder.rstrip(os.sep) + os.sep
