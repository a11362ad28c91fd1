"""Commits what requests change in their directories: images first, then one transaction with everything.

The order is that of a shard's commit (shard.py): objects are written durably under new names, then the rows that name
them are committed, then what is no longer needed is unlinked. This is the server's path to an answer, so it is a few
statements on a few rows, without Arrow tables and threads.

Changes that come in while the catalog's thread is busy share its next transaction (group commit; DeWitt et al. 1984,
"Implementation Techniques for Main Memory Database Systems"). The cost of a transaction, mostly of its statements and
of the log's fsync, hardly depends on how many changes it holds, so a burst of requests costs little more than one of
them.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from pipeline.errors import StoreError
from pipeline.store import cleanup
from pipeline.store.catalog import corrections, forgotten
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.directories import directory_id, drop_if_empty, make_directories, require_directory
from pipeline.store.catalog.ids import PromisedIds
from pipeline.store.catalog.opening import utc_now
from pipeline.store.commits.removal import remove_persons, remove_references
from pipeline.store.files.durable import Folder
from pipeline.store.files.objects import Row, object_file, write_objects
from pipeline.store.files.shards import vector_bytes
from pipeline.store.records import API, DirectoryCommit, PersonRecord
from pipeline.types import OK, QUALITIES

_DETECTION = ("x1", "y1", "x2", "y2", "landmarks", "confidence", *QUALITIES)
_MOST: Final = 32  # changes in one transaction; more would delay the first
# All columns of a person but those that the insertion fixes.
_CHANGEABLE = (
    "parent_id",
    "name",
    "first_name",
    "last_name",
    "external_id",
    "tags",
    "metadata",
    "ignored",
    "occurrence",
    "last_occurrence_at",
    "modified_at",
)
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
    cleanup.declare_images(folder, (guid for guid, _, _ in images))
    return {row["image_guid"]: row for row in write_objects(folder, images, image_key)}


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
    inserted: Sequence[PersonRecord]  # with their sequence numbers and images
    updated: Sequence[PersonRecord]
    reference_seqs: Mapping[str, int]  # person id -> number of the new reference
    replaced: Sequence[str]  # the ids of persons who get another reference


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
        cleanup.unlink_after_commit(catalog)
    return [[*part.inserted, *part.updated] for part in numbered]


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
        guids = {reference.person_id: reference.image_guid for reference in commit.references}
        inserted = [replace(p, seq=n, image_guid=guids[p.person_id]) for n, p in enumerate(commit.inserted, seq)]
        updated = [replace(p, image_guid=guids.get(p.person_id, p.image_guid)) for p in commit.updated]
        seqs = {person.person_id: person.seq for person in inserted}
        replaced = [person_id for person_id in guids if person_id not in seqs]
        seqs |= {person_id: number for number, person_id in enumerate(replaced, seq + len(inserted))}
        numbered.append(_Numbered(change, directories[key], media, face, inserted, updated, seqs, replaced))
        media, face, seq = media + bool(commit.references), face + len(commit.references), seq + len(seqs)
    if (media, face, seq) != (first.next_media_id, first.next_face_id, first.next_person_seq):
        catalog.execute(
            "UPDATE core.store SET next_media_id = ?, next_face_id = ?, next_person_seq = ?", [media, face, seq]
        )
    return numbered


def _write(catalog: Catalog, numbered: Sequence[_Numbered], now: datetime) -> None:
    """One statement for each table: the cost of a statement hardly depends on its rows."""
    for part in numbered:
        remove_references(catalog, part.directory, part.replaced)
    images = [_image_rows(part, catalog.generation, now) for part in numbered if part.change.commit.image is not None]
    for table in _IMAGE_TABLES:
        catalog.insert(table, [row for rows in images for row in rows[table]])
    catalog.insert("persons", [person_row(person, part.directory) for part in numbered for person in part.inserted])
    for part in numbered:
        _update_persons(catalog, part.directory, part.updated)
        commit = part.change.commit
        if commit.merge is not None:
            ((number,),) = catalog.rows(
                "UPDATE core.store SET next_correction_id = next_correction_id + 1 RETURNING next_correction_id - 1"
            )
            corrections.keep(catalog, number, commit.account_id, part.directory, "merge", API, now, *commit.merge)
        if commit.deleted:
            remembered = forgotten.PHOTOS | ({forgotten.FACE} if commit.forget else set())
            _delete_persons(catalog, commit.account_id, part.directory, commit.deleted, remembered)


def _image_rows(numbered: _Numbered, generation: int, now: datetime) -> dict[str, list[dict[str, Any]]]:
    """The rows that a posted image brings, by table of _IMAGE_TABLES: a media row without run, shard, row and path; a
    face with its detection, embedding and reference for each of the commit's references.

    The embeddings wait in core.pending_embeddings for `fold`: a reader would have to open a Parquet file for change.
    """
    commit = numbered.change.commit
    faces = list(enumerate(commit.references, numbered.face_id))
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
                "seq": numbered.reference_seqs[face.person_id],
            }
            for number, face in faces
        ],
        "objects": list(numbered.change.objects),
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


def person_row(person: PersonRecord, directory: int) -> dict[str, object]:
    """Of core.persons."""
    fixed = {"person_id": person.person_id, "seq": person.seq, "directory_id": directory, "added_at": person.added_at}
    return fixed | _changeable(person)


def _changeable(person: PersonRecord) -> dict[str, object]:
    values = {name: getattr(person, name) for name in _CHANGEABLE}
    return values | {"tags": json.dumps(person.tags) if person.tags else None}


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


def _delete_persons(
    catalog: Catalog, account_id: int, directory: int, person_ids: Sequence[str], remembered: Set[str]
) -> None:
    remove_persons(catalog, account_id, directory, person_ids, remembered)
    drop_if_empty(catalog, directory)


@dataclass(frozen=True, eq=False)
class _Waiting:
    change: Change
    answer: Future[list[PersonRecord]] = field(default_factory=Future)


class GroupCommit:
    """Changes that wait for the catalog's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()

    def commit(self, change: Change, begin: Callable[[], object]) -> list[PersonRecord]:
        """What `commit_changes` returns for this change. `begin` makes the catalog's thread call `commit_next` once. If
        that raises, nothing is stored."""
        waiting = _Waiting(change)
        with self._lock:
            self._waiting.append(waiting)
        try:
            begin()
        except BaseException:
            with self._lock:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
                    raise
            # An earlier call of `commit_next` has taken it, and sets its answer.
        return waiting.answer.result()

    def commit_next(self, catalog: Catalog, ids: PromisedIds) -> None:
        """On the catalog's thread: commits the changes that wait, if an earlier call has not done it."""
        group = self._take()
        if group:
            _commit(catalog, group, ids)

    def _take(self) -> list[_Waiting]:
        """The oldest change and those after it, up to the first that touches a person whom one of them touches."""
        group: list[_Waiting] = []
        touched: set[str] = set()
        with self._lock:
            while self._waiting and len(group) < _MOST and not touched & self._waiting[0].change.persons:
                group.append(self._waiting.popleft())
                touched |= group[-1].change.persons
        return group


def _commit(catalog: Catalog, group: Sequence[_Waiting], ids: PromisedIds) -> None:
    """A change that is refused must not fail the others: then each half gets a transaction of its own."""
    try:
        answers = commit_changes(catalog, [waiting.change for waiting in group], ids)
    except RolledBack as exc:
        if len(group) == 1:
            group[0].answer.set_exception(exc.__cause__)
            return
        middle = len(group) // 2
        _commit(catalog, group[:middle], ids)
        _commit(catalog, group[middle:], ids)
    except BaseException as exc:  # noqa: BLE001  raised in the threads that wait
        for waiting in group:
            waiting.answer.set_exception(exc)
    else:
        for waiting, answer in zip(group, answers, strict=True):
            waiting.answer.set_result(answer)


def delete_directory(catalog: Catalog, account_id: int, name: str) -> int:
    """Deletes all persons of a directory in one transaction; returns how many. Raises DirectoryUnknown."""
    with catalog.transaction("directory_commit"):
        directory = require_directory(catalog, account_id, name)
        persons = catalog.rows("SELECT person_id::VARCHAR FROM core.persons WHERE directory_id = ?", [directory])
        # Nothing is remembered: its photos may go into another directory.
        _delete_persons(catalog, account_id, directory, [person for (person,) in persons], frozenset())
    cleanup.unlink_after_commit(catalog)
    return len(persons)
