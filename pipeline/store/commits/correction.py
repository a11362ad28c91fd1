"""Commits a correction: pictures first, then one transaction with exactly the rows that it changes, and these rows as
they were, so that it can be undone by the same way. What it takes are sets of rows, so a correction of many costs few
statements.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from pipeline.errors import StoreError
from pipeline.store import cleanup
from pipeline.store.catalog import corrections, files
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.directories import directory_id, drop_if_empty, make_directories, require_directory
from pipeline.store.catalog.opening import utc_now
from pipeline.store.commits.directory import person_row
from pipeline.store.commits.removal import drop_references, forget_corrections, remove_photos
from pipeline.store.files.objects import Row
from pipeline.store.files.shards import vector_bytes
from pipeline.store.records import CorrectionCommit, Fact, PersonRecord, Rows
from pipeline.store.schema import TABLES
from pipeline.types import FloatArray

FACE_COLUMNS: Final = ("person_id", "outcome", "similarity_score", "rejection_reasons")  # that a correction sets
_ABOUT: Final = ("face_id", "person_id", "other_id")  # of a fact
_THESE = "(SELECT unnest(?::UUID[]))"


@dataclass(frozen=True)
class CommittedCorrection:
    """What a commit drew."""

    correction_id: int | None  # None: it can't be undone
    at: datetime
    seqs: Mapping[str, int]  # of the persons that it made


def commit_correction(catalog: Catalog, commit: CorrectionCommit, objects: Sequence[Row]) -> CommittedCorrection:
    """The transaction; `objects` are the rows of its pictures. Files that are no longer needed are only listed. Raises
    StoreError, such as for rows that are not there; then nothing has happened."""
    with catalog.transaction("correction"):
        return change_rows(catalog, commit, objects, utc_now())


def change_rows(
    catalog: Catalog, commit: CorrectionCommit, objects: Sequence[Row], now: datetime
) -> CommittedCorrection:
    """The same inside a transaction, that of a shard for one."""
    before, after = commit.before, commit.after
    made = [person_id for person_id, columns in before.persons.items() if columns is None]
    if made:  # where all faces were rejected, they are the first
        make_directories(catalog, commit.account_id, [commit.directory], now)
    if commit.leaving:
        remove_photos(catalog, commit.account_id, commit.leaving, commit.leaving_status)
        # Photos leave a directory without persons as well: then there is nothing else to change.
        directory = directory_id(catalog, commit.account_id, commit.directory) or 0
    else:
        directory = require_directory(catalog, commit.account_id, commit.directory)
    ((number, seq),) = catalog.rows("SELECT next_correction_id, next_person_seq FROM core.store")
    seqs = {p: s for s, p in enumerate((p for p in made if not _columns(after, p)["seq"]), seq)}
    after = _complete(after, seqs, Fact("", correction_id=number, origin=commit.origin, stated_at=now))
    _change_facts(catalog, before.facts, after.facts)
    if _change_faces(catalog, after.faces):
        cleanup.blank_matrix_later(catalog, directory)
    _add_vectors(catalog, commit.vectors)
    _change_persons(catalog, directory, before, after, now)
    free = _change_references(catalog, commit, seqs, seq + len(seqs), objects)
    gone = [person_id for person_id, columns in after.persons.items() if columns is None]
    if not commit.leaving:
        said = commit.kind, commit.origin, now, commit.before, commit.after, after.facts, commit.undoes
        corrections.keep(catalog, number, commit.account_id, directory, *said)
    elif gone:
        forget_corrections(catalog, directory, gone)
    if commit.labels:
        files.set_labels(catalog, commit.labels)
    catalog.execute(
        "UPDATE core.store SET next_person_seq = ?, next_correction_id = greatest(next_correction_id, ?)",
        [free, number + 1],
    )
    if gone:
        drop_if_empty(catalog, directory)
    return CommittedCorrection(None if commit.leaving else number, now, seqs)


def _columns(rows: Rows, person_id: str) -> Mapping[str, Any]:
    return rows.persons[person_id] or {}


def _complete(after: Rows, seqs: Mapping[str, int], drawn: Fact) -> Rows:
    """With the numbers of new persons and the origin of new facts. Facts that come back by an undoing have theirs."""
    persons = dict(after.persons)
    persons.update((person_id, {**_columns(after, person_id), "seq": seq}) for person_id, seq in seqs.items())
    facts = [
        fact if fact.origin else replace(drawn, kind=fact.kind, **{name: getattr(fact, name) for name in _ABOUT})
        for fact in after.facts
    ]
    return replace(after, persons=persons, facts=facts)


def _change_facts(catalog: Catalog, gone: Sequence[Fact], new: Sequence[Fact]) -> None:
    names = [column.name for column in fields(Fact)]
    if gone:
        same = " AND ".join(f"f.{name} IS NOT DISTINCT FROM g.{name}{_uuid(name)}" for name in names[:5])
        with catalog.tables(gone_facts=_table("facts", names[:5], [vars(fact) for fact in gone])):
            catalog.execute(f"DELETE FROM core.facts f USING gone_facts g WHERE {same}")
    _insert(catalog, "facts", [{name: getattr(fact, name) for name in names} for fact in new])


def _change_faces(catalog: Catalog, faces: Mapping[int, Mapping[str, Any]]) -> bool:
    """Returns whether it removed vectors."""
    rows = [{"face_id": face_id, **columns} for face_id, columns in faces.items()]
    _update(catalog, "faces", "face_id", FACE_COLUMNS, rows)
    rejected = [face_id for face_id, columns in faces.items() if columns["outcome"] == "rejected"]
    if rejected:  # again: the vectors that it got go
        for table in ("embeddings", "pending_embeddings"):
            catalog.execute(f"DELETE FROM core.{table} WHERE face_id IN (SELECT unnest(?::BIGINT[]))", [rejected])
    return bool(rejected)


def _add_vectors(catalog: Catalog, vectors: Mapping[int, FloatArray]) -> None:
    """They wait for `fold`, as those of posts do."""
    if not vectors:
        return
    packed = [vector_bytes(vector) for vector in vectors.values()]
    table = pa.table({"face_id": pa.array(vectors, pa.int64()), "embedding": pa.array(packed, pa.binary())})
    with catalog.tables(new_vectors=table):
        catalog.execute(
            "INSERT INTO core.pending_embeddings SELECT ?, face_id, embedding FROM new_vectors", [catalog.generation]
        )


def _change_persons(catalog: Catalog, directory: int, before: Rows, after: Rows, now: datetime) -> None:
    made, gone, changed = [], [], defaultdict(list)
    for person_id, columns in after.persons.items():
        if columns is None:
            gone.append(person_id)
        elif before.persons[person_id] is None:
            record = PersonRecord(**columns, image_guid=None)
            made.append(person_row(record, directory))
        else:
            tags = {"tags": json.dumps(columns["tags"]) if columns["tags"] else None} if "tags" in columns else {}
            changed[tuple(columns)].append({"person_id": person_id, **columns, **tags, "modified_at": now})
    _insert(catalog, "persons", made)
    for names, rows in changed.items():
        _update(catalog, "persons", "person_id", (*names, "modified_at"), rows)
    if gone:
        for table in ("persons", "replaced_images", "facts"):
            catalog.execute(f"DELETE FROM core.{table} WHERE person_id IN {_THESE}", [gone])
        children = f"SELECT 1 FROM core.persons WHERE parent_id IN {_THESE}"
        faces = f"SELECT 1 FROM core.faces WHERE person_id IN {_THESE}"
        if catalog.rows(f"{children} UNION ALL {faces} LIMIT 1", [gone, gone]):
            raise StoreError(message="A person that goes by a correction has other faces, or is the parent of another.")


def _change_references(
    catalog: Catalog, commit: CorrectionCommit, seqs: Mapping[str, int], free: int, objects: Sequence[Row]
) -> int:
    """Returns the next sequence number after those that it used."""
    before, after = commit.before.references, commit.after.references
    gone = {person_id for person_id, columns in commit.after.persons.items() if columns is None}
    drop_references(catalog, [person_id for person_id, face in before.items() if face is not None], gone)
    rows = []
    for person_id, face_id in after.items():
        if face_id is not None:
            guid, *_ = commit.pictures.get(person_id, (None,))
            number = seqs.get(person_id, free)
            free += person_id not in seqs
            row = {"generation": catalog.generation, "person_id": person_id, "face_id": face_id, "image_guid": guid}
            rows.append({**row, "seq": number})
    _insert(catalog, "reference_faces", rows)
    _insert(catalog, "objects", objects)
    return free


def _insert(catalog: Catalog, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Adds many rows in one statement."""
    if rows:
        with catalog.tables(new_rows=_table(table, list(rows[0]), rows)):
            catalog.execute(f"INSERT INTO core.{table} BY NAME SELECT * FROM new_rows")


def _update(catalog: Catalog, table: str, key: str, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Sets columns of many rows in one statement. Raises StoreError unless each is there."""
    if not rows:
        return
    values = ", ".join(f"{name} = c.{name}{_uuid(name)}" for name in names)
    with catalog.tables(changed_rows=_table(table, [key, *names], rows)):
        count = catalog.one(
            f"UPDATE core.{table} t SET {values} FROM changed_rows c WHERE t.{key} = c.{key}{_uuid(key)}"
        )
    if count != len(rows):
        raise StoreError(message=f"{len(rows) - count} of the {table} to be corrected are not in the store.")


_ARROW: Final = {
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "VARCHAR": pa.string(),
    "UUID": pa.string(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us"),
}


def _table(table: str, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    schema = pa.schema([pa.field(name, _ARROW[TABLES[table][name]]) for name in names])
    return pa.Table.from_pylist([{name: row[name] for name in names} for row in rows], schema)


def _uuid(name: str) -> str:
    return "::UUID" if name in ("person_id", "other_id", "parent_id") else ""
