"""Index segments of directories: written from the tail, merged, and rewritten without removed references. See
FORMAT.md.

A file is written first, then one transaction names it and lists the replaced files. Only one thread may write segments:
if others use the store, callers must hold its `embeddings_lock`. If a segment is damaged, the directory's segments are
dropped and written again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from pipeline.errors import StoreDamaged, StoreUnwritable
from pipeline.store.catalog.connection import Catalog, OpenStore
from pipeline.store.catalog.directories import directory_ids, drop_segments
from pipeline.store.catalog.references import (
    SegmentRow,
    SegmentSecrets,
    hashes_of,
    load_embeddings,
    open_segments,
    reference_rows,
    removed_numbers,
    segment_rows,
    tail_numbers,
)
from pipeline.store.cleanup import delete_later, discard_unnamed, unlink_pending
from pipeline.store.files import segments
from pipeline.store.files.segment_header import MAX_ROWS, SegmentKey, SegmentUnreadable, SegmentUnusable
from pipeline.store.files.segments import SegmentRows
from pipeline.types import FloatArray, IntArray, boxes_of

FOLD_ROWS: Final = 256  # references; fewer are as fast without a segment
_PIECE_ROWS: Final = 4096  # vectors read at once; other work of the catalog runs in between
_GROWTH: Final = 2  # merges a segment with new rows if it has at most this many times their number
_DEAD_SHARE: Final = 0.25  # of a segment's rows, to rewrite it
# A removed reference is erased if its person or face is removed. A merely replaced one stays until its segment is
# rewritten.
_TO_ERASE: Final = """
    SELECT t.directory_id, t.seq FROM core.tombstones t LEFT JOIN core.faces f ON f.face_id = t.face_id
    WHERE t.generation = ? AND (t.erase OR f.outcome IN ('removed', 'rejected'))
"""
# Upper bound of the tail of each directory: each person has at most one reference.
_TAILS: Final = """
    SELECT directory_id, persons - coalesce(rows, 0) + coalesce(removed, 0) AS most
    FROM (SELECT directory_id, count(*) AS persons FROM core.persons GROUP BY 1)
    LEFT JOIN (SELECT directory_id, sum("rows")::BIGINT AS rows FROM core.segments WHERE generation = $1 GROUP BY 1)
        USING (directory_id)
    LEFT JOIN (SELECT directory_id, count(*) AS removed FROM core.tombstones WHERE generation = $1 GROUP BY 1)
        USING (directory_id)
    ORDER BY 1
"""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Plan:
    """A segment to write."""

    directory: int
    replaced: Sequence[SegmentRow]  # adjacent; it gets their references
    removed: IntArray  # numbers of references to omit
    tail: IntArray  # numbers of later references to add


def fold(store: OpenStore, least: int = 0) -> Iterator[int]:
    """Writes tails of at least max(`least`, FOLD_ROWS) references into segments, merging small ones. Yields each
    segment's number of tail references. Raises StoreDamaged, StoreFull, StoreUnwritable."""
    least = max(least, FOLD_ROWS)
    for directory in store.submit(_with_long_tails, least):
        while (plan := store.submit(_tail_plan, directory, least)) is not None:
            _write(store, plan)
            yield len(plan.tail)


def rewrite(store: OpenStore) -> None:
    """Rewrites segments with references to erase, or many removed rows. Raises as `fold`."""
    for plan in store.submit(_rewriting_plans):
        _write(store, plan)


def to_erase(catalog: Catalog) -> list[str]:
    """Segments with references to erase."""
    return [plan.replaced[0].file for plan in _rewriting_plans(catalog, only_erasing=True)]


def waiting(catalog: Catalog) -> int:
    """Upper bound of the references in no segment."""
    return sum(most for _, most in catalog.rows(_TAILS, [catalog.generation]))


def forget(catalog: Catalog, directory: int) -> None:
    """Drops the directory's segments: all references become the tail. The files are deleted later."""
    with catalog.transaction("fold"):
        drop_segments(catalog, directory)


# Plans


def _with_long_tails(catalog: Catalog, least: int) -> list[int]:
    """Directories that may have so long a tail."""
    return [directory for directory, most in catalog.rows(_TAILS, [catalog.generation]) if most >= least]


def _tail_plan(catalog: Catalog, directory: int, least: int) -> _Plan | None:
    """The next segment of the tail, merged with preceding small ones; None if it is too short."""
    known = segment_rows(catalog, directory)
    tail = tail_numbers(catalog, directory, MAX_ROWS)
    count = len(tail)
    if count < least:
        return None
    replaced: list[SegmentRow] = []
    while known and known[-1].rows <= _GROWTH * count and known[-1].rows + count <= MAX_ROWS:
        replaced.insert(0, known.pop())
        count += replaced[0].rows
    return _Plan(directory, replaced, _removed(catalog, directory, replaced), tail)


def _rewriting_plans(catalog: Catalog, *, only_erasing: bool = False) -> list[_Plan]:
    if not catalog.rows("SELECT 1 FROM core.tombstones LIMIT 1"):
        return []
    due = set(catalog.rows(_TO_ERASE, [catalog.generation]))
    plans = []
    for directory in directory_ids(catalog):
        for row in segment_rows(catalog, directory):
            removed = _removed(catalog, directory, [row])
            many = len(removed) >= _DEAD_SHARE * row.rows and not only_erasing
            if many or any((directory, seq) in due for seq in removed.tolist()):
                plans.append(_Plan(directory, [row], removed, np.empty(0, np.int64)))
    return plans


def _removed(catalog: Catalog, directory: int, rows: Sequence[SegmentRow]) -> IntArray:
    """Numbers of removed references in these adjacent segments."""
    if not rows:
        return np.empty(0, np.int64)
    return removed_numbers(catalog, directory, rows[0].first_seq, rows[-1].last_seq)


# Writing


def _write(store: OpenStore, plan: _Plan) -> None:
    """Writes the planned segment and commits it."""
    try:
        opened = store.submit(open_segments, plan.directory, plan.replaced, plan.removed)
        parts = [segment.live() for segment in opened]
    except SegmentUnreadable as exc:
        raise StoreUnwritable(path=store.folder.root, detail=f"an index segment is needed, and {exc}") from exc
    except (SegmentUnusable, StoreDamaged) as exc:
        _log.warning("the index segments of a directory are damaged, and made again from the embeddings: %s", exc)
        store.submit(forget, plan.directory)
        unlink_pending(store)  # it may contain data to erase
        return
    pieces = range(0, len(plan.tail), _PIECE_ROWS)
    parts += [store.submit(_piece, plan.directory, plan.tail[start : start + _PIECE_ROWS]) for start in pieces]
    rows = SegmentRows.joined(parts)
    if len(rows):
        secrets = store.submit(SegmentSecrets.of)
        key = SegmentKey(secrets.store, store.generation, plan.directory, rows.vectors.shape[1])
        first, last = int(rows.seq[0]), int(rows.seq[-1])
        file = f"references/g{store.generation:04d}/{plan.directory}-{first}-{str(uuid.uuid4())[:8]}.segment"
        try:
            segments.write(store.folder, file, key, rows, secrets.images)
            store.submit(_name, plan, SegmentRow(file, len(rows), first, last), rows.seq)
        finally:
            store.submit(discard_unnamed, file)  # each try has a new name: they would fill the disk
    else:
        store.submit(_name, plan, None, rows.seq)
    unlink_pending(store)


def _piece(catalog: Catalog, directory: int, numbers: IntArray) -> SegmentRows:
    """Segment rows of the references with these numbers that still exist."""
    rows = reference_rows(catalog, directory, int(numbers[0]), int(numbers[-1]))
    return rows_of(rows, load_embeddings(catalog, rows["face_id"].to_numpy()), SegmentSecrets.of(catalog).images)


def rows_of(references: pa.Table, vectors: FloatArray, image_key: bytes) -> SegmentRows:
    """Segment rows of these references (`reference_rows`) with their vectors."""
    return SegmentRows(
        vectors,
        segments.codes_of(vectors),
        references["reference_seq"].to_numpy(),
        references["seq"].to_numpy(),
        segments.uuid_bytes(references["person_id"].to_pylist()),
        boxes_of(references),
        segments.image_table(hashes_of(references), image_key),
    )


def _name(catalog: Catalog, plan: _Plan, written: SegmentRow | None, numbers: IntArray) -> None:
    """The transaction: replaces the segments, unless the directory was deleted meanwhile. The next `rewrite` erases
    what was removed since the plan."""
    generation, directory = catalog.generation, plan.directory
    files = [row.file for row in plan.replaced]
    known = {row.file for row in segment_rows(catalog, directory)}
    if not known.issuperset(files) or directory not in directory_ids(catalog):
        return
    tables = {"gone": pa.table({"seq": plan.removed}), "named": pa.table({"seq": numbers})}
    with catalog.tables(**tables), catalog.transaction("fold"):
        catalog.execute("DELETE FROM core.segments WHERE file IN (SELECT unnest(?::VARCHAR[]))", [files])
        here = "generation = ? AND directory_id = ? AND seq IN (SELECT seq FROM gone)"
        catalog.execute(f"DELETE FROM core.tombstones WHERE {here}", [generation, directory])
        if written is not None:
            catalog.insert("segments", [{"generation": generation, "directory_id": directory, **vars(written)}])
            # A removal meanwhile left no tombstone if no segment had the reference.
            catalog.execute(
                "INSERT INTO core.tombstones SELECT $1, $2, seq, NULL, NULL, true FROM named WHERE seq NOT IN"
                " (SELECT seq FROM core.reference_faces WHERE generation = $1 AND seq BETWEEN $3 AND $4)"
                " AND seq NOT IN (SELECT seq FROM core.tombstones WHERE generation = $1 AND directory_id = $2)",
                [generation, directory, written.first_seq, written.last_seq],
            )
        delete_later(catalog, files)
