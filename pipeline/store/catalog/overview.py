"""Small tables for a report page, on the photos of some or all runs of an account.

Empty `run_ids` means all photos, posted ones too. The place of a face: face_id, record_id (the person's record, or
null), media_id, path (null: posted), sha256, x1, y1, x2, y2 in pixels of the upright photo, and pixels (width *
height). The picture of a person: image_guid, image_sha256, image_media_id (its photo); null without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.corrections import TWICE_ALLOWED
from pipeline.store.schema import QUALITY, same_face
from pipeline.types import QUALITIES

_SHOWN: Final = "m.account_id = $account AND (len($runs::VARCHAR[]) = 0 OR list_contains($runs::VARCHAR[], m.run_id))"
_PLACE: Final = (
    "f.face_id, f.person_id::VARCHAR AS record_id, f.media_id, m.path, m.sha256, d.x1, d.y1, d.x2, d.y2,"
    " m.width::BIGINT * m.height AS pixels"
)
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


_CONTENT: Final = "coalesce(m.pixel_hash, m.sha256)"  # equal in copies of a photo
_PERSON: Final = "JOIN core.persons p ON p.person_id = f.person_id"


def _sets_of_roots(roots: str) -> str:
    """The table `sets` for WITH RECURSIVE: person_id and root of all members of these roots' merged sets. Avoids the
    view, which resolves the whole store."""
    return f"""
        sets AS (
            SELECT person_id, person_id AS root FROM ({roots}) t(person_id)
            UNION SELECT p.person_id, s.root FROM core.persons p JOIN sets s ON p.parent_id = s.person_id
        )
    """


_MEASURES: Final = " UNION ALL ".join(f"SELECT '{name}' AS measure, d.{name} AS value {_faces()}" for name in QUALITIES)
# The tables by name; parameters: $generation, $account, $runs, $ids, $most, $width.
_TABLES: Final = {
    # kind, name, count: images by status, faces by outcome, people of the account (merged sets are one) with and
    # without a name.
    "totals": f"""
        WITH images AS (SELECT media_id, status FROM core.media m WHERE {_SHOWN})
        SELECT 'images' AS kind, status AS name, count(*) AS count FROM images GROUP BY ALL
        UNION ALL SELECT 'faces', outcome, count(*) FROM core.faces JOIN images USING (media_id) GROUP BY ALL
        UNION ALL SELECT 'people', if(p.name IS NULL, 'without a name', 'with a name'), count(*)
        FROM core.persons p JOIN core.directories USING (directory_id)
        WHERE account_id = $account AND parent_id IS NULL GROUP BY ALL
    """,
    # year (null: not known), photos.
    "years": f"""
        SELECT year(m.taken_at) AS year, count(DISTINCT m.path) AS photos FROM core.media m WHERE {_SHOWN}
        GROUP BY ALL ORDER BY year NULLS LAST
    """,
    # person_id (root), name, directory, photos, faces, first and last (years of dated photos), picture: the people who
    # are not hidden, in the order and with the numbers of photos of the web page.
    "people_seen": f"""
        WITH RECURSIVE shown AS MATERIALIZED (
            SELECT f.person_id, m.path, year(m.taken_at) AS year
            FROM core.faces f JOIN core.media m ON m.media_id = f.media_id
            WHERE {_SHOWN} AND f.person_id IS NOT NULL
        ), up AS (
            SELECT person_id, parent_id FROM core.persons WHERE person_id IN (SELECT person_id FROM shown)
            UNION SELECT p.person_id, p.parent_id FROM core.persons p JOIN up ON p.person_id = up.parent_id
        ), roots AS (
            SELECT up.person_id, up.person_id AS root FROM up JOIN core.persons p ON p.person_id = up.person_id
            WHERE up.parent_id IS NULL AND NOT coalesce(p.ignored, false)
            UNION SELECT up.person_id, r.root FROM up JOIN roots r ON up.parent_id = r.person_id
        ), seen AS (
            SELECT root, count(DISTINCT path) AS photos, count(*) AS faces, min(year) AS first,
                max(year) AS last
            FROM shown JOIN roots USING (person_id)
            GROUP BY root ORDER BY photos DESC, faces DESC, root LIMIT $most
        )
        SELECT root::VARCHAR AS person_id, p.name, t.name AS directory, photos, faces, first, last, {_PICTURE}
        FROM seen JOIN core.persons p ON p.person_id = seen.root
        JOIN core.directories t ON t.directory_id = p.directory_id {_JOINED_PICTURE}
        ORDER BY photos DESC, faces DESC, root
    """,
    # person_id (one of $ids, roots), place: each person's $most best faces, one per photo, except the photo of the
    # root's stored picture. Copies are one photo.
    "faces_seen": f"""
        WITH RECURSIVE {_sets_of_roots("SELECT unnest($ids::UUID[])")}, stored AS (
            SELECT r.person_id AS root, {_CONTENT} AS content FROM core.reference_faces r
            JOIN core.faces f ON f.face_id = r.face_id JOIN core.media m ON m.media_id = f.media_id
            WHERE r.generation = $generation AND r.person_id IN (SELECT root FROM sets) AND {_CONTENT} IS NOT NULL
        ), best AS (
            SELECT s.root, {_PLACE}, {QUALITY} AS quality
            {_faces("JOIN sets s ON s.person_id = f.person_id")}
                AND m.path IS NOT NULL AND (s.root, {_CONTENT}) NOT IN (FROM stored)
            QUALIFY row_number() OVER (PARTITION BY s.root, {_CONTENT} ORDER BY quality DESC, f.face_id) = 1
        )
        SELECT root::VARCHAR AS person_id, * EXCLUDE (root, quality) FROM best
        QUALIFY row_number() OVER (PARTITION BY root ORDER BY quality DESC, face_id) <= $most
        ORDER BY root, quality DESC, face_id
    """,
    # person_id (one of $ids, roots), directory_id, face_id, file (relative to the store): the references whose
    # embeddings are in shards, without hidden persons.
    "references": f"""
        WITH RECURSIVE {_sets_of_roots("SELECT unnest($ids::UUID[])")}
        SELECT s.root::VARCHAR AS person_id, p.directory_id, r.face_id, h.file
        FROM sets s JOIN core.persons p ON p.person_id = s.root
        JOIN core.reference_faces r ON r.person_id = s.person_id AND r.generation = $generation
        JOIN core.embeddings e ON e.face_id = r.face_id AND e.generation = $generation
        JOIN core.embedding_shards h ON h.embedding_shard_id = e.embedding_shard_id
        WHERE NOT coalesce(p.ignored, false) ORDER BY r.face_id
    """,
    # one, other (of $ids, roots), photos: who are on most photos together.
    "together": f"""
        WITH RECURSIVE {_sets_of_roots("SELECT unnest($ids::UUID[])")}, seen AS MATERIALIZED (
            SELECT DISTINCT s.root, m.path FROM core.faces f JOIN sets s ON s.person_id = f.person_id
            JOIN core.media m ON m.media_id = f.media_id WHERE {_SHOWN}
        )
        SELECT a.root::VARCHAR AS one, b.root::VARCHAR AS other, count(*) AS photos
        FROM seen a JOIN seen b ON b.path = a.path AND b.root > a.root
        GROUP BY ALL ORDER BY photos DESC, one, other LIMIT $most
    """,
    # person_id (one of $ids), name, picture.
    "pictures": f"""
        SELECT p.person_id::VARCHAR AS person_id, p.name, {_PICTURE} FROM core.persons p {_JOINED_PICTURE}
        WHERE p.person_id IN (SELECT unnest($ids::UUID[]))
    """,
    # path, media_id: the account's rows at paths $ids.
    "media_at": """
        SELECT path, media_id FROM core.media WHERE account_id = $account
        AND path IN (SELECT unnest($ids::VARCHAR[]))
    """,
    # similarity_score, person_id, name, picture, place: the matches with the lowest scores.
    "weakest_matches": f"""
        SELECT d.similarity_score, f.person_id::VARCHAR AS person_id, p.name, {_PICTURE}, {_PLACE}
        {_faces(_PERSON, _JOINED_PICTURE)}
            AND f.outcome = 'matched' AND d.similarity_score IS NOT NULL AND m.path IS NOT NULL
        ORDER BY d.similarity_score, f.face_id LIMIT $most
    """,
    # reason, count, place: the first faces rejected for each reason.
    "rejection_samples": f"""
        SELECT reason, count(*) OVER (PARTITION BY reason) AS count, * EXCLUDE (reason)
        FROM (
            SELECT unnest(string_split(d.rejection_reasons, ',')) AS reason, {_PLACE} {_faces()}
            AND f.outcome = 'rejected'
        )
        QUALIFY row_number() OVER (PARTITION BY reason ORDER BY face_id) <= $most ORDER BY reason, face_id
    """,
    # status, count, media_id, path, reason: the first unusable photos of each status.
    "refused_files": f"""
        SELECT status, count(*) OVER (PARTITION BY status) AS count, media_id, path, reason
        FROM core.media m WHERE {_SHOWN} AND reason IS NOT NULL AND path IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY status ORDER BY media_id) <= $most ORDER BY status, media_id
    """,
    # measure, bin, count: how many faces have the measure in [bin, bin + 1) * width. Measures: the qualities of all
    # faces, similarity_score of matched ones.
    "face_histograms": f"""
        SELECT measure, floor(value / $width)::INTEGER AS bin, count(*) AS count
        FROM ({_MEASURES} UNION ALL SELECT 'similarity_score', d.similarity_score {_faces()} AND f.outcome = 'matched')
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
    """One of _TABLES. `ids`: persons or paths; `most`: rows, or rows of each kind; `width`: of histogram bins."""
    sql = _TABLES[name]
    values = {"generation": catalog.generation, "account": account_id, "runs": list(run_ids), "ids": list(ids)}
    values |= {"most": most, "width": width}
    # DuckDB rejects unused parameters.
    used = {place: value for place, value in values.items() if f"${place}" in sql}
    return catalog.read(sql, used)


# Tables for WITH RECURSIVE: `pairs` (one, other, place) of people $1 and $2 (roots), their `sets`, and `together`: the
# photos that show both of a pair by two faces, unless somebody may be twice on them. $3: generation.
_PAIRS: Final = f"""
    pairs AS MATERIALIZED (
        SELECT unnest($1::UUID[]) AS one, unnest($2::UUID[]) AS other, generate_subscripts($1, 1) AS place
    ), {_sets_of_roots("SELECT one FROM pairs UNION SELECT other FROM pairs")}, seen AS MATERIALIZED (
        SELECT s.root, f.media_id, m.path, d.x1, d.y1, d.x2, d.y2
        FROM core.faces f JOIN sets s ON s.person_id = f.person_id JOIN core.media m ON m.media_id = f.media_id
        JOIN core.detections d ON d.face_id = f.face_id AND d.generation = $3
        ANTI JOIN ({TWICE_ALLOWED}) a
            ON a.account_id = m.account_id AND a.directory = m.directory AND a.sha256 = m.sha256
    ), together AS MATERIALIZED (
        SELECT DISTINCT p.place, s.media_id, s.path
        FROM pairs p JOIN seen s ON s.root = p.one JOIN seen t ON t.root = p.other AND t.media_id = s.media_id
        WHERE NOT {same_face("s", "t")}
    )
"""


def known_of_pairs(catalog: Catalog, ones: Sequence[str], others: Sequence[str]) -> pa.Table:
    """stated, photos: for pairs of people (roots), in the given order, whether a not_same constraint exists, and the
    number of `photos_of_pairs`."""
    return catalog.read(
        f"""
        WITH RECURSIVE {_PAIRS}, stated AS (
            SELECT a.root AS one, b.root AS other FROM core.facts t JOIN sets a ON a.person_id = t.person_id
            JOIN sets b ON b.person_id = t.other_id WHERE t.kind = 'not_same'
        )
        SELECT (one, other) IN (FROM stated) OR (other, one) IN (FROM stated) AS stated, coalesce(c.photos, 0) AS photos
        FROM pairs LEFT JOIN (SELECT place, count(*) AS photos FROM together GROUP BY place) c USING (place)
        ORDER BY place
        """,
        [list(ones), list(others), catalog.generation],
    )


def photos_of_pairs(catalog: Catalog, ones: Sequence[str], others: Sequence[str]) -> pa.Table:
    """pair (from 0), media_id, path (null: posted): the photos that show both of a pair of people (roots), by pair.
    Two boxes that overlap by half are one face; photos on which somebody may be twice do not count."""
    return catalog.read(
        f"WITH RECURSIVE {_PAIRS} SELECT place - 1 AS pair, media_id, path FROM together ORDER BY place, media_id",
        [list(ones), list(others), catalog.generation],
    )


def names_of(catalog: Catalog, person_ids: Sequence[str]) -> dict[str, str | None]:
    """person_id -> name, of existing persons."""
    return dict(
        catalog.rows(
            "SELECT person_id::VARCHAR, name FROM core.persons WHERE person_id IN (SELECT unnest(?::UUID[]))",
            [list(person_ids)],
        )
    )
