"""The people of a directory, and the photos that show them, as commands list them. A merged set is one person."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.directories import directory_id


def people(catalog: Catalog, account_id: int, directory: str) -> pa.Table:
    """person_id, root_person_id, name, external_id, hidden, occurrence, faces, photos, added_at: a row for each record,
    by age. Faces and photos are those of the record itself."""
    return catalog.read(
        """
        SELECT v.person_id, v.root_person_id, p.name, p.external_id, coalesce(p.ignored, false) AS hidden, p.occurrence,
            coalesce(f.faces, 0) AS faces, coalesce(f.photos, 0) AS photos, p.added_at
        FROM core.persons p JOIN main.persons v ON v.person_id = p.person_id::VARCHAR
        LEFT JOIN (
            SELECT person_id, count(*) AS faces, count(DISTINCT m.path) AS photos
            FROM core.faces JOIN core.media m USING (media_id) WHERE person_id IS NOT NULL GROUP BY person_id
        ) f ON f.person_id = p.person_id
        WHERE p.directory_id = ? ORDER BY p.seq
        """,
        [directory_id(catalog, account_id, directory)],
    )


def faces_of_people(catalog: Catalog, person_ids: Sequence[str]) -> pa.Table:
    """face_id, person_id, path, outcome, similarity_score, x1, y1, x2, y2, reference, stated: the faces of these
    records by path (null: posted). `reference`: the record is known by it; `stated`: a correction says who it is."""
    return catalog.read(
        """
        SELECT f.face_id, f.person_id::VARCHAR AS person_id, m.path, f.outcome, f.similarity_score,
            d.x1, d.y1, d.x2, d.y2,
            f.face_id IN (SELECT face_id FROM core.reference_faces WHERE generation = $1) AS reference,
            f.face_id IN (SELECT face_id FROM core.facts WHERE kind = 'is') AS stated
        FROM core.faces f JOIN core.media m USING (media_id)
        JOIN core.detections d ON d.face_id = f.face_id AND d.generation = $1
        WHERE f.person_id IN (SELECT unnest($2::UUID[])) ORDER BY m.path, f.face_id
        """,
        [catalog.generation, list(person_ids)],
    )
