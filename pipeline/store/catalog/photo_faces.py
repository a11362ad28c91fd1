"""The faces of photos, by their paths, for those who judge or compare what a store holds.

The latest row of a path counts. A photo that shows a removed face is marked `deleted`: which of its faces was
nearest the centre, and how many there were, nobody can tell any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from pipeline.store.catalog.connection import Catalog
from pipeline.store.records import QUALITIES, PhotoRecord
from pipeline.types import DUPLICATE_ROW

# A table of media_id: the latest row of each path in a directory ($2) of an account ($1).
_LATEST_ROWS: Final = f"""
    SELECT max(media_id) AS media_id FROM core.media
    WHERE account_id = $1 AND directory = $2 AND path IS NOT NULL AND status <> '{DUPLICATE_ROW}'
    GROUP BY path
"""
_DELETED: Final = "m.media_id IN (SELECT media_id FROM core.faces WHERE outcome = 'removed') AS deleted"
# The face whose centre lies nearest the photo's centre (squares of twice the distance, which order alike); of faces
# that are equally near the larger one, which has the lower id.
_NEAREST: Final = """
    QUALIFY row_number() OVER (
        PARTITION BY m.media_id
        ORDER BY (f.x1 + f.x2 - m.width) ** 2 + (f.y1 + f.y2 - m.height) ** 2, f.face_id
    ) = 1
"""


def detected_faces(catalog: Catalog, account_id: int, directory: str) -> pa.Table:
    """path, status, reason, deleted, x1, y1, x2, y2, confidence: a row for each face of each photo of a directory,
    rejected ones too, by path; one without box where a photo shows none."""
    return catalog.read(
        f"""
        SELECT m.path, m.status, m.reason, {_DELETED}, f.x1, f.y1, f.x2, f.y2, f.confidence
        FROM ({_LATEST_ROWS}) JOIN core.media m USING (media_id) LEFT JOIN main.faces f ON f.media_id = m.media_id
        ORDER BY m.path, f.face_id
        """,
        [account_id, directory],
    )


def central_identities(catalog: Catalog, account_id: int, directory: str) -> pa.Table:
    """path, status, reason, deleted, identity, faces: a row for each photo of a directory, with the identity (of a
    merged one its root) of the face nearest the centre, and the number of faces."""
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
    """media_id, path, status, reason, face_id, qualities, file, deleted: a row for each of the photos, with the face
    nearest the centre, in whatever directory, and its embedding shard (null: none, the gate rejected the face).

    The rows with the latest bytes of a path count, and among their faces one whose embedding is stored comes first: the
    gate of another directory may have rejected it. A row with a path is of a run, so its embeddings are never pending.
    """
    return catalog.read(
        f"""
        WITH wanted AS (SELECT DISTINCT unnest($2::VARCHAR[]) AS path),
        latest AS (
            SELECT m.* FROM core.media m WHERE m.path IN (SELECT path FROM wanted) AND m.status <> '{DUPLICATE_ROW}'
            QUALIFY sha256 IS NOT DISTINCT FROM first_value(sha256) OVER (PARTITION BY path ORDER BY media_id DESC)
        ),
        nearest AS (
            SELECT m.media_id, m.path, m.status, m.reason, f.face_id, f.{", f.".join(QUALITIES)}
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


def named_photos(catalog: Catalog, account_id: int, directory: str) -> dict[str, str]:
    """path -> name, by path, for the photos of a directory that a run got a name with."""
    rows = catalog.rows(
        f"""
        SELECT path, name FROM ({_LATEST_ROWS}) JOIN core.media USING (media_id) WHERE name IS NOT NULL ORDER BY path
        """,
        [account_id, directory],
    )
    return dict(rows)


def photo_records(catalog: Catalog) -> dict[str, PhotoRecord]:
    """What became of each file of every account and directory, by path: its last row."""
    rows = catalog.rows(
        """
        SELECT m.path, m.status, (SELECT count(*) FROM core.faces c WHERE c.media_id = m.media_id),
            f.person_id::VARCHAR, nullif(f.rejection_reasons, '')
        FROM core.media m LEFT JOIN core.faces f ON f.media_id = m.media_id AND f.ordinal = 0
        QUALIFY row_number() OVER (PARTITION BY m.path ORDER BY m.media_id DESC) = 1
        ORDER BY m.path
        """
    )
    return {path: PhotoRecord(*values) for path, *values in rows}
