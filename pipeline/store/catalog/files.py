"""core.files: the known rows of each source, and the file states by which changes are detected without reading."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import pyarrow as pa

from pipeline.errors import ImageChanged
from pipeline.store.catalog import forgotten
from pipeline.store.catalog.connection import Catalog
from pipeline.store.keyed_digests import ERASED, label_digests, labels_of_media
from pipeline.store.records import (
    Label,
    LabelledPhoto,
    MediaLabel,
    Move,
    ReadAgain,
    ScanNotes,
    SourceMove,
    SourceSummary,
)
from pipeline.types import DUPLICATE_ROW, utc_now

# Not known: repeated rows of a run, and files that changed during a run, so that the next run processes them.
_KNOWN: Final = f"status <> '{DUPLICATE_ROW}' AND (sha256 IS NOT NULL OR status <> '{ImageChanged.status}')"

_OF_SOURCE: Final = {"media": "t.run_id IN (SELECT run_id FROM core.runs WHERE source = ?)", "files": "t.source = ?"}


def known_files(catalog: Catalog, source: str, account_id: int, after: int, limit: int) -> pa.Table:
    """KNOWN_FILES_SCHEMA: the source's first `limit` committed rows with media_id > `after`, ascending.

    `sha256` is null if the file could not be read. Times and inode, seen at `seen_at`, are null if they cannot prove
    that the file is unchanged. `gone_at`: missing since then. `label`: a digest (`digests_of_labels`), null without a
    label, or ERASED.
    """
    return catalog.read(
        "SELECT f.path, f.directory, f.media_id, m.sha256, f.size, f.mtime_ns, f.ctime_ns, f.inode, f.seen_at,"
        " f.gone_at, f.label FROM core.files f JOIN core.media m ON m.media_id = f.media_id WHERE f.source = ? AND"
        " f.account_id = ? AND f.media_id > ? AND m.media_id > ? ORDER BY f.media_id LIMIT ?",
        [source, account_id, after, after, limit],
    )


def sources(catalog: Catalog, account_id: int) -> list[SourceSummary]:
    """The account's sources with committed rows, by path."""
    rows = catalog.rows(
        "SELECT source, kind, count(DISTINCT path) FROM core.files JOIN (SELECT source,"
        " arg_max(source_kind, started_at) AS kind FROM core.runs WHERE account_id = $1 GROUP BY source) USING (source)"
        " WHERE account_id = $1 GROUP BY ALL ORDER BY source",
        [account_id],
    )
    return [SourceSummary(*row) for row in rows]


def note_scan(catalog: Catalog, source: str, account_id: int, notes: ScanNotes) -> None:
    """Stores scan results in one transaction, if the scan planned no run (then `plan_run` does)."""
    with catalog.transaction("note_scan"):
        note(catalog, source, account_id, notes)


def note(catalog: Catalog, source: str, account_id: int, notes: ScanNotes) -> None:
    """`note_scan` inside a transaction."""
    if notes.source is not None:
        _move_source(catalog, source, account_id, notes.source)
        forgotten.remember(catalog, account_id, forgotten.PATH, notes.forgotten)
    if notes.moved:
        _move(catalog, source, account_id, notes.moved)
    now = utc_now()
    _set_gone(catalog, notes.gone, now)
    _set_gone(catalog, notes.back, None)
    if notes.read_again:
        _note_states(catalog, notes.read_again, now)


def _move_source(catalog: Catalog, source: str, account_id: int, move: SourceMove) -> None:
    cases = " ".join("WHEN starts_with(t.path, ?) THEN ? || substr(t.path, ?)" for _ in move.prefixes)
    values = [value for old, new in move.prefixes for value in (old, new, len(old) + 1)]
    for table, condition in _OF_SOURCE.items():
        catalog.execute(
            f"UPDATE core.{table} t SET path = CASE {cases} ELSE t.path END WHERE t.account_id = ? AND {condition}",
            [*values, account_id, move.old],
        )
    for table in ("runs", "files"):
        catalog.execute(
            f"UPDATE core.{table} SET source = ? WHERE source = ? AND account_id = ?", [source, move.old, account_id]
        )


def _move(catalog: Catalog, source: str, account_id: int, moved: Sequence[Move]) -> None:
    old, directories, new = zip(*moved, strict=True)
    with catalog.tables(moved=pa.table({"old": old, "directory": directories, "new": new})):
        for table, condition in _OF_SOURCE.items():
            catalog.execute(
                f"UPDATE core.{table} t SET path = m.new FROM moved m WHERE t.path = m.old AND t.directory ="
                f" m.directory AND t.account_id = ? AND {condition}",
                [account_id, source],
            )


def _set_gone(catalog: Catalog, media: Sequence[int], at: datetime | None) -> None:
    for table in ("media", "files") if media else ():
        catalog.execute(
            f"UPDATE core.{table} SET gone_at = ? WHERE media_id IN (SELECT unnest(?::BIGINT[]))", [at, list(media)]
        )


def _note_states(catalog: Catalog, read_again: Sequence[ReadAgain], now: datetime) -> None:
    names = ("media_id", "size", "mtime_ns", "ctime_ns", "inode")
    columns = zip(*read_again, strict=True)
    states = pa.table({name: pa.array(column, pa.int64()) for name, column in zip(names, columns, strict=True)})
    with catalog.tables(states=states):
        catalog.execute(
            "UPDATE core.files SET size = s.size, mtime_ns = s.mtime_ns, ctime_ns = s.ctime_ns, inode = s.inode,"
            " seen_at = ? FROM states s WHERE core.files.media_id = s.media_id",
            [now],
        )


def add(catalog: Catalog, source: str, account_id: int, media: pa.Table) -> None:
    """Inside a shard's transaction, with its tables as `new_media` (= `media`), `new_faces` and `new_files`: adds its
    rows. Erases labels of forgotten faces, and labels at paths whose label was erased."""
    with catalog.tables(labels=labels_of_media(_key(catalog), media)):
        catalog.execute(
            "INSERT INTO core.files BY NAME SELECT ? AS source, ? AS account_id, m.path, m.directory, m.media_id,"
            " m.bytes AS size, f.mtime_ns, f.ctime_ns, f.inode, ? AS seen_at, l.label"
            f" FROM new_media m JOIN new_files f USING (media_id) LEFT JOIN labels l USING (media_id) WHERE {_KNOWN}",
            [source, account_id, utc_now()],
        )
    erased = catalog.column(
        "SELECT media_id FROM new_faces WHERE ordinal = 0 AND outcome = 'removed' UNION SELECT m.media_id"
        " FROM new_media m JOIN core.files f USING (path, directory) WHERE f.source = ? AND f.account_id = ?"
        f" AND f.label = '{ERASED}'",
        [source, account_id],
    )
    erase_labels(catalog, erased)


def labelled_photos(
    catalog: Catalog, account_id: int, directory: str, media_ids: Sequence[int], person_ids: Sequence[str]
) -> list[LabelledPhoto]:
    """These photos of a directory, and labelled ones, not missing, whose largest face is one of the persons'."""
    rows = catalog.rows(
        "SELECT f.media_id, f.path, f.label, c.face_id, c.person_id::VARCHAR, c.outcome FROM core.files f"
        " LEFT JOIN core.faces c ON c.media_id = f.media_id AND c.ordinal = 0"
        " WHERE f.account_id = $1 AND f.directory = $2 AND (f.media_id IN (SELECT unnest($3::BIGINT[]))"
        " OR (f.label <> '' AND f.gone_at IS NULL AND c.person_id IN (SELECT unnest($4::UUID[])))) ORDER BY f.media_id",
        [account_id, directory, list(media_ids), list(person_ids)],
    )
    return [LabelledPhoto(*row) for row in rows]


def digests_of_labels(catalog: Catalog, labels: Sequence[Label]) -> list[str | None]:
    """Each label's digest as in `core.files`; None for an empty label."""
    return label_digests(_key(catalog), labels)


def note_labels(catalog: Catalog, labels: Sequence[MediaLabel]) -> None:
    """Stores the current labels of these media, in one transaction."""
    with catalog.transaction("note_labels"):
        set_labels(catalog, labels)


def set_labels(catalog: Catalog, labels: Sequence[MediaLabel]) -> None:
    """`note_labels` inside a transaction."""
    media, names, external_ids = zip(*labels, strict=True)
    digests = label_digests(_key(catalog), zip(names, external_ids, strict=True))
    texts = {"name": names, "external_id": external_ids, "label": digests}
    said = {name: pa.array(column, pa.string()) for name, column in texts.items()}
    with catalog.tables(said=pa.table({"media_id": pa.array(media, pa.int64()), **said})):
        # Skips rows whose label was erased since the comparison.
        catalog.execute(
            "UPDATE core.media m SET name = s.name, external_id = s.external_id FROM said s, core.files f"
            f" WHERE m.media_id = s.media_id AND f.media_id = s.media_id AND f.label IS DISTINCT FROM '{ERASED}'"
        )
        catalog.execute(
            "UPDATE core.files f SET label = s.label FROM said s"
            f" WHERE f.media_id = s.media_id AND f.label IS DISTINCT FROM '{ERASED}'"
        )


def erase_labels(catalog: Catalog, media: Sequence[int]) -> None:
    """Inside a transaction: deletes the labels of these media and of the rows that repeat them in their runs; they are
    no longer compared."""
    if not media:
        return
    these = "media_id IN (SELECT unnest($1::BIGINT[]))"
    catalog.execute(
        f"UPDATE core.media SET name = NULL, external_id = NULL, extra = NULL WHERE {these} OR"
        f" (status = '{DUPLICATE_ROW}' AND (run_id, path, directory) IN"
        f" (SELECT (run_id, path, directory) FROM core.media WHERE {these}))",
        [list(media)],
    )
    catalog.execute(f"UPDATE core.files SET label = '{ERASED}' WHERE {these}", [list(media)])


def _key(catalog: Catalog) -> str:
    return str(catalog.one("SELECT fact_key FROM core.store"))
