"""core.files: the rows that the store has of each source, and what tells without reading whether a file changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ImageChanged
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.forgotten import digests
from pipeline.store.catalog.opening import utc_now
from pipeline.store.records import Move, ReadAgain, ScanNotes
from pipeline.types import DUPLICATE_ROW

LABEL: Final = "label"
# Not known: a row that repeats another of its run; and a file that changed while a run was at work, so that the next
# one takes it up.
_KNOWN: Final = f"status <> '{DUPLICATE_ROW}' AND (sha256 IS NOT NULL OR status <> '{ImageChanged.status}')"

_OF_SOURCE: Final = {"media": "t.run_id IN (SELECT run_id FROM core.runs WHERE source = ?)", "files": "t.source = ?"}


def known_files(catalog: Catalog, source: str, account_id: int) -> pa.Table:
    """KNOWN_FILES_SCHEMA: the rows committed from a source, the latest last.

    A file that could not be read has no hash. The times and the inode are null where they would not tell that the file
    changed since it was read; they were seen at `seen_at`. `gone_at`: since when the file is missed.
    """
    return catalog.read(
        "SELECT f.path, f.directory, f.media_id, m.sha256, f.size, f.mtime_ns, f.ctime_ns, f.inode, f.seen_at,"
        " f.gone_at FROM core.files f JOIN core.media m ON m.media_id = f.media_id WHERE f.source = ? AND"
        " f.account_id = ? ORDER BY f.media_id",
        [source, account_id],
    )


def note_scan(catalog: Catalog, source: str, account_id: int, notes: ScanNotes) -> None:
    """Keeps what a scan of a source found, in one transaction."""
    with catalog.transaction("note_scan"):
        if notes.moved:
            _move(catalog, source, account_id, notes.moved)
        now = utc_now()
        _set_gone(catalog, notes.gone, now)
        _set_gone(catalog, notes.back, None)
        if notes.read_again:
            _note_states(catalog, notes.read_again, now)


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
    """Inside the transaction of a shard, in which `new_media` (`media`) and `new_files` are its tables: its rows are
    known from now on."""
    labelled = media.filter(pc.or_(media["name"].is_valid(), media["external_id"].is_valid()))
    said = zip(labelled["name"].to_pylist(), labelled["external_id"].to_pylist(), strict=True)
    texts = [json.dumps(label, ensure_ascii=False) for label in said]
    label_digests = pa.array(digests(catalog, LABEL, texts), pa.string())
    with catalog.tables(labels=pa.table({"media_id": labelled["media_id"], "label": label_digests})):
        catalog.execute(
            "INSERT INTO core.files BY NAME SELECT ? AS source, ? AS account_id, m.path, m.directory, m.media_id,"
            " m.bytes AS size, f.mtime_ns, f.ctime_ns, f.inode, ? AS seen_at, l.label"
            f" FROM new_media m JOIN new_files f USING (media_id) LEFT JOIN labels l USING (media_id) WHERE {_KNOWN}",
            [source, account_id, utc_now()],
        )
