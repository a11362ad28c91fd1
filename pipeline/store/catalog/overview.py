"""What a page shows of the photos of some runs of an account, or of all of them: tables with few rows.

`run_ids`: none means all photos, also those that were posted. The place of a face: face_id, record_id (the person's
record; null: nobody's), media_id, path (null: it was posted), sha256, x1, y1, x2, y2 in pixels of the upright photo,
and the photo's pixels (width * height). The picture of a person: image_guid, image_sha256, and the image_media_id that
it was cut from (null: there is none).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from pipeline.store.catalog.connection import Catalog
from pipeline.types import QUALITIES

_SHOWN: Final = "m.account_id = $account AND (len($runs::VARCHAR[]) = 0 OR list_contains($runs::VARCHAR[], m.run_id))"
_PLACE: Final = (
    "f.face_id, f.person_id::VARCHAR AS record_id, f.media_id, m.path, m.sha256, d.x1, d.y1, d.x2, d.y2,"
    " m.width::BIGINT * m.height AS pixels"
)
_QUALITY: Final = " * ".join(f"d.{name}" for name in QUALITIES)
_JOINED_PICTURE: Final = (
    "LEFT JOIN core.reference_faces r ON r.person_id = p.person_id AND r.generation = $generation"
    " LEFT JOIN core.objects o ON o.image_guid = r.image_guid LEFT JOIN core.faces i ON i.face_id = r.face_id"
)
_PICTURE: Final = "o.image_guid, o.sha256 AS image_sha256, i.media_id AS image_media_id"


def _faces(*joins: str) -> str:
    """Faces f of the account's media m in these runs, with detections d."""
    return f"""
        FROM core.faces f JOIN core.media m ON m.media_id = f.media_id
        JOIN core.detections d ON d.face_id = f.face_id AND d.generation = $generation {" ".join(joins)}
        WHERE {_SHOWN}
    """


_PERSON: Final = "JOIN core.persons p ON p.person_id = f.person_id"
_ROOT: Final = "JOIN main.persons v ON v.person_id = f.person_id::VARCHAR"
_MEASURES: Final = " UNION ALL ".join(f"SELECT '{name}' AS measure, d.{name} AS value {_faces()}" for name in QUALITIES)
# The tables of a page. Their places: $generation, $account, $runs, $ids, $most and $width.
_TABLES: Final = {
    # kind, name, count: images by status, faces by outcome, and all people of the account (a merged set is one) by
    # whether they have a name.
    "totals": f"""
        WITH images AS (SELECT media_id, status FROM core.media m WHERE {_SHOWN})
        SELECT 'images' AS kind, status AS name, count(*) AS count FROM images GROUP BY ALL
        UNION ALL SELECT 'faces', outcome, count(*) FROM core.faces JOIN images USING (media_id) GROUP BY ALL
        UNION ALL SELECT 'people', if(p.name IS NULL, 'without a name', 'with a name'), count(*)
        FROM core.persons p JOIN core.directories USING (directory_id)
        WHERE account_id = $account AND parent_id IS NULL GROUP BY ALL
    """,
    # The account's last runs, the latest first.
    "last_runs": """
        SELECT run_id, source, started_at, rows, state FROM core.runs WHERE account_id = $account
        ORDER BY started_at DESC, run_id LIMIT $most
    """,
    # person_id (of a merged set the root), name, directory, photos, faces, picture: those whom most photos show.
    "people_seen": f"""
        WITH seen AS (
            SELECT v.root_person_id::UUID AS root, count(DISTINCT m.media_id) AS photos, count(*) AS faces
            FROM core.faces f JOIN core.media m ON m.media_id = f.media_id {_ROOT}
            WHERE {_SHOWN}
            GROUP BY root ORDER BY photos DESC, root LIMIT $most
        )
        SELECT root::VARCHAR AS person_id, p.name, t.name AS directory, photos, faces, {_PICTURE}
        FROM seen JOIN core.persons p ON p.person_id = seen.root
        JOIN core.directories t ON t.directory_id = p.directory_id {_JOINED_PICTURE}
        ORDER BY photos DESC, root
    """,
    # person_id (one of $ids, which are roots), and the place of the faces of best quality, $most of each, one a photo,
    # but for those whose pictures are stored.
    "faces_seen": f"""
        SELECT v.root_person_id AS person_id, {_PLACE}
        {_faces(_ROOT)}
            AND m.path IS NOT NULL AND list_contains($ids::VARCHAR[], v.root_person_id)
            AND f.face_id NOT IN (SELECT face_id FROM core.reference_faces WHERE generation = $generation)
        QUALIFY row_number() OVER (PARTITION BY m.media_id, v.root_person_id ORDER BY {_QUALITY} DESC, f.face_id) = 1
            AND row_number() OVER (PARTITION BY v.root_person_id ORDER BY {_QUALITY} DESC, f.face_id) <= $most
        ORDER BY v.root_person_id, {_QUALITY} DESC, f.face_id
    """,
    # person_id (of a merged set the root), name, directory_id, picture, face_id and file (relative to the store): a row
    # for each reference, whose embedding is in the file, of the people who were seen most often, at most $most rows,
    # and of $ids. Without those who are hidden, and references that wait for compaction.
    "compared_people": f"""
        WITH records AS (
            SELECT p.person_id, p.occurrence, v.root_person_id::UUID AS root,
                list_contains($ids::VARCHAR[], v.root_person_id) AS asked
            FROM core.persons p JOIN main.persons v ON v.person_id = p.person_id::VARCHAR
            JOIN core.directories t ON t.directory_id = p.directory_id WHERE t.account_id = $account
        ), chosen AS (
            SELECT * FROM records
            QUALIFY asked OR row_number() OVER (ORDER BY occurrence DESC, person_id) <= $most
        )
        SELECT c.root::VARCHAR AS person_id, p.name, p.directory_id, {_PICTURE}, w.face_id, s.file
        FROM chosen c JOIN core.persons p ON p.person_id = c.root
        JOIN core.reference_faces w ON w.person_id = c.person_id AND w.generation = $generation
        JOIN core.embeddings e ON e.face_id = w.face_id AND e.generation = $generation
        JOIN core.embedding_shards s ON s.embedding_shard_id = e.embedding_shard_id
        {_JOINED_PICTURE}
        WHERE NOT coalesce(p.ignored, false) ORDER BY w.face_id
    """,
    # path, media_id: the account's rows at the paths $ids.
    "media_at": """
        SELECT path, media_id FROM core.media WHERE account_id = $account
        AND path IN (SELECT unnest($ids::VARCHAR[]))
    """,
    # similarity_score, person_id, name and picture (of the person), and the place of the face: the lowest scores.
    "weakest_matches": f"""
        SELECT f.similarity_score, f.person_id::VARCHAR AS person_id, p.name, {_PICTURE}, {_PLACE}
        {_faces(_PERSON, _JOINED_PICTURE)}
            AND f.outcome = 'matched' AND f.similarity_score IS NOT NULL AND m.path IS NOT NULL
        ORDER BY f.similarity_score, f.face_id LIMIT $most
    """,
    # reason, its count, and the place of the first faces that were rejected for it.
    "rejection_samples": f"""
        SELECT reason, count(*) OVER (PARTITION BY reason) AS count, * EXCLUDE (reason)
        FROM (
            SELECT unnest(string_split(f.rejection_reasons, ',')) AS reason, {_PLACE} {_faces()}
            AND f.outcome = 'rejected'
        )
        QUALIFY row_number() OVER (PARTITION BY reason ORDER BY face_id) <= $most ORDER BY reason, face_id
    """,
    # status, its count, and path and reason of the first photos that could not be used for it.
    "refused_files": f"""
        SELECT status, count(*) OVER (PARTITION BY status) AS count, media_id, path, reason
        FROM core.media m WHERE {_SHOWN} AND reason IS NOT NULL AND path IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY status ORDER BY media_id) <= $most ORDER BY status, media_id
    """,
    # measure, bin, count: how many faces have the measure in [bin, bin + 1) * width. The measures: the three qualities
    # of all faces, and similarity_score of those that matched.
    "face_histograms": f"""
        SELECT measure, floor(value / $width)::INTEGER AS bin, count(*) AS count
        FROM ({_MEASURES} UNION ALL SELECT 'similarity_score', f.similarity_score {_faces()} AND f.outcome = 'matched')
        WHERE value IS NOT NULL GROUP BY ALL ORDER BY ALL
    """,
}


def page_table(
    catalog: Catalog,
    name: str,
    account_id: int,
    run_ids: Sequence[str] = (),
    *,
    ids: Sequence[str] = (),
    most: int = 0,
    width: float = 0.0,
) -> pa.Table:
    """One of the tables of a page. `ids`: of persons, or paths; `most`: rows, or rows of each kind; `width`: of a
    histogram's bins."""
    sql = _TABLES[name]
    values = {"generation": catalog.generation, "account": account_id, "runs": list(run_ids), "ids": list(ids)}
    values |= {"most": most, "width": width}
    # DuckDB refuses a value that the query has no place for.
    used = {place: value for place, value in values.items() if f"${place}" in sql}
    return catalog.read(sql, used)


def known_of_pairs(catalog: Catalog, ones: Sequence[str], others: Sequence[str]) -> pa.Table:
    """one, other, stated, photos: of pairs of people (of merged sets the roots) whether a user stated that they are
    two, and how many photos show both; in the order given."""
    return catalog.read(
        """
        WITH pairs AS MATERIALIZED (
            SELECT unnest($1::VARCHAR[]) AS one, unnest($2::VARCHAR[]) AS other, generate_subscripts($1, 1) AS place
        ), records AS MATERIALIZED (
            SELECT person_id::UUID AS person_id, root_person_id AS root FROM main.persons
            WHERE root_person_id IN (SELECT unnest($1::VARCHAR[]) UNION SELECT unnest($2::VARCHAR[]))
        ), stated AS (
            SELECT a.root AS one, b.root AS other FROM core.facts t JOIN records a ON a.person_id = t.person_id
            JOIN records b ON b.person_id = t.other_id WHERE t.kind = 'not_same'
        ), seen AS MATERIALIZED (SELECT DISTINCT r.root, f.media_id FROM core.faces f JOIN records r USING (person_id))
        SELECT one, other, (one, other) IN (FROM stated) OR (other, one) IN (FROM stated) AS stated,
            (SELECT count(*) FROM seen s JOIN seen t USING (media_id) WHERE s.root = one AND t.root = other) AS photos
        FROM pairs ORDER BY place
        """,
        [list(ones), list(others)],
    )


def names_of(catalog: Catalog, person_ids: Sequence[str]) -> dict[str, str | None]:
    """person_id -> name, of those who are there."""
    return dict(
        catalog.rows(
            "SELECT person_id::VARCHAR, name FROM core.persons WHERE person_id IN (SELECT unnest(?::UUID[]))",
            [list(person_ids)],
        )
    )
