"""What the catalog has of images and their faces, so that no work is done twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pipeline.errors import ImageChanged
from pipeline.store.catalog import runs
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.references import load_embeddings
from pipeline.store.records import COMMITTED_FILES_SCHEMA, faces_of_media_schema
from pipeline.types import DUPLICATE, NO_FACE, OK

_THESE_MEDIA = "media_id IN (SELECT unnest(?::BIGINT[]))"


def committed_files(catalog: Catalog, source: str, account_id: int) -> pa.Table:
    """COMMITTED_FILES_SCHEMA: every (path, directory, sha256) committed from this source, the latest last.

    A file that could not be read has no hash and is listed all the same, so that no run tries it again. Only a file
    that changed while a run was at work is left out, so that the next run takes it.
    """
    condition, params = runs.of_source(source, account_id)
    table = catalog.read(
        f"""
        SELECT path, directory, sha256 FROM core.media
        WHERE (sha256 IS NOT NULL OR status <> '{ImageChanged.status}')
        AND run_id IN (SELECT run_id FROM core.runs WHERE {condition})
        GROUP BY path, directory, sha256 ORDER BY max(media_id)
        """,
        params,
    )
    return table.cast(COMMITTED_FILES_SCHEMA)


def media_of_hashes(catalog: Catalog, account_id: int, hashes: Sequence[str]) -> dict[str, int]:
    """sha256 -> media_id of the first row with these bytes whose faces all have a stored embedding.

    Only rows of the account: nothing may tell one account what another one holds. And only rows of runs: the row of a
    posted image has only those of its faces that became references.
    """
    with catalog.tables(wanted_hashes=pa.table({"sha256": pa.array(list(hashes), pa.string())})):
        rows = catalog.rows(
            """
            WITH same AS MATERIALIZED (
                SELECT media_id, sha256 FROM core.media
                WHERE sha256 IN (SELECT sha256 FROM wanted_hashes) AND account_id = ? AND status IN (?, ?, ?)
                AND run_id IS NOT NULL
            ), theirs AS MATERIALIZED (
                SELECT media_id, face_id FROM core.faces WHERE media_id IN (SELECT media_id FROM same)
            ), stored AS (
                SELECT face_id FROM core.embeddings
                WHERE generation = ? AND face_id IN (SELECT face_id FROM theirs)
                UNION ALL SELECT face_id FROM core.pending_embeddings WHERE generation = ?
            )
            SELECT sha256, min(media_id) FROM same WHERE media_id NOT IN
                (SELECT media_id FROM theirs WHERE face_id NOT IN (SELECT face_id FROM stored))
            GROUP BY sha256
            """,
            [account_id, OK, NO_FACE, DUPLICATE, catalog.generation, catalog.generation],
        )
    return {sha256: int(media_id) for sha256, media_id in rows}


def faces_of_media(catalog: Catalog, media_ids: Sequence[int]) -> pa.Table:
    """faces_of_media_schema(d): all faces of these media that have detections, by media_id and ordinal.

    Raises StoreDamaged where a face has no stored embedding.
    """
    with catalog.tables(wanted_media=pa.table({"media_id": pa.array(list(media_ids), pa.int64())})):
        table = catalog.read(
            """
            SELECT f.face_id, f.media_id, f.ordinal, d.* EXCLUDE (generation, face_id),
                m.pixel_sha256, m.width, m.height, m.format
            FROM core.faces f
            JOIN core.media m ON m.media_id = f.media_id
            JOIN core.detections d ON d.face_id = f.face_id AND d.generation = ?
            WHERE f.media_id IN (SELECT media_id FROM wanted_media)
            ORDER BY f.media_id, f.ordinal
            """,
            [catalog.generation],
        )
    size = catalog.identity.embedding_size
    vectors = load_embeddings(catalog, table["face_id"].to_numpy())
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1), pa.float32()), size)
    columns = faces_of_media_schema(size)
    return table.append_column("embedding", column).select(columns.names).cast(columns)


def media_with_removed_faces(catalog: Catalog, media_ids: Sequence[int]) -> set[int]:
    """Those of the images that lost a face with its person: only their pixels show it again."""
    sql = f"SELECT DISTINCT media_id FROM core.faces WHERE outcome = 'removed' AND {_THESE_MEDIA}"
    return {media_id for (media_id,) in catalog.rows(sql, [list(media_ids)])}


def images_of_media(catalog: Catalog, media_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """media_id -> pixel_sha256, width, height and format, also of images without a face."""
    sql = f"SELECT media_id, pixel_sha256, width, height, format FROM core.media WHERE {_THESE_MEDIA}"
    return {row.pop("media_id"): row for row in catalog.read(sql, [list(media_ids)]).to_pylist()}


def media_of_rows(catalog: Catalog, run_id: str, rows: Sequence[int]) -> dict[int, int]:
    """Row of the run's manifest -> media_id, for those of the rows that are in."""
    sql = "SELECT row, media_id FROM core.media WHERE run_id = ? AND row IN (SELECT unnest(?::BIGINT[]))"
    return dict(catalog.rows(sql, [run_id, list(rows)])) if rows else {}
