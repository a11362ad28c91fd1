"""Removes replaced references, deleted persons and deleted photos with all their data, inside a transaction.

A face of a posted image is deleted, and with its last face the image's row. A face of a run keeps its row, because it
belongs to the archive. If its person or photo is deleted, it becomes `removed`, without any identifying data; so does
the photo's row. `erasure.erase` later removes the vectors from files.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from pipeline.errors import StoreError
from pipeline.store import cleanup
from pipeline.store.catalog import erasures, files, forgotten, pages, persons, rewriting
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.corrections import SHOWING, rows_of_json, to_json
from pipeline.store.catalog.references import last_in_segments
from pipeline.store.files.objects import object_file
from pipeline.store.files.shards import report_file
from pipeline.store.records import NEVER_UNDONE, NO_ROWS, Rows
from pipeline.types import DRAWN, DUPLICATE_ROW, FORGOTTEN

_THESE_PERSONS = "person_id IN (SELECT unnest(?::UUID[]))"
_THESE_FACES = "face_id IN (SELECT unnest(?::BIGINT[]))"
_THESE_NUMBERS = "(SELECT unnest(?::BIGINT[]))"
_THESE_MEDIA = "media_id IN (SELECT unnest(?::BIGINT[]))"
_OF_PHOTO = (
    *("path", "sha256", "pixel_hash", "bytes", "width", "height", "format", "reason", "taken_at"),
    *("name", "external_id", "extra"),
)
_RUNS = "SELECT run_id FROM core.runs WHERE account_id = ?"


def remove_references(catalog: Catalog, directory: int, person_ids: Sequence[str]) -> None:
    """Removes these persons' current references, if any, before they are replaced.

    Raises StoreError unless all are persons of the directory.
    """
    everybody = catalog.rows(
        "SELECT DISTINCT r.face_id, p.person_id FROM core.persons p LEFT JOIN core.reference_faces r"
        f" ON r.person_id = p.person_id WHERE p.directory_id = ? AND p.{_THESE_PERSONS}",
        [directory, list(person_ids)],
    )
    _require_all(len({person_id for _, person_id in everybody}), person_ids)
    old = [face_id for face_id, _ in everybody if face_id is not None]
    drop_references(catalog, directory, person_ids)
    _remove_posts(catalog, _THESE_FACES, [old])


def drop_references(catalog: Catalog, directory: int, person_ids: Sequence[str], gone: Set[str] = frozenset()) -> None:
    """Removes these persons' current references and pictures, not the faces. Pictures of `gone` persons are not
    remembered as replaced."""
    pictures = _delete_references(catalog, directory, person_ids, erase=False)
    _remove_images(catalog, [guid for guid, _ in pictures])
    persons.add_replaced(catalog, [picture for picture in pictures if picture[1] not in gone])


def _delete_references(
    catalog: Catalog, directory: int, person_ids: Sequence[str], *, erase: bool
) -> list[tuple[str, str]]:
    """Deletes these persons' references in all generations; those in segments get tombstones, with `erase` also to be
    erased from files. Returns (picture's guid, person id)."""
    pictures: dict[tuple[str, str], None] = {}
    for generation in catalog.generations:
        with catalog.at(generation):
            pictures |= dict.fromkeys(bury_references(catalog, directory, person_ids, erase=erase))
    return [*pictures]


def bury_references(
    catalog: Catalog, directory: int, person_ids: Sequence[str], *, erase: bool
) -> list[tuple[str, str]]:
    """`_delete_references` in the current generation."""
    rows = catalog.rows(
        f"DELETE FROM core.reference_faces WHERE generation = ? AND {_THESE_PERSONS}"
        " RETURNING image_guid, person_id::VARCHAR, face_id, seq",
        [catalog.generation, list(person_ids)],
    )
    last = last_in_segments(catalog, directory)
    buried = [
        {"generation": catalog.generation, "directory_id": directory, "erase": erase}
        | {"person_id": person_id, "face_id": face_id, "seq": seq}
        for _, person_id, face_id, seq in rows
        if seq <= last
    ]
    catalog.insert("tombstones", buried)
    return [(guid, person_id) for guid, person_id, _, _ in rows if guid is not None]


def _remember_faces(catalog: Catalog, account_id: int, person_ids: Sequence[str]) -> None:
    """Before these persons are deleted: has runs skip their faces. Omits those of posted images: a post may concern a
    few faces, and its ordinals count these."""
    faces = catalog.rows(
        "SELECT m.sha256, f.ordinal FROM core.faces f JOIN core.media m USING (media_id)"
        f" WHERE m.sha256 IS NOT NULL AND m.run_id IS NOT NULL AND f.{_THESE_PERSONS}",
        [list(person_ids)],
    )
    forgotten.remember(catalog, account_id, forgotten.FACE, [forgotten.face_text(*face) for face in faces])


def _remember_photos(
    catalog: Catalog,
    account_id: int,
    media: Sequence[int],
    kinds: Set[str],
    *,
    only_in: str | None = None,
    within: int | None = None,
) -> None:
    """Has runs skip the paths and bytes of these photos, except those that a remaining photo has: of the account, or of
    the directory `within`. `only_in`: their directory, of which no photo remains, if only runs into it skip them."""
    here = "" if within is None else " AND directory = (SELECT name FROM core.directories WHERE directory_id = $4)"
    for kind, column in ((forgotten.PATH, "path"), (forgotten.BYTES, "sha256")):
        if kind not in kinds:
            continue
        texts = catalog.column(
            f"SELECT DISTINCT {column} FROM core.media WHERE {_THESE_MEDIA} AND {column} IS NOT NULL"
            f" AND ($2 OR {column} NOT IN (SELECT {column} FROM core.media WHERE account_id = $3"
            f" AND run_id IS NOT NULL AND {column} IS NOT NULL{here} AND NOT {_THESE_MEDIA}))".replace("?", "$1"),
            [list(media), only_in is not None, account_id, *([] if within is None else [within])],
        )
        if only_in is not None:
            texts = [forgotten.in_directory(only_in, text) for text in texts]
        forgotten.remember(catalog, account_id, kind, texts)


def remove_persons(
    catalog: Catalog, account_id: int, directory: int, person_ids: Sequence[str], remembered: Set[str]
) -> tuple[int, int]:
    """Deletes these persons with their references, images and all data of their faces; returns how many of their faces,
    and photos.

    `remembered`: kinds of digests to keep (`forgotten`), so that runs skip photos that showed nobody else, and the
    persons' other faces. Such photos' rows lose path and hashes.

    Raises StoreError unless all are persons of the directory, and no remaining person's parent.
    """
    _note_removal(catalog, account_id)
    ids = [list(person_ids)]
    others = erasures.labelled_with(catalog, directory, person_ids)
    alone = erasures.photos_of(catalog, person_ids, others, with_others=False)
    photos = _with_repeated(catalog, alone["media_id"].to_pylist())
    if forgotten.FACE in remembered:
        _remember_faces(catalog, account_id, person_ids)
    _remember_photos(catalog, account_id, photos, remembered, within=directory)
    deleted = f"DELETE FROM core.persons WHERE directory_id = ? AND {_THESE_PERSONS} RETURNING 1"
    _require_all(len(catalog.rows(deleted, [directory, *ids])), person_ids)
    if catalog.rows("SELECT 1 FROM core.persons WHERE parent_id IN (SELECT unnest(?::UUID[])) LIMIT 1", ids):
        raise StoreError(message="A person to be deleted is the parent of another.")
    catalog.execute(f"DELETE FROM core.facts WHERE {_THESE_PERSONS} OR other_id IN (SELECT unnest(?::UUID[]))", ids * 2)
    forget_corrections(catalog, directory, person_ids)
    pages.remove_pages(catalog, person_ids=person_ids)
    catalog.execute(f"UPDATE core.tombstones SET erase = true WHERE {_THESE_PERSONS}", ids)  # of earlier references
    pictures = _delete_references(catalog, directory, person_ids, erase=True)
    catalog.execute(f"DELETE FROM core.replaced_images WHERE {_THESE_PERSONS}", ids)
    _remove_images(catalog, [guid for guid, _ in pictures])
    faces = catalog.rows(
        "SELECT f.face_id, f.media_id, f.ordinal, m.run_id IS NULL FROM core.faces f"
        f" JOIN core.media m ON m.media_id = f.media_id WHERE f.{_THESE_PERSONS}",
        ids,
    )
    # Labels from a manifest or request belong to the largest face.
    files.erase_labels(catalog, [*others, *(media for _, media, ordinal, _ in faces if ordinal == 0)])
    _remove_posted_faces(catalog, [(face, media) for face, media, _, posted in faces if posted])
    _blank_run_faces(catalog, [face for face, _, _, posted in faces if not posted])
    blank_photos(catalog, photos, FORGOTTEN)
    return len(faces), len(photos)


def _note_removal(catalog: Catalog, account_id: int) -> None:
    """The catalog has to be rewritten. Deletes the account's run.json files, which list paths and people."""
    rewriting.note_removal(catalog)
    reports = map(report_file, catalog.column(_RUNS, [account_id]))
    cleanup.delete_later(catalog, [file for file in reports if catalog.folder.path(file).exists()])


def remove_photos(
    catalog: Catalog,
    account_id: int,
    media_ids: Sequence[int],
    status: str,
    remembered: Set[str] = frozenset(),
    *,
    only_in: str | None = None,
) -> tuple[int, int]:
    """Removes photos of runs, and rows that repeat them in their runs; returns how many faces and photos.

    `remembered`: kinds of digests to keep (`forgotten`), so that the account's runs skip their paths and bytes, except
    those that a remaining photo has. `only_in`: their directory, of which no photo remains, if only runs into it skip
    them.
    """
    if status == FORGOTTEN:
        _note_removal(catalog, account_id)
    media = _with_repeated(catalog, media_ids)
    _remember_photos(catalog, account_id, media, remembered, only_in=only_in)
    return blank_photos(catalog, media, status), len(media)


def _with_repeated(catalog: Catalog, media_ids: Sequence[int]) -> list[int]:
    """These photos, and rows that repeat them in their runs."""
    repeated = (
        "SELECT r.media_id FROM core.media r JOIN core.media m USING (run_id, path, directory)"
        f" WHERE r.status = '{DUPLICATE_ROW}' AND m.{_THESE_MEDIA}"
    )
    return [*media_ids, *catalog.column(repeated, [list(media_ids)])]


def blank_photos(catalog: Catalog, media: Sequence[int], status: str) -> int:
    """Deletes identifying data from the rows of photos and their faces; returns the number of faces."""
    if not media:
        return 0
    faces = catalog.column(f"SELECT face_id FROM core.faces WHERE {_THESE_MEDIA}", [media])
    _pass_facts_on(catalog, faces, media)
    _blank_run_faces(catalog, faces)
    catalog.execute(f"DELETE FROM core.files WHERE {_THESE_MEDIA}", [media])
    pages.remove_pages(catalog, media_ids=media)
    catalog.execute(
        f"UPDATE core.media SET status = ?, {', '.join(f'{name} = NULL' for name in _OF_PHOTO)} WHERE {_THESE_MEDIA}",
        [status, media],
    )
    return len(faces)


def blank_leftovers(catalog: Catalog) -> None:
    """Forgets photos whose persons were deleted by an earlier version, which kept paths and hashes. Runs skip them."""
    rows = catalog.rows(
        "SELECT m.media_id, m.account_id, m.path, m.sha256, m.directory,"
        " EXISTS (FROM core.directories d WHERE d.account_id = m.account_id AND d.name = m.directory)"
        " FROM core.media m JOIN core.faces f USING (media_id) LEFT JOIN core.facts t USING (face_id)"
        " WHERE m.run_id IS NOT NULL AND m.path IS NOT NULL"
        " AND media_id IN (SELECT media_id FROM core.faces WHERE outcome = 'removed')"
        " GROUP BY ALL HAVING bool_and(f.outcome IN ('removed', 'rejected')) AND count(t.kind) = 0"
    )
    if not rows:
        return
    with catalog.transaction("change"):
        for media_id, account_id, path, sha256, directory, exists in rows:
            for kind, text in ((forgotten.PATH, path), (forgotten.BYTES, sha256)):
                if text is not None:
                    known = text if exists else forgotten.in_directory(directory, text)
                    forgotten.remember(catalog, account_id, kind, [known])
            blank_photos(catalog, _with_repeated(catalog, [media_id]), FORGOTTEN)


def _pass_facts_on(catalog: Catalog, faces: Sequence[int], media: Sequence[int]) -> None:
    """Moves constraints on deleted photos' faces to a remaining photo with identical bytes: the first in the
    directory whose face has the same person and no constraint; that somebody may be twice on it is a constraint for
    itself. Of several deleted copies, only the first one's constraints move."""
    if not catalog.rows(f"SELECT 1 FROM core.facts WHERE {_THESE_FACES} LIMIT 1", [list(faces)]):
        return
    catalog.execute(
        """
        INSERT INTO core.facts BY NAME
        SELECT * EXCLUDE (leaving, of_photo) FROM (
            SELECT t.* REPLACE (c.face_id AS face_id), f.face_id AS leaving, t.kind = 'twice' AS of_photo
            FROM core.facts t JOIN core.faces f ON f.face_id = t.face_id
            JOIN core.media m ON m.media_id = f.media_id
            JOIN core.media n ON n.sha256 = m.sha256 AND n.account_id = m.account_id AND n.directory = m.directory
            JOIN core.faces c ON c.media_id = n.media_id AND c.ordinal = f.ordinal
            WHERE t.face_id IN (SELECT unnest($1::BIGINT[])) AND n.run_id IS NOT NULL AND c.outcome <> 'removed'
                AND n.media_id NOT IN (SELECT unnest($2::BIGINT[]))
                AND c.person_id IS NOT DISTINCT FROM f.person_id
                AND (c.face_id, of_photo) NOT IN (
                    SELECT face_id, kind = 'twice' FROM core.facts WHERE face_id IS NOT NULL)
            QUALIFY c.face_id = min(c.face_id) OVER (PARTITION BY f.face_id, of_photo)
        ) QUALIFY leaving = min(leaving) OVER (PARTITION BY face_id, of_photo)
        """,
        [list(faces), list(media)],
    )


def forget_corrections(catalog: Catalog, directory: int, person_ids: Sequence[str]) -> None:
    """Empties the corrections that involve these persons: they can no longer be undone, and may name them.

    Keeps other persons' merges (`regroup` asks who joined or split whom), and ids of other changed and deleted persons
    (for readers of changes). Deletes corrections without such ids.
    """
    shown = [directory, list(person_ids)]
    in_force = "AND undone_at IS NULL AND undoes IS NULL"
    made = catalog.rows(f"SELECT correction_id, before, after {SHOWING} {in_force}", shown)
    numbers = catalog.column(f"SELECT correction_id {SHOWING}", shown)
    catalog.execute(  # `gone` of an undone one; that of this deletion stays for readers of changes
        "UPDATE core.corrections SET gone = list_filter(gone, lambda p: NOT list_contains($2::UUID[], p))"
        f" WHERE directory_id = $1 AND len(gone) > 0 AND kind NOT IN {tuple(sorted(NEVER_UNDONE))}",
        shown,
    )
    if not numbers:
        return
    catalog.execute(
        "UPDATE core.corrections SET before = ?, after = ?, merges_only = true,"
        " person_ids = list_filter(person_ids, lambda p: NOT list_contains(?::UUID[], p))"
        f" WHERE correction_id IN {_THESE_NUMBERS}",
        [NO_ROWS, NO_ROWS, list(person_ids), numbers],
    )
    for number, old, new in made:
        before, after = _merges_of_others(rows_of_json(old), rows_of_json(new), set(person_ids))
        if after.persons:
            catalog.execute(
                "UPDATE core.corrections SET before = ?, after = ? WHERE correction_id = ?",
                [to_json(before), to_json(after), number],
            )
    catalog.execute(
        f"DELETE FROM core.corrections WHERE correction_id IN {_THESE_NUMBERS}"
        " AND len(person_ids) = 0 AND gone IS NULL",
        [numbers],
    )
    catalog.execute(
        f"UPDATE core.corrections SET undoes = NULL WHERE undoes IN {_THESE_NUMBERS}"
        " AND undoes NOT IN (SELECT correction_id FROM core.corrections)",
        [numbers],
    )


def _merges_of_others(before: Rows, after: Rows, gone: set[str]) -> tuple[Rows, Rows]:
    """The changed parents, except of, from or to persons in `gone`."""
    parents = {
        person_id: ({"parent_id": old["parent_id"]}, {"parent_id": new["parent_id"]})
        for person_id, new in after.persons.items()
        if (old := before.persons[person_id]) and new and "parent_id" in new
        if not {person_id, old["parent_id"], new["parent_id"]} & gone
    }
    return Rows({p: old for p, (old, _) in parents.items()}), Rows({p: new for p, (_, new) in parents.items()})


def _require_all(count: int, person_ids: Sequence[str]) -> None:
    if count != len(person_ids):
        raise StoreError(message=f"{len(person_ids) - count} of the persons are not in the directory.")


def _remove_images(catalog: Catalog, guids: Sequence[str]) -> None:
    catalog.execute("DELETE FROM core.objects WHERE image_guid IN (SELECT unnest(?::VARCHAR[]))", [list(guids)])
    cleanup.delete_later(catalog, [object_file(guid) for guid in guids])


def remove_unshown_images(catalog: Catalog, guids: Sequence[str]) -> None:
    """Removes those of these images that no reference shows, in any generation."""
    shown = "SELECT image_guid FROM core.reference_faces WHERE image_guid IS NOT NULL"
    sql = f"SELECT DISTINCT unnest(?::VARCHAR[]) AS guid EXCEPT {shown}"
    _remove_images(catalog, catalog.column(sql, [list(guids)]))


def remove_unshown_posts(catalog: Catalog, person_ids: Sequence[str] | None = None) -> None:
    """Removes posted faces (of these persons; None: all) that are no reference in any generation, and images without
    faces left."""
    whose, values = ("", ()) if person_ids is None else (f" AND {_THESE_PERSONS}", [list(person_ids)])
    _remove_posts(catalog, f"face_id NOT IN (SELECT face_id FROM core.reference_faces){whose}", values)


def _remove_posts(catalog: Catalog, condition: str, values: Sequence[object]) -> None:
    """Removes the posted faces that meet an SQL condition, and images without faces left."""
    faces = catalog.rows(
        "SELECT face_id, media_id, ordinal FROM core.faces WHERE media_id IN (SELECT media_id FROM core.media"
        f" WHERE run_id IS NULL) AND {condition}",
        values,
    )
    _remove_posted_faces(catalog, [(face, media) for face, media, _ in faces])
    files.erase_labels(catalog, [media for _, media, ordinal in faces if ordinal == 0])


def _remove_posted_faces(catalog: Catalog, faces: Sequence[tuple[int, int]]) -> None:
    """Deletes (face id, media id) of posted images, and images without faces left."""
    if not faces:
        return
    _remove_derived(catalog, [face for face, _ in faces])
    catalog.execute(f"DELETE FROM core.faces WHERE {_THESE_FACES}", [[face for face, _ in faces]])
    media = [[media for _, media in faces]]
    gone = catalog.column(
        f"DELETE FROM core.media WHERE {_THESE_MEDIA} AND media_id NOT IN"
        f" (SELECT media_id FROM core.faces WHERE {_THESE_MEDIA}) RETURNING media_id",
        media * 2,
    )
    pages.remove_pages(catalog, media_ids=gone)


def remove_added_faces(catalog: Catalog, faces: Sequence[int]) -> None:
    """Deletes faces that users drew or posted, as if they had never been."""
    _remove_posts(catalog, _THESE_FACES, [list(faces)])
    _remove_derived(catalog, faces)
    deleted = f"DELETE FROM core.faces WHERE {_THESE_FACES} AND outcome = '{DRAWN}' RETURNING media_id"
    for media_id in catalog.column(deleted, [list(faces)]):
        count_face(catalog, media_id, -1)


def count_face(catalog: Catalog, media_id: int, more: int) -> None:
    """Changes the number of faces of a photo's shard."""
    catalog.execute(
        "UPDATE core.shards s SET faces = s.faces + ? FROM core.media m"
        " WHERE m.media_id = ? AND s.run_id = m.run_id AND s.shard = m.shard",
        [more, media_id],
    )


def erase_references(catalog: Catalog, faces: Sequence[int]) -> None:
    """Has the vectors of these removed references erased from index segments."""
    catalog.execute(f"UPDATE core.tombstones SET erase = true WHERE {_THESE_FACES}", [list(faces)])


def _blank_run_faces(catalog: Catalog, faces: Sequence[int]) -> None:
    if not faces:
        return
    _remove_derived(catalog, faces)
    catalog.execute(
        f"UPDATE core.faces SET outcome = 'removed', person_id = NULL WHERE {_THESE_FACES}",
        [list(faces)],
    )


def _remove_derived(catalog: Catalog, faces: Sequence[int]) -> None:
    for table in ("detections", "embeddings", "pending_embeddings", "facts"):
        catalog.execute(f"DELETE FROM core.{table} WHERE {_THESE_FACES}", [list(faces)])
