"""Commits changes of people: the only code that writes persons, references, constraints and the log of changes.

Pictures are durable before the transaction that names them (`write_pictures`). Unneeded files are listed in it and
deleted later.

Changes that wait while the catalog's thread is busy share its next transaction (group commit; DeWitt et al. 1984,
"Implementation Techniques for Main Memory Database Systems"): its cost hardly depends on their number. A statement
costs as much as many rows, so rows of one table are collected.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Final

from pipeline.errors import StoreError
from pipeline.store import cleanup
from pipeline.store.catalog import files
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.corrections import to_json
from pipeline.store.catalog.directories import directory_id as find_directory
from pipeline.store.catalog.directories import drop_if_empty, make_directory, remember, require_directory
from pipeline.store.catalog.runs import FINISHED, delete_runs
from pipeline.store.commits.reindex import keep_references, switching
from pipeline.store.commits.removal import (
    count_face,
    drop_references,
    erase_references,
    forget_corrections,
    remove_added_faces,
    remove_persons,
    remove_photos,
    remove_references,
    remove_unshown_posts,
)
from pipeline.store.files.durable import Folder
from pipeline.store.files.objects import Row, write_objects
from pipeline.store.files.shards import vector_bytes
from pipeline.store.records import (
    COUNTERS,
    DELETE_DIRECTORY,
    NO_ROWS,
    Change,
    Committed,
    DrawnFace,
    Fact,
    Picture,
    PostedPhoto,
    Rows,
)
from pipeline.store.schema import arrow_table
from pipeline.types import DRAWN, FORGOTTEN, OK, QUALITIES, Measured, utc_now

_WHOSE: Final = ("person_id", "outcome")
_WHY: Final = ("similarity_score", "rejection_reasons")  # per generation
FACE_COLUMNS: Final = (*_WHOSE, *_WHY)  # set by corrections
_FACE: Final = ("face_id", "ordinal", *_WHOSE)  # of a posted face
_PLACE: Final = ("x1", "y1", "x2", "y2", "landmarks", "confidence")
_DETECTION: Final = (*_PLACE, *QUALITIES)
_THESE: Final = "(SELECT unnest(?::UUID[]))"
_MOST: Final = 32  # per transaction; more would delay the first
_FEW_UPDATED: Final = 16  # up to this many rows, single updates are faster than an Arrow table
_FEW: Final = 32  # removed pictures per change; more are left to `unlink_needless`


# Pictures


def write_pictures(folder: Folder, pictures: Sequence[Picture], image_key: bytes | None) -> dict[str, Row]:
    """Durably writes pictures; returns their rows of core.objects by guid.

    Raises StoreFull, StoreUnwritable.
    """
    if not pictures:
        return {}
    cleanup.declare_images(folder, (guid for guid, _, _ in pictures))
    return write_objects(folder, pictures, image_key)


# Group commit


@dataclass(frozen=True, eq=False)
class Waiting:
    """A change to be committed, its pictures on disk."""

    change: Change
    pictures: Sequence[Row]  # for core.objects
    answer: Future[Committed] = field(default_factory=Future)


class GroupCommit:
    """Changes that wait for the catalog's thread."""

    def __init__(self, begin: Callable[[Callable[[Catalog], None]], object]) -> None:
        """`begin` queues work for the catalog's thread; if it raises, the work never runs."""
        self._begin = begin
        self._lock = threading.Lock()
        self._waiting: deque[Waiting] = deque()

    def commit(self, change: Change, pictures: Sequence[Row]) -> Committed:
        """Commits the change. Raises as `write_changes`."""
        waiting = Waiting(change, pictures)
        with self._lock:
            self._waiting.append(waiting)
        try:
            self._begin(self._commit_next)
        except BaseException:
            with self._lock:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
                    raise
            # An earlier `_commit_next` took it, and will set its answer.
        return waiting.answer.result()

    def _commit_next(self, catalog: Catalog) -> None:
        """On the catalog's thread: commits waiting changes, unless an earlier call did."""
        group = self._take()
        if group:
            _commit(catalog, group)

    def _take(self) -> list[Waiting]:
        """The oldest changes, up to the first that shares a person with an earlier one."""
        group: list[Waiting] = []
        touched: set[str] = set()
        with self._lock:
            while self._waiting and len(group) < _MOST and not touched & self._waiting[0].change.persons:
                group.append(self._waiting.popleft())
                touched |= group[-1].change.persons
        return group


class RolledBack(Exception):
    """The transaction failed before its COMMIT: nothing of it is stored."""


def _commit(catalog: Catalog, group: Sequence[Waiting]) -> None:
    """If the transaction is rolled back, commits each half separately, so that a refused change does not fail the
    others."""
    try:
        answers = _in_one_transaction(catalog, group)
    except RolledBack as exc:
        if len(group) == 1:
            group[0].answer.set_exception(exc.__cause__)
            return
        middle = len(group) // 2
        _commit(catalog, group[:middle])
        _commit(catalog, group[middle:])
    except BaseException as exc:  # noqa: BLE001  raised in the threads that wait
        for waiting in group:
            waiting.answer.set_exception(exc)
    else:
        for waiting, answer in zip(group, answers, strict=True):
            waiting.answer.set_result(answer)


def _in_one_transaction(catalog: Catalog, group: Sequence[Waiting]) -> list[Committed]:
    """Raises RolledBack for errors before the COMMIT; after any other error the transaction may be committed."""
    with catalog.transaction("change"):
        try:
            pictures = [row for waiting in group for row in waiting.pictures]
            committed = _write(catalog, [waiting.change for waiting in group], pictures)
        except Exception as exc:
            raise RolledBack from exc
    removed = [len(w.change.gone) + len(w.change.before.references) + len(w.change.replaced) for w in group]
    if any(removed) and max(removed) < _FEW:
        cleanup.unlink_after_commit(catalog)
    return committed


def commit_switching(catalog: Catalog, change: Change, pictures: Sequence[Row]) -> Committed:
    """Commits a change computed with the newer generation, and makes that the current one. Raises as `write_changes`,
    and ReindexMissing."""
    with catalog.at(None), switching(catalog):
        return _write(catalog, [change], pictures)[0]


def _write(catalog: Catalog, changes: Sequence[Change], pictures: Sequence[Row]) -> list[Committed]:
    for change in changes:
        _require_fitting(change, catalog.identity.embedding_size)
    committed = write_changes(catalog, changes, utc_now())
    catalog.insert("objects", pictures)
    return committed


def _require_fitting(change: Change, size: int) -> None:
    """Raises StoreError if parts of a change contradict each other."""
    new = {person_id for person_id, old in change.before.persons.items() if old is None}
    kept = {*change.after.persons, *change.after.references, *change.seen, *change.replaced}
    faces = {face.face_id for face in change.photo.faces} if change.photo else change.vectors.keys()
    problems = {
        "a person is changed and deleted": kept & {*change.deleted},
        "its vectors are not those of the faces of its photo": faces != change.vectors.keys(),
        "a new person has no reference": change.photo and new - change.after.references.keys(),
        f"an embedding does not have {size} numbers": {v.embedding.shape for v in change.vectors.values()} - {(size,)},
    }
    for problem in filter(problems.get, problems):
        raise StoreError(message=f'The change of the directory "{change.directory}" is wrong: {problem}.')


# The rows of changes


@dataclass(frozen=True)
class _Numbered:
    """A change with the numbers assigned in its transaction."""

    change: Change
    directory: int
    after: Rows  # with numbers of new persons and origins of new constraints
    seqs: Mapping[str, int]  # of new persons
    reference_seqs: Mapping[str, int]  # of new references, by person
    correction_id: int | None
    position: int  # in the log, if logged, among the transaction's changes


def write_changes(catalog: Catalog, changes: Sequence[Change], now: datetime) -> list[Committed]:
    """Inside a transaction: writes the rows of changes with disjoint persons. Their pictures' rows in core.objects are
    left to the caller.

    Raises TooManyDirectories, DirectoryUnknown; StoreError for missing rows.
    """
    parts = _numbered(catalog, changes, now)
    removed = []
    for part in parts:
        removed.append(_remove(catalog, part))
        _change_constraints(catalog, part)
        _change_faces(catalog, part)
    _insert_photos(catalog, parts, now)
    _change_persons(catalog, parts, now)
    for part, of_photos in zip(parts, removed, strict=True):
        _note_erasure(catalog, part.change, now, of_photos, _delete_persons(catalog, part))
    in_both = _insert_references(catalog, parts)
    for part in parts:
        change, faces = part.change, part.after.faces
        owners = {person_id for person_id in part.after.owners.values() if person_id is not None}
        touched = {*part.after.references, *part.change.before.references, *owners} - in_both
        keep_references(catalog, part.directory, touched, [*faces], change.leaving)
        if None in faces.values():
            erase_references(catalog, _deleted_faces(part))
        if catalog.other is not None and change.is_logged and change.before.references:
            remove_unshown_posts(catalog, [*change.before.references])  # references in the other generation only
        if part.correction_id is not None:
            _log(catalog, part, now)
        if part.after.remembered is not None:
            remember(catalog, part.directory, part.after.remembered)
        if part.change.labels:
            files.set_labels(catalog, part.change.labels)
        if part.change.gone:
            drop_if_empty(catalog, part.directory)
    return [Committed(catalog.commit_number, now, part.seqs, part.correction_id) for part in parts]


def _numbered(catalog: Catalog, changes: Sequence[Change], now: datetime) -> list[_Numbered]:
    """Assigns numbers in the order of the changes: sequence numbers are the insertion order."""
    ((first_seq, first_correction),) = catalog.rows("SELECT next_person_seq, next_correction_id FROM core.store")
    free_seqs, free_corrections = itertools.count(first_seq), itertools.count(first_correction)
    directories: dict[tuple[int, str], int] = {}
    parts = []
    for change in changes:
        place, persons, chosen = (change.account_id, change.directory), change.after.persons, change.after.references
        if place not in directories:
            directories[place] = _directory(catalog, change, now)
        # An undo restores persons with their numbers.
        before = change.before.persons
        new = [p for p, columns in persons.items() if before[p] is None and not (columns or {}).get("seq")]
        seqs = {person_id: next(free_seqs) for person_id in new}
        references = {p: seqs.get(p) or next(free_seqs) for p, face_id in chosen.items() if face_id is not None}
        number, position = (next(free_corrections), next(free_seqs)) if change.is_logged else (None, 0)
        after = _complete(change, seqs, number, now)
        parts.append(_Numbered(change, directories[place], after, seqs, references, number, position))
    photos = [change.photo for change in changes if change.photo is not None]
    drawn = [change.drawn.face_id + 1 for change in changes if change.drawn is not None]
    seq, correction_id = next(free_seqs), next(free_corrections)
    numbers = {
        "next_person_seq": seq if seq != first_seq else 0,
        "next_correction_id": correction_id if correction_id != first_correction else 0,
        "next_media_id": max((photo.media_id + 1 for photo in photos), default=0),
        "next_face_id": max((*drawn, *(face.face_id + 1 for photo in photos for face in photo.faces)), default=0),
    }
    catalog.raise_counters(numbers)
    return parts


def _directory(catalog: Catalog, change: Change, now: datetime) -> int:
    """The directory's id; 0 without persons, if only photos are deleted. The first person creates the directory."""
    place = change.account_id, change.directory
    number = find_directory(catalog, *place)
    if number is None and None in change.before.persons.values():
        return make_directory(catalog, *place, now)
    if number is None and not change.leaving:
        return require_directory(catalog, *place)
    return number or 0


def _complete(change: Change, seqs: Mapping[str, int], number: int | None, now: datetime) -> Rows:
    """Adds numbers of new persons and origins of new constraints. Constraints restored by an undo have theirs."""
    after = change.after
    if not seqs and not after.facts:
        return after
    persons = {p: {**(columns or {}), "seq": seqs[p]} if p in seqs else columns for p, columns in after.persons.items()}
    facts = [
        fact if fact.origin else replace(fact, correction_id=number, origin=change.origin, stated_at=now)
        for fact in after.facts
    ]
    return replace(after, persons=persons, facts=facts)


def _remove(catalog: Catalog, part: _Numbered) -> tuple[int, int]:
    """Removes deleted photos and replaced references. Returns the number of the photos' faces, and of photos."""
    change, removed = part.change, (0, 0)
    if change.leaving:
        only_in = change.directory if change.kind == DELETE_DIRECTORY else None
        whose = change.account_id, change.leaving, change.leaving_status
        removed = remove_photos(catalog, *whose, change.remembered, only_in=only_in)
    if change.kind == DELETE_DIRECTORY:
        finished = "SELECT run_id FROM core.runs WHERE account_id = ? AND directory = ? AND state = ?"
        delete_runs(catalog, catalog.column(finished, [change.account_id, change.directory, FINISHED]))
    if change.replaced:
        remove_references(catalog, part.directory, change.replaced)
    old = [p for p, face_id in change.before.references.items() if face_id is not None and p not in change.replaced]
    if old:
        drop_references(catalog, part.directory, old, set(change.gone))
    return removed


def _change_constraints(catalog: Catalog, part: _Numbered) -> None:
    names = [column.name for column in fields(Fact)]
    gone = part.change.before.facts
    if gone:
        same = " AND ".join(f"f.{name} IS NOT DISTINCT FROM g.{name}{_uuid(name)}" for name in names[:5])
        with catalog.tables(gone_facts=arrow_table("facts", names[:5], [vars(fact) for fact in gone])):
            catalog.execute(f"DELETE FROM core.facts f USING gone_facts g WHERE {same}")
    catalog.insert("facts", [{name: getattr(fact, name) for name in names} for fact in part.after.facts])


def _change_faces(catalog: Catalog, part: _Numbered) -> None:
    """Updates faces, adds a drawn one, or deletes it. Vectors of formerly rejected faces are pending until `compact`,
    like those of posts; those of newly rejected faces are deleted."""
    deleted, drawn = _deleted_faces(part), part.change.drawn
    if deleted:
        remove_added_faces(catalog, deleted)
    if drawn is not None:
        _insert_drawn(catalog, drawn, part.after.owners[drawn.face_id])
    made = {*deleted} if drawn is None else {*deleted, drawn.face_id}
    faces = {f: row for f, row in part.after.faces.items() if row is not None and f not in made}
    if faces:
        rows = [{"generation": catalog.generation, "face_id": f, **row} for f, row in faces.items()]
        _update(catalog, "faces", ["face_id"], _WHOSE, rows)
        _update(catalog, "detections", ["generation", "face_id"], _WHY, rows)
        if catalog.other is not None:  # its scores no longer apply
            sql = (
                "UPDATE core.detections SET similarity_score = NULL, rejection_reasons = NULL"
                " WHERE generation = ? AND face_id IN (SELECT unnest(?::BIGINT[]))"
            )
            catalog.execute(sql, [catalog.other.number, list(faces)])
    rejected = [face_id for face_id, columns in faces.items() if columns["outcome"] == "rejected"]
    if rejected:
        for table in ("embeddings", "pending_embeddings"):
            catalog.execute(f"DELETE FROM core.{table} WHERE face_id IN (SELECT unnest(?::BIGINT[]))", [rejected])
    catalog.insert(
        "pending_embeddings",
        [
            {"generation": catalog.generation, "face_id": face_id, "embedding": vector_bytes(vector)}
            for face_id, vector in part.change.admitted.items()
        ],
    )
    if part.change.admitted and catalog.other is not None:  # its build will embed them
        sql = "DELETE FROM core.detections WHERE generation = ? AND face_id IN (SELECT unnest(?::BIGINT[]))"
        catalog.execute(sql, [catalog.other.number, [*part.change.admitted]])


def _deleted_faces(part: _Numbered) -> list[int]:
    return [face_id for face_id, row in part.after.faces.items() if row is None]


def _insert_drawn(catalog: Catalog, face: DrawnFace, person_id: str | None) -> None:
    """A tag is the same in both generations. If the other one's model has not measured the face, its build will."""
    known = {"face_id": face.face_id, "media_id": face.media_id, "ordinal": face.ordinal}
    catalog.insert("faces", [{**known, "person_id": person_id, "outcome": DRAWN}])
    count_face(catalog, face.media_id, 1)
    own = {"generation": catalog.generation, "face_id": face.face_id}
    place = {name: face.fields[name] for name in _DETECTION}
    detections, embeddings = [{**own, **place}], []
    if face.embedding is not None:
        embeddings.append({**own, "embedding": vector_bytes(face.embedding)})
    elif catalog.other is not None:
        detections.append({**own, **place, "generation": catalog.other.number})
    for other, measured in _measured(catalog, face.measured, face.face_id):
        detections.append({**other, **place, **dict(zip(QUALITIES, measured.qualities, strict=True))})
        if measured.embedding is not None:
            embeddings.append({**other, "embedding": vector_bytes(measured.embedding)})
    catalog.insert("detections", detections)
    catalog.insert("pending_embeddings", embeddings)


def _measured(catalog: Catalog, measured: Measured | None, face_id: int) -> Iterator[tuple[dict[str, int], Measured]]:
    """A face's data in the other generation, if its model measured the face."""
    other = catalog.other
    if measured is not None and other is not None and other.identity.model == measured.model:
        yield {"generation": other.number, "face_id": face_id}, measured


def _insert_photos(catalog: Catalog, parts: Sequence[_Numbered], now: datetime) -> None:
    """Inserts posted images. Their embeddings are pending until `compact`: otherwise readers would open a Parquet file
    for each."""
    media: list[dict[str, Any]] = []
    faces: list[dict[str, Any]] = []
    detections: list[dict[str, Any]] = []
    embeddings: list[dict[str, Any]] = []
    for change in (part.change for part in parts):
        if change.photo is None:
            continue
        media.append(_media_row(change, change.photo, now))
        for face in change.photo.faces:
            own = {"generation": catalog.generation, "face_id": face.face_id}
            faces.append({"media_id": change.photo.media_id, **{name: getattr(face, name) for name in _FACE}})
            score = {"similarity_score": face.similarity_score}
            detections.append({**own, **{name: face.fields[name] for name in _DETECTION}, **score})
            embeddings.append({**own, "embedding": vector_bytes(change.vectors[face.face_id].embedding)})
            for own, measured in _measured(catalog, change.measured.get(face.face_id), face.face_id):
                qualities = dict(zip(QUALITIES, measured.qualities, strict=True))
                place = {name: face.fields[name] for name in _PLACE}
                detections.append({**own, **place, **qualities, "similarity_score": None})
                if measured.embedding is not None:
                    embeddings.append({**own, "embedding": vector_bytes(measured.embedding)})
    catalog.insert("media", media)
    catalog.insert("faces", faces)
    catalog.insert("detections", detections)
    catalog.insert("pending_embeddings", embeddings)


def _media_row(change: Change, photo: PostedPhoto, now: datetime) -> dict[str, Any]:
    image = asdict(photo.image)
    if all(face.ordinal > 0 for face in photo.faces):
        # They belong to the largest face. If that is no reference, nothing would delete them with its person.
        image |= {"name": None, "external_id": None}
    return {
        "media_id": photo.media_id,
        "account_id": change.account_id,
        "directory": change.directory,
        "status": OK,
        "added_at": now,
        **image,
    }


def _change_persons(catalog: Catalog, parts: Sequence[_Numbered], now: datetime) -> None:
    """Inserts and updates persons, and their counters. `seq` locates a row's block, the id proves the row."""
    made: list[dict[str, Any]] = []
    changed: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    seen: list[dict[str, Any]] = []
    for part in parts:
        change = part.change
        for person_id, columns in part.after.persons.items():
            if columns is None:
                continue
            row = dict(columns)
            if "tags" in row:
                row["tags"] = json.dumps(row["tags"]) if row["tags"] else None
            if change.before.persons[person_id] is None:
                drawn = {"directory_id": part.directory, "commit_number": catalog.commit_number}
                made.append({**row, "person_id": person_id, **drawn})
            else:
                known = {"person_id": person_id, "seq": change.seqs[person_id], "directory_id": part.directory}
                names = tuple(dict.fromkeys((*row, "modified_at")))
                changed[names].append({"modified_at": now, **row, **known})
        for person_id, count in change.seen.items():
            known = {"person_id": person_id, "seq": change.seqs[person_id], "directory_id": part.directory}
            seen.append({**known, "occurrence": count, "last_occurrence_at": now})
    catalog.insert("persons", made)
    key = ["seq", "person_id", "directory_id"]
    for names, rows in changed.items():
        _update(catalog, "persons", key, names, rows)
    if seen:
        _update(catalog, "persons", key, COUNTERS, seen, {"occurrence": "t.occurrence + "})


def _delete_persons(catalog: Catalog, part: _Numbered) -> tuple[int, int]:
    """Returns the number of faces and photos removed with them."""
    change = part.change
    gone = [person_id for person_id, columns in change.after.persons.items() if columns is None]
    if gone:
        for table in ("persons", "replaced_images", "facts"):
            catalog.execute(f"DELETE FROM core.{table} WHERE person_id IN {_THESE}", [gone])
        children = f"SELECT 1 FROM core.persons WHERE parent_id IN {_THESE}"
        faces = f"SELECT 1 FROM core.faces WHERE person_id IN {_THESE}"
        if catalog.rows(f"{children} UNION ALL {faces} LIMIT 1", [gone, gone]):
            raise StoreError(message="A person that a correction deletes has other faces, or is the parent of another.")
    if change.deleted:
        return remove_persons(catalog, change.account_id, part.directory, change.deleted, change.remembered)
    if gone and not change.can_be_undone:
        forget_corrections(catalog, part.directory, gone)
    return 0, 0


def _note_erasure(catalog: Catalog, change: Change, now: datetime, *removed: tuple[int, int]) -> None:
    """Records a deletion, in numbers. `removed`: faces and photos."""
    if not change.deleted and not (change.leaving and change.leaving_status == FORGOTTEN):
        return
    faces, photos = map(sum, zip(*removed, strict=True))
    row = {"deleted_at": now, "account_id": change.account_id, "kind": change.kind, "people": len(change.gone)}
    catalog.insert("erasures", [{**row, "faces": faces, "photos": photos, "receipt": change.receipt}])


def _insert_references(catalog: Catalog, parts: Sequence[_Numbered]) -> set[str]:
    """Returns the persons with a new reference in both generations: their posted face has both vectors."""
    rows, in_both = list[dict[str, Any]](), set[str]()
    is_kept = catalog.other is not None and catalog.other.complete
    for part in parts:
        for person_id, face_id in part.after.references.items():
            if face_id is None:
                continue
            guid, *_ = part.change.pictures.get(person_id, (None,))
            row = {
                "generation": catalog.generation,
                "person_id": person_id,
                "face_id": face_id,
                "image_guid": guid,
                "seq": part.reference_seqs[person_id],
                "commit_number": catalog.commit_number,
            }
            rows.append(row)
            drawn = part.change.drawn
            known = drawn.measured if drawn is not None and drawn.face_id == face_id else None
            for own, measured in _measured(catalog, part.change.measured.get(face_id, known), face_id):
                if is_kept and measured.embedding is not None:
                    rows.append(row | own)
                    in_both.add(person_id)
    catalog.insert("reference_faces", rows)
    return in_both


def _log(catalog: Catalog, part: _Numbered, now: datetime) -> None:
    """Adds a change to the log. An undo or redo stores no rows, but updates `undone_at` of the correction and of
    earlier undos and redos."""
    change, undoes = part.change, part.change.undoes
    if undoes is not None:
        sql = "UPDATE core.corrections SET undone_at = ? WHERE"
        catalog.execute(f"{sql} undoes = ? AND undone_at IS NULL", [now, undoes])
        catalog.execute(f"{sql} correction_id = ?", [now if change.kind == "undo" else None, undoes])
    before, after = change.logged
    shown = before.person_ids | after.person_ids
    if not change.can_be_undone:
        new = {person_id for person_id, old in change.before.persons.items() if old is None}
        shown = (change.before.person_ids | change.after.person_ids) - {*change.gone, *new}
    row = {
        "correction_id": part.correction_id,
        "account_id": change.account_id,
        "directory_id": part.directory or None,
        "kind": change.kind,
        "origin": change.origin,
        "made_at": now,
        "before": to_json(before) if undoes is None else NO_ROWS,
        "after": to_json(after, part.after.facts if change.can_be_undone else ()) if undoes is None else NO_ROWS,
        "person_ids": sorted(shown),
        "merges_only": None if change.can_be_undone else True,
        "undoes": undoes,
        "commit_number": catalog.commit_number,
        "position": part.position,
        "gone": sorted(change.gone) or None,
        "generation": catalog.generation,
    }
    catalog.insert("corrections", [row])


# Rows of any table


def _update(
    catalog: Catalog,
    table: str,
    key: Sequence[str],
    names: Iterable[str],
    rows: Sequence[Mapping[str, Any]],
    before: Mapping[str, str] = {},
) -> None:
    """Sets columns of rows; `before`: SQL prefix of a value, to add to it. Raises StoreError if a row is missing."""
    names = list(names)
    count = 0
    if len(rows) <= _FEW_UPDATED:
        values = ", ".join(f"{name} = {before.get(name, '')}?" for name in names)
        sql = f"UPDATE core.{table} t SET {values} WHERE {' AND '.join(f't.{name} = ?' for name in key)}"
        for row in rows:
            count += catalog.one(sql, [row[name] for name in (*names, *key)])
    else:
        values = ", ".join(f"{name} = {before.get(name, '')}c.{name}{_uuid(name)}" for name in names)
        same = " AND ".join(f"t.{name} = c.{name}{_uuid(name)}" for name in key)
        with catalog.tables(changed_rows=arrow_table(table, [*key, *names], rows)):
            count = catalog.one(f"UPDATE core.{table} t SET {values} FROM changed_rows c WHERE {same}")
    if count != len(rows):
        raise StoreError(message=f"{len(rows) - count} of the {table} to be changed are not in the directory.")


def _uuid(name: str) -> str:
    return "::UUID" if name in ("person_id", "other_id", "parent_id") else ""
