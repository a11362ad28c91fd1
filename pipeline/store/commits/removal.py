"""Removes replaced references and deleted persons with all that belongs to them. Inside a transaction.

A face of a posted image is deleted, and the image's row with its last face. A face of a run keeps its row, because it
is a fact of the archive. When its person is deleted it loses everything that tells who it was: its outcome becomes
`removed`, without person, score, detection or embedding. The next `fold` takes the vectors out of the immutable
embedding shards and the reference matrix.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pipeline.errors import StoreError
from pipeline.store.catalog import deletes, forgotten, replaced_images
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.corrections import rows_of_json
from pipeline.store.files.objects import object_file

_THESE_PERSONS = "person_id IN (SELECT unnest(?::UUID[]))"
_THESE_FACES = "face_id IN (SELECT unnest(?::BIGINT[]))"
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_THESE_MEDIA = "media_id IN (SELECT unnest(?::BIGINT[]))"
_SHOWING = (  # the corrections of a directory whose rows show one of some persons
    "FROM core.corrections WHERE directory_id = $1 AND correction_id IN (SELECT correction_id FROM ("
    f"SELECT correction_id, unnest(regexp_extract_all(before || after, '{_UUID}')) AS id FROM core.corrections"
    " WHERE directory_id = $1) WHERE id IN (SELECT unnest($2::VARCHAR[])))"
)


def remove_references(catalog: Catalog, directory: int, person_ids: Sequence[str]) -> None:
    """Removes the current references of these persons, if they have any, so that others can take their place.

    Raises StoreError unless each is a person of the directory.
    """
    if not person_ids:
        return
    everybody = catalog.rows(
        "SELECT r.face_id, r.image_guid, p.person_id::VARCHAR FROM core.persons p LEFT JOIN core.reference_faces r"
        f" ON r.person_id = p.person_id AND r.generation = ? WHERE p.directory_id = ? AND p.{_THESE_PERSONS}",
        [catalog.generation, directory, list(person_ids)],
    )
    _require_all(len(everybody), person_ids)
    old = [row for row in everybody if row[0] is not None]
    drop_references(catalog, person_ids)
    faces = catalog.rows(
        "SELECT f.face_id, f.media_id, f.ordinal FROM core.faces f JOIN core.media m ON m.media_id = f.media_id"
        f" WHERE m.run_id IS NULL AND f.{_THESE_FACES}",
        [[face for face, _, _ in old]],
    )
    _remove_posted_faces(catalog, [(face, media) for face, media, _ in faces])
    _forget_labels(catalog, [media for _, media, ordinal in faces if ordinal == 0])


def drop_references(catalog: Catalog, person_ids: Sequence[str], gone: Collection[str] = ()) -> None:
    """Removes the current references of these persons, of whom some are `gone`, and their pictures; not the faces."""
    current = [catalog.generation, list(person_ids)]
    old = catalog.rows(
        f"SELECT image_guid, person_id::VARCHAR FROM core.reference_faces WHERE generation = ? AND {_THESE_PERSONS}",
        current,
    )
    catalog.execute(f"DELETE FROM core.reference_faces WHERE generation = ? AND {_THESE_PERSONS}", current)
    _remove_images(catalog, [guid for guid, _ in old])
    replaced_images.add(catalog, [row for row in old if row[1] not in gone])


def remember_persons(catalog: Catalog, account_id: int, person_ids: Sequence[str]) -> None:
    """Before these persons are deleted: notes their faces, and the photos that show nobody else, as forgotten.

    Not the faces of posted images: a post may be about some faces only, and their ordinals count these.
    """
    rows = catalog.rows(
        "SELECT m.path, m.sha256, f.ordinal,"
        f" count(*) FILTER (WHERE o.person_id IS NOT NULL AND NOT o.{_THESE_PERSONS})"
        " FROM core.faces f JOIN core.media m ON m.media_id = f.media_id JOIN core.faces o ON o.media_id = f.media_id"
        f" WHERE m.sha256 IS NOT NULL AND m.run_id IS NOT NULL AND f.{_THESE_PERSONS}"
        " GROUP BY f.face_id, m.path, m.sha256, f.ordinal",
        [list(person_ids)] * 2,
    )
    faces = [forgotten.face_text(sha256, ordinal) for _, sha256, ordinal, _ in rows]
    alone = [(path, sha256) for path, sha256, _, others in rows if not others and path is not None]
    forgotten.remember(catalog, account_id, forgotten.FACE, faces)
    forgotten.remember(catalog, account_id, forgotten.PATH, [path for path, _ in alone])
    forgotten.remember(catalog, account_id, forgotten.BYTES, [sha256 for _, sha256 in alone])


def remove_persons(catalog: Catalog, directory: int, person_ids: Sequence[str]) -> None:
    """Deletes these persons with their references, their images and all that is stored of their faces.

    Raises StoreError unless each is a person of the directory, and nobody else's parent.
    """
    if not person_ids:
        return
    ids = [list(person_ids)]
    deleted = catalog.one(f"DELETE FROM core.persons WHERE directory_id = ? AND {_THESE_PERSONS}", [directory, *ids])
    _require_all(deleted, person_ids)
    if catalog.rows("SELECT 1 FROM core.persons WHERE parent_id IN (SELECT unnest(?::UUID[])) LIMIT 1", ids):
        raise StoreError(message="A person to be deleted is the parent of another.")
    moved = _moved_away(catalog, directory, person_ids)
    catalog.execute(f"DELETE FROM core.facts WHERE {_THESE_PERSONS} OR other_id IN (SELECT unnest(?::UUID[]))", ids * 2)
    _forget_corrections(catalog, directory, person_ids)
    images = catalog.rows(f"SELECT DISTINCT image_guid FROM core.reference_faces WHERE {_THESE_PERSONS}", ids)
    catalog.execute(f"DELETE FROM core.reference_faces WHERE {_THESE_PERSONS}", ids)
    catalog.execute(f"DELETE FROM core.replaced_images WHERE {_THESE_PERSONS}", ids)
    _remove_images(catalog, [guid for (guid,) in images])
    faces = catalog.rows(
        "SELECT f.face_id, f.media_id, f.ordinal, m.run_id IS NULL FROM core.faces f"
        f" JOIN core.media m ON m.media_id = f.media_id WHERE f.{_THESE_PERSONS}",
        ids,
    )
    # The labels that a manifest or a request gives with an image are of its largest face.
    _forget_labels(catalog, [*moved, *(media for _, media, ordinal, _ in faces if ordinal == 0)])
    _remove_posted_faces(catalog, [(face, media) for face, media, _, posted in faces if posted])
    _blank_run_faces(catalog, [face for face, _, _, posted in faces if not posted])


def _moved_away(catalog: Catalog, directory: int, person_ids: Sequence[str]) -> list[int]:
    """The media whose largest face was one of the persons' before a correction. Their labels may name them."""
    denied = f"SELECT face_id FROM core.facts WHERE kind = 'is_not' AND {_THESE_PERSONS}"
    faces = {face for (face,) in catalog.rows(denied, [list(person_ids)])}
    gone = set(person_ids)
    for (text,) in catalog.rows(f"SELECT before {_SHOWING}", [directory, list(person_ids)]):
        before = rows_of_json(text).faces
        faces.update(face for face, columns in before.items() if columns["person_id"] in gone)
    rows = catalog.rows(f"SELECT media_id FROM core.faces WHERE ordinal = 0 AND {_THESE_FACES}", [sorted(faces)])
    return [media for (media,) in rows]


def _forget_corrections(catalog: Catalog, directory: int, person_ids: Sequence[str]) -> None:
    """Deletes the corrections whose rows show one of the persons: they could not be undone, and may name them."""
    catalog.execute(f"DELETE {_SHOWING}", [directory, list(person_ids)])


def _require_all(count: int, person_ids: Sequence[str]) -> None:
    if count != len(person_ids):
        raise StoreError(message=f"{len(person_ids) - count} of the persons are not in the directory.")


def _remove_images(catalog: Catalog, guids: Sequence[str]) -> None:
    catalog.execute("DELETE FROM core.objects WHERE image_guid IN (SELECT unnest(?::VARCHAR[]))", [list(guids)])
    deletes.add(catalog, [object_file(guid) for guid in guids])


def _remove_posted_faces(catalog: Catalog, faces: Sequence[tuple[int, int]]) -> None:
    """Deletes faces (face id, media id) of posted images, and the images that have no other."""
    if not faces:
        return
    _remove_derived(catalog, [face for face, _ in faces])
    catalog.execute(f"DELETE FROM core.faces WHERE {_THESE_FACES}", [[face for face, _ in faces]])
    media = [[media for _, media in faces]]
    catalog.execute(
        f"DELETE FROM core.media WHERE {_THESE_MEDIA} AND media_id NOT IN"
        f" (SELECT media_id FROM core.faces WHERE {_THESE_MEDIA})",
        media * 2,
    )


def _blank_run_faces(catalog: Catalog, faces: Sequence[int]) -> None:
    if not faces:
        return
    _remove_derived(catalog, faces)
    catalog.execute(
        "UPDATE core.faces SET outcome = 'removed', person_id = NULL, similarity_score = NULL,"
        f" rejection_reasons = NULL WHERE {_THESE_FACES}",
        [list(faces)],
    )


def _remove_derived(catalog: Catalog, faces: Sequence[int]) -> None:
    for table in ("detections", "embeddings", "pending_embeddings", "facts"):
        catalog.execute(f"DELETE FROM core.{table} WHERE {_THESE_FACES}", [list(faces)])


def _forget_labels(catalog: Catalog, media: Sequence[int]) -> None:
    if media:
        labels = "name = NULL, external_id = NULL, extra = NULL"
        catalog.execute(f"UPDATE core.media SET {labels} WHERE {_THESE_MEDIA}", [list(media)])
        catalog.execute(f"UPDATE core.files SET label = NULL WHERE {_THESE_MEDIA}", [list(media)])
