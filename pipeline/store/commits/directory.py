"""Commits what requests change in their directories: images first, then one transaction with everything.

The order is that of a shard's commit (shard.py): objects are written durably under new names, then the rows that name
them are committed, then what is no longer needed is unlinked. This is the server's path to an answer, so it is a few
statements on a few rows, without Arrow tables and threads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from pipeline.errors import StoreError
from pipeline.store.catalog import deletes, intents
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.directories import directory_id, drop_if_empty, make_directories, require_directory
from pipeline.store.catalog.ids import PromisedIds
from pipeline.store.catalog.opening import utc_now
from pipeline.store.commits.removal import remove_persons, remove_references
from pipeline.store.files.durable import Folder
from pipeline.store.files.objects import object_file, write_objects
from pipeline.store.files.shards import vector_bytes
from pipeline.store.records import QUALITIES, DirectoryCommit, PersonRecord
from pipeline.types import OK

Row = Mapping[str, object]
_DETECTION = ("x1", "y1", "x2", "y2", "landmarks", "confidence", *QUALITIES)
_IMAGE_TABLES = ("media", "faces", "detections", "pending_embeddings", "reference_faces", "objects")


def check_commit(commit: DirectoryCommit, size: int) -> None:
    """Raises StoreError where the parts of a commit don't fit each other, before any file is written."""
    inserted = [person.person_id for person in commit.inserted]
    updated = [person.person_id for person in commit.updated]
    referenced = [reference.person_id for reference in commit.references]
    problem = None
    if any(len(set(ids)) < len(ids) for ids in (inserted + updated, list(commit.deleted), referenced)):
        problem = "a person comes twice"
    elif set(commit.deleted) & {*inserted, *updated, *referenced}:
        problem = "a person is changed and deleted"
    elif not set(inserted) <= set(referenced):
        problem = "a new person has no reference"
    elif bool(commit.references) != (commit.image is not None):
        problem = "references and their image come together"
    elif any(reference.embedding.shape != (size,) for reference in commit.references):
        problem = f"an embedding does not have {size} numbers"
    elif not all(_is_uuid(person_id) for person_id in (*inserted, *updated, *commit.deleted, *referenced)):
        problem = "a person id is not a UUID"
    for reference in commit.references:
        object_file(reference.image_guid)
    if problem:
        raise StoreError(message=f'The commit to the directory "{commit.directory}" is wrong: {problem}.')


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def images_of(commit: DirectoryCommit) -> list[tuple[str, bytes, str]]:
    """(guid, bytes, media type) of each of its references."""
    return [(reference.image_guid, reference.image, reference.media_type) for reference in commit.references]


def write_images(folder: Folder, images: Sequence[tuple[str, bytes, str]], image_key: bytes | None) -> dict[str, Row]:
    """Writes (guid, bytes, media type) each to its file, durably; their rows for core.objects by guid.

    Raises StoreFull, StoreUnwritable.
    """
    if not images:
        return {}
    intents.declare(folder, (guid for guid, _, _ in images))
    return {row["image_guid"]: row for row in write_objects(folder, images, image_key).to_pylist()}


def discard_images(catalog: Catalog, guids: Sequence[str]) -> None:
    """Unlinks those of the images that no commit took."""
    sql = "SELECT image_guid FROM core.objects WHERE image_guid IN (SELECT unnest(?::VARCHAR[]))"
    kept = catalog.rows(sql, [list(guids)])
    for guid in set(guids) - {guid for (guid,) in kept}:
        catalog.folder.unlink(object_file(guid))


@dataclass(frozen=True)
class Change:
    """A commit whose images are on disk."""

    commit: DirectoryCommit
    objects: Sequence[Row]  # of its images, for core.objects

    @property
    def persons(self) -> set[str]:
        """The ids of all persons that it changes."""
        commit = self.commit
        changed = {person.person_id for person in (*commit.inserted, *commit.updated)}
        return changed | {reference.person_id for reference in commit.references} | set(commit.deleted)


class RolledBack(Exception):
    """The transaction failed before its COMMIT: nothing of it is stored."""


@dataclass(frozen=True)
class _Numbered:
    """A change with its directory and the ids it drew."""

    change: Change
    directory: int
    media_id: int
    face_id: int  # the first of its faces
    new: Mapping[str, int]  # person id -> sequence number
    replaced: Mapping[str, int]  # person id -> number of the new reference

    @property
    def inserted(self) -> list[PersonRecord]:
        guids = self._guids()
        return [
            replace(p, seq=self.new[p.person_id], image_guid=guids[p.person_id]) for p in self.change.commit.inserted
        ]

    @property
    def updated(self) -> list[PersonRecord]:
        guids = self._guids()
        return [replace(p, image_guid=guids.get(p.person_id, p.image_guid)) for p in self.change.commit.updated]

    def _guids(self) -> dict[str, str]:
        return {reference.person_id: reference.image_guid for reference in self.change.commit.references}


def commit_changes(catalog: Catalog, changes: Sequence[Change], ids: PromisedIds) -> list[list[PersonRecord]]:
    """Commits all changes in one transaction; returns the inserted and updated persons of each as they are afterwards.
    No two changes may touch the same person.

    Raises RolledBack from an error before the COMMIT, such as TooManyDirectories, or StoreError for persons who are not
    in the directory. After any other error the transaction may be in or not.
    """
    now = utc_now()
    with catalog.transaction("directory_commit"):
        try:
            numbered = _numbered(catalog, changes, ids, now)
            _write(catalog, numbered, now)
        except Exception as exc:
            raise RolledBack from exc
    if any(part.replaced or part.change.commit.deleted for part in numbered):
        deletes.replay_committed(catalog)
    return [part.inserted + part.updated for part in numbered]


def _numbered(catalog: Catalog, changes: Sequence[Change], ids: PromisedIds, now: datetime) -> list[_Numbered]:
    """Draws the numbers, in the order of the changes."""
    first = ids.next(catalog)
    media, face, seq = first.next_media_id, first.next_face_id, first.next_person_seq
    directories: dict[tuple[int, str], int] = {}
    numbered = []
    for change in changes:
        commit = change.commit
        key = commit.account_id, commit.directory
        if key not in directories:
            directories[key] = _directory(catalog, commit, now)
        new = {person.person_id: seq + place for place, person in enumerate(commit.inserted)}
        again = [reference.person_id for reference in commit.references if reference.person_id not in new]
        replaced = {person_id: seq + len(new) + place for place, person_id in enumerate(again)}
        numbered.append(_Numbered(change, directories[key], media, face, new, replaced))
        media, face, seq = (
            media + bool(commit.references),
            face + len(commit.references),
            seq + len(new) + len(replaced),
        )
    if (media, face, seq) != (first.next_media_id, first.next_face_id, first.next_person_seq):
        catalog.execute(
            "UPDATE core.store SET next_media_id = ?, next_face_id = ?, next_person_seq = ?", [media, face, seq]
        )
    return numbered


def _write(catalog: Catalog, numbered: Sequence[_Numbered], now: datetime) -> None:
    """One statement for each table: the cost of a statement hardly depends on its rows."""
    for part in numbered:
        remove_references(catalog, part.directory, list(part.replaced))
    images = [_image_rows(part, catalog.generation, now) for part in numbered if part.change.commit.image is not None]
    for table in _IMAGE_TABLES:
        catalog.insert(table, [row for rows in images for row in rows[table]])
    catalog.insert("persons", [_person_row(person, part.directory) for part in numbered for person in part.inserted])
    for part in numbered:
        _update_persons(catalog, part.directory, part.updated)
        _delete_persons(catalog, part.directory, part.change.commit.deleted)


def _image_rows(numbered: _Numbered, generation: int, now: datetime) -> dict[str, list[dict[str, Any]]]:
    """The rows that a posted image brings, by table of _IMAGE_TABLES: a media row without run, shard, row and path; a
    face with its detection, embedding and reference for each of the commit's references.

    The embeddings wait in core.pending_embeddings for `fold`: a reader would have to open a Parquet file for change.
    """
    commit = numbered.change.commit
    faces = list(enumerate(commit.references, numbered.face_id))
    seqs = {**numbered.new, **numbered.replaced}
    return {
        "media": [_media_row(commit, numbered.media_id, now)],
        "faces": [
            {
                "face_id": number,
                "media_id": numbered.media_id,
                "ordinal": face.ordinal,
                "person_id": face.person_id,
                "outcome": face.outcome,
                "similarity_score": face.similarity_score,
            }
            for number, face in faces
        ],
        "detections": [
            {"generation": generation, "face_id": number, **{name: face.fields[name] for name in _DETECTION}}
            for number, face in faces
        ],
        "pending_embeddings": [
            {"generation": generation, "face_id": number, "embedding": vector_bytes(face.embedding)}
            for number, face in faces
        ],
        "reference_faces": [
            {
                "generation": generation,
                "person_id": face.person_id,
                "face_id": number,
                "image_guid": face.image_guid,
                "seq": seqs[face.person_id],
            }
            for number, face in faces
        ],
        "objects": [dict(row) for row in numbered.change.objects],
    }


def _media_row(commit: DirectoryCommit, media_id: int, now: datetime) -> dict[str, Any]:
    assert commit.image is not None
    image = asdict(commit.image)
    if all(face.ordinal > 0 for face in commit.references):
        # They are of the largest face. Without it among the references nobody would remove them with its person.
        image |= {"name": None, "external_id": None}
    return {
        "media_id": media_id,
        "account_id": commit.account_id,
        "directory": commit.directory,
        "status": OK,
        "added_at": now,
        **image,
    }


def _directory(catalog: Catalog, commit: DirectoryCommit, now: datetime) -> int:
    number = directory_id(catalog, commit.account_id, commit.directory)
    if number is None and commit.inserted:
        make_directories(catalog, commit.account_id, [commit.directory], now)
        number = directory_id(catalog, commit.account_id, commit.directory)
    if number is None:
        raise StoreError(message=f'The account {commit.account_id} has no directory "{commit.directory}".')
    return number


def _person_row(person: PersonRecord, directory: int) -> dict[str, object]:
    return {
        "person_id": person.person_id,
        "seq": person.seq,
        "directory_id": directory,
        "added_at": person.added_at,
        **_changeable(person),
    }


def _changeable(person: PersonRecord) -> dict[str, object]:
    return {
        "parent_id": person.parent_id,
        "name": person.name,
        "external_id": person.external_id,
        "tags": json.dumps(person.tags) if person.tags else None,
        "ignored": person.ignored,
        "occurrence": person.occurrence,
        "last_occurrence_at": person.last_occurrence_at,
        "modified_at": person.modified_at,
    }


def _update_persons(catalog: Catalog, directory: int, persons: Sequence[PersonRecord]) -> None:
    """Writes all columns but those of the insertion. `seq` finds the row's block, the id proves that it is the row."""
    for person in persons:
        values = _changeable(person)
        changed = catalog.one(
            f"UPDATE core.persons SET {', '.join(f'{name} = ?' for name in values)}"
            " WHERE seq = ? AND person_id = ? AND directory_id = ?",
            [*values.values(), person.seq, person.person_id, directory],
        )
        if changed != 1:
            raise StoreError(message=f"The person {person.person_id} is not in the directory.")


def _delete_persons(catalog: Catalog, directory: int, person_ids: Sequence[str]) -> None:
    if person_ids:
        remove_persons(catalog, directory, person_ids)
        drop_if_empty(catalog, directory)


def delete_directory(catalog: Catalog, account_id: int, name: str) -> int:
    """Deletes all persons of a directory in one transaction; returns how many. Raises DirectoryUnknown."""
    with catalog.transaction("directory_commit"):
        directory = require_directory(catalog, account_id, name)
        persons = catalog.rows("SELECT person_id::VARCHAR FROM core.persons WHERE directory_id = ?", [directory])
        _delete_persons(catalog, directory, [person for (person,) in persons])
    deletes.replay_committed(catalog)
    return len(persons)
