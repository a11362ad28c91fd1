"""Input of corrections: faces and their persons, constraints, earlier corrections."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.directories import directory_id
from pipeline.store.catalog.references import face_vectors
from pipeline.store.records import (
    CorrectedSince,
    Correction,
    FaceToRegroup,
    FaceVector,
    Fact,
    LastMerge,
    Remembered,
    Rows,
    StoredFace,
)
from pipeline.types import QUALITIES

_TIMES = ("last_occurrence_at", "added_at", "modified_at")  # of persons
_FACT = ", ".join(f"{f.name}::VARCHAR" if f.name in ("person_id", "other_id") else f.name for f in fields(Fact))

# `StoredFace` columns of the faces in `wanted`; $1: generation. Subqueries avoid joins with a million rows for a few
# faces.
_STORED_FACE: Final = """
    f.face_id, f.person_id::VARCHAR, f.outcome, t.similarity_score, t.rejection_reasons, m.path, m.sha256,
    t.x1, t.y1, t.x2, t.y2, coalesce(t.center_pose_quality * t.sharpness_quality * t.contrast_quality, 0),
    f.face_id IN (SELECT face_id FROM core.embeddings JOIN wanted USING (face_id) WHERE generation = $1)
        OR f.face_id IN (SELECT face_id FROM core.pending_embeddings WHERE generation = $1),
    m.media_id, m.width, m.height
"""
_WANTED: Final = """
    FROM wanted JOIN core.faces f USING (face_id) JOIN core.media m ON m.media_id = f.media_id
    JOIN core.detections t ON t.face_id = f.face_id AND t.generation = $1
"""


# The corrections of directory $1 that involve some of the persons $2. `list_has_any` would be 2 to 100 times slower.
SHOWING: Final = (
    "FROM core.corrections WHERE directory_id = $1 AND correction_id IN (SELECT correction_id FROM ("
    "SELECT correction_id, unnest(person_ids) AS person_id FROM core.corrections WHERE directory_id = $1)"
    " WHERE person_id IN (SELECT unnest($2::UUID[])))"
)

# The photos of runs on which somebody may be twice, by their bytes.
TWICE_ALLOWED: Final = """
    SELECT DISTINCT m.account_id, m.directory, m.sha256
    FROM core.facts t JOIN core.faces f ON f.face_id = t.face_id JOIN core.media m ON m.media_id = f.media_id
    WHERE t.kind = 'twice'
"""


def stored_faces(
    catalog: Catalog,
    account_id: int,
    directory: str,
    face_ids: Sequence[int],
    person_ids: Sequence[str],
    media_ids: Sequence[int] = (),
) -> list[StoredFace]:
    """These faces of the directory, and all faces of these persons and media, by id."""
    rows = catalog.rows(
        f"""
        WITH wanted AS MATERIALIZED (SELECT face_id FROM core.faces
            WHERE face_id IN (SELECT unnest($4::BIGINT[])) OR person_id IN (SELECT unnest($5::UUID[]))
            OR media_id IN (SELECT unnest($6::BIGINT[])))
        SELECT {_STORED_FACE} {_WANTED} WHERE m.account_id = $2 AND m.directory = $3 ORDER BY f.face_id
        """,
        [catalog.generation, account_id, directory, list(face_ids), list(person_ids), list(media_ids)],
    )
    return [StoredFace(*row) for row in rows]


def photos_of_runs(catalog: Catalog, account_id: int, directory: str, media_ids: Sequence[int]) -> dict[int, str]:
    """media_id -> status, for those that are photos of runs in the directory."""
    rows = catalog.rows(
        "SELECT media_id, status FROM core.media WHERE account_id = ? AND directory = ? AND run_id IS NOT NULL"
        " AND media_id IN (SELECT unnest(?::BIGINT[]))",
        [account_id, directory, list(media_ids)],
    )
    return dict(rows)


def copies_of_photos(catalog: Catalog, account_id: int, directory: str, media_ids: Sequence[int]) -> list[int]:
    """The directory's photos of runs with the bytes of one of these, which are among them."""
    return catalog.column(
        "SELECT media_id FROM core.media WHERE account_id = ? AND directory = ? AND run_id IS NOT NULL AND sha256 IN"
        " (SELECT sha256 FROM core.media WHERE media_id IN (SELECT unnest(?::BIGINT[])))",
        [account_id, directory, list(media_ids)],
    )


def twice_allowed(catalog: Catalog, account_id: int, directory: str) -> set[str]:
    """SHA-256 of the photos of a directory on which somebody may be twice."""
    here = "account_id = ? AND directory = ?"
    return set(catalog.column(f"SELECT sha256 FROM ({TWICE_ALLOWED}) WHERE {here}", [account_id, directory]))


def faces_to_regroup(
    catalog: Catalog, account_id: int, directory: str, *, with_vectors: bool
) -> tuple[list[FaceToRegroup], dict[int, FaceVector]]:
    """All faces of the directory except removed ones, by photo, largest first; and the stored vectors by face id, or
    none. Raises StoreDamaged."""
    rows = catalog.rows(
        f"""
        WITH wanted AS MATERIALIZED (SELECT face_id FROM core.faces JOIN core.media USING (media_id)
            WHERE account_id = $2 AND directory = $3)
        SELECT {_STORED_FACE}, {", ".join(QUALITIES)},
            f.ordinal > 0 AND (m.name IS NOT NULL OR m.external_id IS NOT NULL), r.face_id IS NOT NULL, f.ordinal,
            m.pixel_hash
        {_WANTED} LEFT JOIN core.reference_faces r ON r.face_id = f.face_id AND r.generation = $1
        ORDER BY m.media_id, f.ordinal
        """,
        [catalog.generation, account_id, directory],
    )
    own = len(fields(StoredFace))
    faces = [FaceToRegroup(StoredFace(*row[:own]), row[own : own + 3], *row[own + 3 :]) for row in rows]
    wanted = [face.stored.face_id for face in faces if with_vectors and face.stored.has_embedding]
    return faces, face_vectors(catalog, wanted)


def rejected_faces(catalog: Catalog, account_id: int, directory: str) -> pa.Table:
    """path, sha256, ordinal, x1, y1, x2, y2 and QUALITIES of the directory's rejected faces, except those constrained
    to be nobody; in storage order."""
    return catalog.read(
        f"""
        SELECT m.path, m.sha256, f.ordinal, t.x1, t.y1, t.x2, t.y2, {", ".join(f"t.{name}" for name in QUALITIES)}
        FROM core.faces f JOIN core.media m ON m.media_id = f.media_id
        JOIN core.detections t ON t.face_id = f.face_id AND t.generation = $1
        WHERE m.account_id = $2 AND m.directory = $3 AND f.outcome = 'rejected'
            AND f.face_id NOT IN (SELECT face_id FROM core.facts WHERE kind = 'nobody')
        ORDER BY m.media_id, f.ordinal
        """,
        [catalog.generation, account_id, directory],
    )


def reference_faces(catalog: Catalog, person_ids: Sequence[str]) -> dict[str, int]:
    """person id -> face id of the current reference, if any."""
    sql = (
        "SELECT person_id::VARCHAR, face_id FROM core.reference_faces"
        " WHERE generation = ? AND person_id IN (SELECT unnest(?::UUID[]))"
    )
    return dict(catalog.rows(sql, [catalog.generation, list(person_ids)]))


def facts_about(catalog: Catalog, face_ids: Sequence[int], person_ids: Sequence[str]) -> list[Fact]:
    """The constraints on these faces or persons, oldest first."""
    rows = catalog.rows(
        f"SELECT {_FACT} FROM core.facts WHERE face_id IN (SELECT unnest($1::BIGINT[]))"
        " OR person_id IN (SELECT unnest($2::UUID[])) OR other_id IN (SELECT unnest($2::UUID[]))"
        " ORDER BY correction_id, face_id",
        [list(face_ids), list(person_ids)],
    )
    return [Fact(*row) for row in rows]


def pinned_faces(
    catalog: Catalog, account_id: int, directory: str, hashes: Sequence[str]
) -> dict[str, dict[int, str | None]]:
    """SHA-256 -> ordinal -> the person (None: nobody) that the latest constraint assigns, for photos of the directory
    with these bytes."""
    pinned: dict[str, dict[int, str | None]] = {}
    for sha256, ordinal, person_id in catalog.rows(
        "SELECT m.sha256, f.ordinal, t.person_id::VARCHAR FROM core.facts t JOIN core.faces f ON f.face_id = t.face_id"
        " JOIN core.media m ON m.media_id = f.media_id WHERE t.kind IN ('is', 'nobody') AND m.account_id = ?"
        " AND m.directory = ? AND m.sha256 IN (SELECT unnest(?::VARCHAR[])) ORDER BY t.correction_id",
        [account_id, directory, list(hashes)],
    ):
        pinned.setdefault(sha256, {})[ordinal] = person_id
    return pinned


def correction_to_undo(
    catalog: Catalog, account_id: int, directory: str, correction_id: int | None, origin: str
) -> Correction | None:
    """The directory's correction of this number, undone or not; without a number, the last one of this origin still in
    force, excluding undos and redos."""
    wanted = "correction_id = $2"
    if correction_id is None:
        wanted = "origin = $2 AND undoes IS NULL AND undone_at IS NULL AND merges_only IS NULL"
    rows = catalog.rows(
        "SELECT correction_id, kind, undoes, made_at, before, after, undone_at, merges_only IS NOT NULL, generation"
        f" FROM core.corrections WHERE directory_id = $1 AND {wanted} ORDER BY correction_id DESC LIMIT 1",
        [directory_id(catalog, account_id, directory), origin if correction_id is None else correction_id],
    )
    if not rows:
        return None
    number, kind, undoes, made_at, before, after, undone_at, merges_only, generation = rows[0]
    what = kind
    if undoes is not None:  # the correction has the rows; reversed for an undo
        sql = "SELECT kind, generation, before, after FROM core.corrections WHERE correction_id = ?"
        what, generation, *texts = catalog.rows(sql, [undoes])[0]
        before, after = texts[::-1] if kind == "undo" else texts
    was, is_now = rows_of_json(before), rows_of_json(after)
    since = "correction_id >= ? AND generation <> ? AND directory_id = ?"
    values = [undoes or number, catalog.generation, directory_id(catalog, account_id, directory)]
    by_other_model = bool(catalog.one(f"SELECT count(*) FROM core.corrections WHERE {since}", values))
    if generation != catalog.generation:  # scores and reasons are of another model
        unknown = {"similarity_score": None, "rejection_reasons": None}
        was = replace(was, faces={face_id: row and {**row, **unknown} for face_id, row in was.faces.items()})
    if by_other_model:  # the other model deleted the scores of both
        whose = ("person_id", "outcome")
        faces = {f: row and {name: row[name] for name in whose} for f, row in is_now.faces.items()}
        is_now = replace(is_now, faces=faces)
    return Correction(number, kind, undoes, what, made_at, was, is_now, undone_at, merges_only, by_other_model)


def history(catalog: Catalog, account_id: int, directory: str, before: int, count: int) -> pa.Table:
    """The directory's last `count` corrections with numbers below `before`, latest first: correction_id, made_at, kind,
    origin, undoes, undone, can_be_undone, withdrawn (number of withdrawn constraints), faces (number changed),
    person_ids, gone (number of deleted persons)."""
    return catalog.read(
        """
        WITH wanted AS MATERIALIZED (SELECT correction_id, undoes FROM core.corrections
            WHERE directory_id = $1 AND correction_id < $2 ORDER BY correction_id DESC LIMIT $3),
        counted AS MATERIALIZED (
            SELECT correction_id, len(json_keys(after, '$.faces')) AS faces,
                json_array_length(before, '$.facts')::BIGINT AS old_facts,
                json_array_length(after, '$.facts')::BIGINT AS new_facts
            FROM core.corrections
            WHERE correction_id IN (SELECT unnest([correction_id, undoes]) FROM wanted))
        SELECT c.correction_id, made_at, kind, origin, c.undoes, undone_at IS NOT NULL AS undone,
            undone_at IS NULL AND merges_only IS NULL AS can_be_undone,
            if(kind = 'undo', n.new_facts, n.old_facts) AS withdrawn, n.faces, person_ids::VARCHAR[] AS person_ids,
            coalesce(len(gone), 0) AS gone
        FROM core.corrections c JOIN wanted w USING (correction_id)
        JOIN counted n ON n.correction_id = coalesce(c.undoes, c.correction_id)
        ORDER BY c.correction_id DESC
        """,
        [directory_id(catalog, account_id, directory), before, count],
    )


def corrected_since(
    catalog: Catalog, account_id: int, directory: str, since: datetime, person_ids: Sequence[str], own: Sequence[int]
) -> list[CorrectedSince]:
    """Corrections of these persons made or undone (not both) after `since`, oldest first, except `own`."""
    rows = catalog.rows(
        """
        SELECT correction_id, kind, coalesce(undone_at, made_at), undone_at IS NOT NULL FROM core.corrections
        WHERE directory_id = $1 AND (made_at > $2 OR undone_at > $2) AND NOT (made_at > $2 AND undone_at IS NOT NULL)
            AND list_has_any(person_ids, $3::UUID[]) AND correction_id NOT IN (SELECT unnest($4::BIGINT[]))
            AND kind <> 'undo'  -- which what it undid tells
        ORDER BY 3
        """,
        [directory_id(catalog, account_id, directory), since, list(person_ids), list(own)],
    )
    return [CorrectedSince(*row) for row in rows]


def last_merges(catalog: Catalog, account_id: int, directory: str) -> dict[str, LastMerge]:
    """The last correction, not undone, that set a person's parent, by person id."""
    found: dict[str, LastMerge] = {}
    for number, kind, *texts in catalog.rows(
        """
        SELECT correction_id, kind, before, after FROM core.corrections c
        WHERE directory_id = ? AND undone_at IS NULL AND undoes IS NULL AND contains(after, '"parent_id"')
        ORDER BY coalesce((SELECT max(r.correction_id) FROM core.corrections r WHERE r.undoes = c.correction_id),
            correction_id)  -- made again, it is later than what was made meanwhile
        """,
        [directory_id(catalog, account_id, directory)],
    ):
        before, after = (json.loads(text)["persons"] for text in texts)
        for person_id, columns in after.items():
            if columns and before[person_id] and "parent_id" in columns:
                found[person_id] = LastMerge(number, kind, before[person_id]["parent_id"], columns["parent_id"])
    return found


def regrouped(catalog: Catalog, account_id: int, directory: str, person_ids: Iterable[str]) -> dict[str, str]:
    """Each of these persons -> one of them and those that regroups joined with it: the same for all."""
    parents = {
        person_id: parent_id
        for person_id, (_, kind, _, parent_id) in last_merges(catalog, account_id, directory).items()
        if kind == "regroup" and parent_id is not None
    }
    tops = {}
    for person_id in person_ids:
        seen, top = {person_id}, person_id
        while (parent := parents.get(top)) is not None and parent not in seen:
            top = parent
            seen.add(top)
        tops[person_id] = top
    return tops


def to_json(rows: Rows, facts: Sequence[Fact] | None = None) -> str:
    """The format of core.corrections; `facts` replace its own."""
    facts = rows.facts if facts is None else facts
    texts = {**rows.texts, "facts": json.dumps([vars(fact) for fact in facts], default=str)}
    return "{" + ", ".join(f'"{name}": {text}' for name, text in texts.items()) + "}"


def shown_persons(catalog: Catalog, directory: int | None, person_ids: Sequence[str]) -> Iterator[Rows]:
    """The rows before and after each correction that involves some of these persons, also undone ones."""
    for texts in catalog.rows(f"SELECT before, after {SHOWING}", [directory, list(person_ids)]):
        yield from map(rows_of_json, texts)


def rows_of_json(text: str) -> Rows:
    """The inverse of `to_json`."""
    found = json.loads(text)
    return Rows(
        persons={person_id: _person(columns) for person_id, columns in found["persons"].items()},
        faces={int(face_id): columns for face_id, columns in found["faces"].items()},
        references=found["references"],
        facts=[Fact(**(_with_times(fact, ["stated_at"]) or {})) for fact in found["facts"]],
        remembered=Remembered(**found["remembered"]) if "remembered" in found else None,
    )


def _person(columns: dict[str, Any] | None) -> dict[str, Any] | None:
    tags = {"tags": tuple(columns["tags"])} if columns and "tags" in columns else {}
    return _with_times(columns and {**columns, **tags}, _TIMES)


def _with_times(columns: dict[str, Any] | None, names: Sequence[str]) -> dict[str, Any] | None:
    times = {name: datetime.fromisoformat(columns[name]) for name in names if columns and columns.get(name)}
    return None if columns is None else {**columns, **times}
