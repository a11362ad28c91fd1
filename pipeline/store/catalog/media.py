"""Images and their faces: to avoid repeated work in runs, and to evaluate a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.references import load_embeddings
from pipeline.store.files.shards import embedding_rows
from pipeline.store.records import StoredPhoto
from pipeline.store.schema import embedded
from pipeline.types import DRAWN, DUPLICATE, DUPLICATE_ROW, NO_FACE, OK, QUALITIES, IntArray

_THESE_MEDIA = "media_id IN (SELECT unnest(?::BIGINT[]))"


def media_of_hashes(catalog: Catalog, account_id: int, hashes: Sequence[str]) -> dict[str, int]:
    """sha256 -> media_id of the first row with these bytes whose detected faces all have a stored embedding.

    Only rows of this account (accounts must not learn of each other's photos) and of runs (posted images only have
    faces that became references).
    """
    with catalog.tables(wanted_hashes=pa.table({"sha256": pa.array(list(hashes), pa.string())})):
        rows = catalog.rows(
            """
            WITH same AS MATERIALIZED (
                SELECT media_id, sha256 FROM core.media
                WHERE sha256 IN (SELECT sha256 FROM wanted_hashes) AND account_id = ? AND status IN (?, ?, ?)
                AND run_id IS NOT NULL
            ), theirs AS MATERIALIZED (
                SELECT media_id, face_id FROM core.faces
                WHERE media_id IN (SELECT media_id FROM same) AND outcome <> ?
            ), stored AS (
                SELECT face_id FROM core.embeddings
                WHERE generation = ? AND face_id IN (SELECT face_id FROM theirs)
                UNION ALL SELECT face_id FROM core.pending_embeddings WHERE generation = ?
            )
            SELECT sha256, min(media_id) FROM same WHERE media_id NOT IN
                (SELECT media_id FROM theirs WHERE face_id NOT IN (SELECT face_id FROM stored))
            GROUP BY sha256
            """,
            [account_id, OK, NO_FACE, DUPLICATE, DRAWN, catalog.generation, catalog.generation],
        )
    return {sha256: int(media_id) for sha256, media_id in rows}


def faces_of_media(catalog: Catalog, media_ids: Sequence[int]) -> pa.Table:
    """media_id, ordinal, the detection's columns, pixel_hash, width, height, format, embedding, other: these media's
    detected faces, by media_id and ordinal. `other`: the fields of `Measured`.

    Raises StoreDamaged if a face has no stored embedding.
    """
    with catalog.tables(wanted_media=pa.table({"media_id": pa.array(list(media_ids), pa.int64())})):
        table = catalog.read(
            """
            SELECT f.face_id, f.media_id, f.ordinal, d.* EXCLUDE (generation, face_id),
                m.pixel_hash, m.width, m.height, m.format
            FROM core.faces f
            JOIN core.media m ON m.media_id = f.media_id
            JOIN core.detections d ON d.face_id = f.face_id AND d.generation = ?
            WHERE f.media_id IN (SELECT media_id FROM wanted_media) AND f.outcome <> ?
            ORDER BY f.media_id, f.ordinal
            """,
            [catalog.generation, DRAWN],
        )
    face_ids = table["face_id"].to_numpy()
    embeddings = embedding_rows(face_ids, load_embeddings(catalog, face_ids))["embedding"]
    table = table.append_column("other", _others(catalog, face_ids))
    return table.drop_columns(["face_id"]).append_column("embedding", embeddings)


def _others(catalog: Catalog, face_ids: IntArray) -> pa.Array:
    """The faces in the other generation; null if there is none, or if the face has no vector there."""
    others: dict[int, dict[str, Any]] = {}
    if catalog.other is not None:
        model = catalog.other.identity.model
        with catalog.at(catalog.other.number), catalog.tables(known_faces=pa.table({"face_id": face_ids})):
            rows = catalog.rows(
                f"""
                SELECT face_id, {", ".join(QUALITIES)} FROM known_faces JOIN core.detections d USING (face_id)
                WHERE d.generation = $1 AND face_id IN ({embedded()})
                """,
                [catalog.generation],
            )
            vectors = load_embeddings(catalog, np.array([face_id for face_id, *_ in rows], np.int64))
        for (face_id, *qualities), vector in zip(rows, vectors, strict=True):
            others[face_id] = {"model": model, "qualities": qualities, "embedding": vector}
    return pa.array([others.get(face_id) for face_id in face_ids.tolist()])


def whole_images(catalog: Catalog, media_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """media_id -> pixel_hash, width, height, format, taken_at. Includes images without faces; omits those with a
    removed face, which only decoding shows again."""
    sql = f"""
        SELECT media_id, pixel_hash, width, height, format, taken_at FROM core.media WHERE {_THESE_MEDIA}
            AND media_id NOT IN (SELECT media_id FROM core.faces WHERE outcome = 'removed' AND {_THESE_MEDIA})
    """
    return {row.pop("media_id"): row for row in catalog.read(sql, [list(media_ids)] * 2).to_pylist()}


def media_of_rows(catalog: Catalog, run_id: str, rows: Sequence[int]) -> dict[int, int]:
    """Manifest row -> media_id, for the committed ones of these rows."""
    sql = "SELECT row, media_id FROM core.media WHERE run_id = ? AND row IN (SELECT unnest(?::BIGINT[]))"
    return dict(catalog.rows(sql, [run_id, list(rows)])) if rows else {}


# Faces of photos by path; the latest row of a path counts. Photos with a removed face are `deleted`: their number of
# faces, and the most central one, are unknown.

# media_id of the latest row of each path in directory $2 of account $1.
_LATEST_ROWS: Final = f"""
    SELECT max(media_id) AS media_id FROM core.media
    WHERE account_id = $1 AND directory = $2 AND path IS NOT NULL AND status <> '{DUPLICATE_ROW}'
    GROUP BY path
"""
_DELETED: Final = "m.media_id IN (SELECT media_id FROM core.faces WHERE outcome = 'removed') AS deleted"
# The face with its centre nearest the photo's (compares squares of twice the distance); ties go to the larger face,
# which has the lower id.
_NEAREST: Final = """
    QUALIFY row_number() OVER (
        PARTITION BY m.media_id
        ORDER BY (f.x1 + f.x2 - m.width) ** 2 + (f.y1 + f.y2 - m.height) ** 2, f.face_id
    ) = 1
"""


def detected_faces(catalog: Catalog, account_id: int, directory: str) -> pa.Table:
    """path, status, reason, deleted, x1, y1, x2, y2, confidence: all detected faces of a directory's photos, rejected
    ones too, by path; one row without box for a photo without any."""
    return catalog.read(
        f"""
        SELECT m.path, m.status, m.reason, {_DELETED}, f.x1, f.y1, f.x2, f.y2, f.confidence
        FROM ({_LATEST_ROWS}) JOIN core.media m USING (media_id) LEFT JOIN main.faces f ON f.media_id = m.media_id
            AND f.outcome <> '{DRAWN}'
        ORDER BY m.path, f.face_id
        """,
        [account_id, directory],
    )


def central_identities(catalog: Catalog, account_id: int, directory: str) -> pa.Table:
    """path, status, reason, deleted, identity, faces: per photo of a directory, the identity (a merged set's root) of
    the most central face, and the number of faces."""
    return catalog.read(
        f"""
        SELECT m.path, m.status, m.reason, {_DELETED}, p.root_person_id AS identity,
            count(f.face_id) OVER (PARTITION BY m.media_id) AS faces
        FROM ({_LATEST_ROWS}) JOIN core.media m USING (media_id)
        LEFT JOIN main.faces f ON f.media_id = m.media_id
        LEFT JOIN main.persons p ON p.person_id = f.person_id
        {_NEAREST}
        """,
        [account_id, directory],
    )


def central_faces(catalog: Catalog, paths: Sequence[str]) -> pa.Table:
    """media_id, path, status, reason, face_id, file, deleted: per path, in any directory, the most central face and its
    embedding shard (null if the quality gate rejected it).

    Uses the rows with a path's latest bytes, and prefers a face with a stored embedding: another directory's gate may
    have rejected it. A pending embedding counts as none.
    """
    return catalog.read(
        f"""
        WITH wanted AS (SELECT DISTINCT unnest($2::VARCHAR[]) AS path),
        latest AS (
            SELECT m.* FROM core.media m WHERE m.path IN (SELECT path FROM wanted) AND m.status <> '{DUPLICATE_ROW}'
            QUALIFY sha256 IS NOT DISTINCT FROM first_value(sha256) OVER (PARTITION BY path ORDER BY media_id DESC)
        ),
        nearest AS (
            SELECT m.media_id, m.path, m.status, m.reason, f.face_id
            FROM latest m LEFT JOIN main.faces f ON f.media_id = m.media_id
            {_NEAREST}
        )
        SELECT m.*, s.file, {_DELETED}
        FROM nearest m
        LEFT JOIN core.embeddings e ON e.face_id = m.face_id AND e.generation = $1
        LEFT JOIN core.embedding_shards s ON s.embedding_shard_id = e.embedding_shard_id
        QUALIFY row_number() OVER (PARTITION BY m.path ORDER BY s.file IS NULL, m.media_id DESC) = 1
        """,
        [catalog.generation, list(paths)],
    )


def photos_at(catalog: Catalog, account_id: int, directory: str, paths: Sequence[str]) -> pa.Table:
    """path, media_id: the latest row of each of these paths in the directory, if there is one."""
    return catalog.read(
        "SELECT path, max(media_id) AS media_id FROM core.media WHERE account_id = ? AND directory = ?"
        " AND path IN (SELECT unnest(?::VARCHAR[])) AND status <> ? GROUP BY path",
        [account_id, directory, list(paths), DUPLICATE_ROW],
    )


def named_photos(catalog: Catalog, account_id: int, directory: str) -> pa.Table:
    """path, name: the directory's photos with a name from a run, by path."""
    return catalog.read(
        f"""
        SELECT path, name FROM ({_LATEST_ROWS}) JOIN core.media USING (media_id) WHERE name IS NOT NULL ORDER BY path
        """,
        [account_id, directory],
    )


def photo_records(catalog: Catalog) -> pa.Table:
    """path and the fields of PhotoRecord, from the last row of each file, in all accounts and directories."""
    return catalog.read(
        """
        SELECT m.path, m.status, (SELECT count(*) FROM core.faces c WHERE c.media_id = m.media_id) AS faces,
            f.person_id::VARCHAR AS person_id, nullif(d.rejection_reasons, '') AS rejection
        FROM core.media m LEFT JOIN core.faces f ON f.media_id = m.media_id AND f.ordinal = 0
        LEFT JOIN core.detections d ON d.face_id = f.face_id AND d.generation = $1
        QUALIFY row_number() OVER (PARTITION BY m.path ORDER BY m.media_id DESC) = 1
        ORDER BY m.path
        """,
        [catalog.generation],
    )


def photos(catalog: Catalog, account_id: int, directory: str, media_ids: Sequence[int]) -> list[StoredPhoto]:
    """These photos of a directory, without ones that could not be used, repeat another row, or were forgotten or
    replaced."""
    rows = catalog.rows(
        f"""
        WITH wanted AS MATERIALIZED (
            SELECT media_id, path, sha256, pixel_hash, width, height FROM core.media
            WHERE account_id = $1 AND directory = $2 AND status IN ('{OK}', '{NO_FACE}', '{DUPLICATE}')
            AND media_id IN (SELECT unnest($3::BIGINT[]))
        ), ordinals AS (
            SELECT m.sha256, max(f.ordinal) AS last FROM core.media m JOIN core.faces f USING (media_id)
            WHERE m.account_id = $1 AND m.sha256 IN (SELECT sha256 FROM wanted) GROUP BY m.sha256
        )
        SELECT w.*, coalesce(o.last, 0) + 1 FROM wanted w LEFT JOIN ordinals o USING (sha256)
        WHERE w.path IS NOT NULL ORDER BY w.media_id
        """,
        [account_id, directory, list(media_ids)],
    )
    return [StoredPhoto(*row) for row in rows]
