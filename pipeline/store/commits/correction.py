"""Commits a correction: pictures first, then one transaction with exactly the rows that it changes, and these rows as
they were, so that it can be undone by the same way. What it takes are sets of rows, so a correction of many costs few
statements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from pipeline.errors import StoreError
from pipeline.store.catalog import deletes
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.corrections import to_json
from pipeline.store.catalog.directories import require_directory
from pipeline.store.catalog.opening import utc_now
from pipeline.store.commits.directory import person_row
from pipeline.store.commits.removal import drop_references
from pipeline.store.files.objects import Row
from pipeline.store.records import CorrectionCommit, Fact, PersonRecord, Rows
from pipeline.store.schema import TABLES

_FACE_COLUMNS: Final = ("person_id", "outcome", "similarity_score", "rejection_reasons")
_ABOUT: Final = ("face_id", "person_id", "other_id")  # of a fact
_THESE = "(SELECT unnest(?::UUID[]))"


@dataclass(frozen=True)
class CommittedCorrection:
    """What a commit drew."""

    correction_id: int
    at: datetime
    seqs: Mapping[str, int]  # of the persons that it made


def commit_correction(catalog: Catalog, commit: CorrectionCommit, objects: Sequence[Row]) -> CommittedCorrection:
    """The transaction; `objects` are the rows of its pictures. Raises StoreError, such as for rows that are not there;
    then nothing has happened."""
    now, before, after = utc_now(), commit.before, commit.after
    with catalog.transaction("correction"):
        directory = require_directory(catalog, commit.account_id, commit.directory)
        ((number, seq),) = catalog.rows("SELECT next_correction_id, next_person_seq FROM core.store")
        number = number if commit.undoes is None else commit.undoes
        made = [person_id for person_id, columns in before.persons.items() if columns is None]
        seqs = {p: s for s, p in enumerate((p for p in made if not _columns(after, p)["seq"]), seq)}
        after = _complete(after, seqs, Fact("", correction_id=number, origin=commit.origin, stated_at=now))
        _change_facts(catalog, before.facts, after.facts)
        _change_faces(catalog, after.faces)
        _change_persons(catalog, directory, before, after, now)
        free = _change_references(catalog, commit, seqs, seq + len(seqs), objects)
        _note(catalog, replace(commit, after=after), number, directory, now)
        catalog.execute(
            "UPDATE core.store SET next_person_seq = ?, next_correction_id = greatest(next_correction_id, ?)",
            [free, number + 1],
        )
    if before.references:
        deletes.replay_committed(catalog)
    return CommittedCorrection(number, now, seqs)


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
    catalog.insert("facts", [{name: getattr(fact, name) for name in names} for fact in new])


def _change_faces(catalog: Catalog, faces: Mapping[int, Mapping[str, Any]]) -> None:
    rows = [{"face_id": face_id, **columns} for face_id, columns in faces.items()]
    _update(catalog, "faces", "face_id", _FACE_COLUMNS, rows)


def _change_persons(catalog: Catalog, directory: int, before: Rows, after: Rows, now: datetime) -> None:
    made, gone, changed = [], [], defaultdict(list)
    for person_id, columns in after.persons.items():
        if columns is None:
            gone.append(person_id)
        elif before.persons[person_id] is None:
            record = PersonRecord(**columns, image_guid=None)
            made.append(person_row(record, directory))
        else:
            changed[tuple(columns)].append({"person_id": person_id, **columns, "modified_at": now})
    catalog.insert("persons", made)
    for names, rows in changed.items():
        _update(catalog, "persons", "person_id", (*names, "modified_at"), rows)
    if gone:
        for table in ("persons", "replaced_images"):
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
    gone = [person_id for person_id, columns in commit.after.persons.items() if columns is None]
    drop_references(catalog, [person_id for person_id, face in before.items() if face is not None], gone)
    rows = []
    for person_id, face_id in after.items():
        if face_id is not None:
            guid, _ = commit.pictures[person_id]
            number = seqs.get(person_id, free)
            free += person_id not in seqs
            row = {"generation": catalog.generation, "person_id": person_id, "face_id": face_id, "image_guid": guid}
            rows.append({**row, "seq": number})
    catalog.insert("reference_faces", rows)
    catalog.insert("objects", objects)
    return free


def _note(catalog: Catalog, commit: CorrectionCommit, number: int, directory: int, now: datetime) -> None:
    if commit.undoes is not None:
        catalog.execute("UPDATE core.corrections SET undone_at = ? WHERE correction_id = ?", [now, number])
        return
    row = {
        "correction_id": number,
        "account_id": commit.account_id,
        "directory_id": directory,
        "kind": commit.kind,
        "origin": commit.origin,
        "made_at": now,
        "before": to_json(commit.before),
        "after": to_json(commit.after),
    }
    catalog.insert("corrections", [row])


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
