"""The catalog's tables, their version, and the public views (FORMAT.md).

No foreign keys: DuckDB checks them against the state before the transaction, so one transaction could not insert or
delete a parent with its child. No primary keys on large tables: their index would stay in memory. Ids come from
counters in the same transaction. `check` verifies both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from pipeline.types import QUALITIES

FORMAT_VERSION: Final = 1  # of the folder's layout; raised if older readers would fail
SCHEMA_VERSION: Final = 12  # of the tables; opening a store upgrades it
MAX_DIRECTORIES: Final = 10  # per account, with identities


def embedded(generation: int | str = "$1") -> str:
    """SQL: the faces with a vector in a generation."""
    return f"""
        SELECT face_id FROM core.embeddings WHERE generation = {generation}
        UNION ALL SELECT face_id FROM core.pending_embeddings WHERE generation = {generation}
    """


def same_face(one: str, other: str) -> str:
    """SQL: whether the boxes of two faces of an image overlap by half, so that they are one face."""
    sides = (
        f"greatest(least({one}.{end}2, {other}.{end}2)::DOUBLE - greatest({one}.{end}1, {other}.{end}1), 0)"
        for end in ("x", "y")
    )
    both = " * ".join(sides)
    areas = " + ".join(f"({a}.x2::DOUBLE - {a}.x1) * ({a}.y2::DOUBLE - {a}.y1)" for a in (one, other))
    return f"coalesce({both} / ({areas} - {both}) >= 0.5, false)"


# SQL: the quality of a face, from its row `d` of core.detections.
QUALITY: Final = " * ".join(f"d.{name}" for name in QUALITIES)

# table -> columns with types
_COLUMNS: Final = {
    "store": """
        format_version INTEGER, schema_version INTEGER, created_at TIMESTAMP, current_generation INTEGER,
        encrypted BOOLEAN, master_key_id VARCHAR, pixel_key VARCHAR,
        next_media_id BIGINT, next_face_id BIGINT, next_person_seq BIGINT,
        next_correction_id BIGINT, fact_key VARCHAR, changes_from BIGINT, erase_since TIMESTAMP,
        receipt_key VARCHAR
    """,
    "generations": """
        generation INTEGER, begun_at TIMESTAMP, completed_at TIMESTAMP, built VARCHAR, mode VARCHAR,
        embedder VARCHAR, weights VARCHAR, weights_sha256 VARCHAR, embedding_size INTEGER,
        preprocessing VARCHAR, calibration VARCHAR, output_settings VARCHAR, output_hash VARCHAR
    """,
    "accounts": """
        account_id INTEGER, user_id VARCHAR, password_hash VARCHAR, image_key VARCHAR, added_at TIMESTAMP
    """,
    "directories": """
        directory_id INTEGER, account_id INTEGER, name VARCHAR, added_at TIMESTAMP,
        threshold VARCHAR, threshold_generation INTEGER, method VARCHAR, precision DOUBLE, cut DOUBLE
    """,
    "runs": """
        run_id VARCHAR, source VARCHAR, source_kind VARCHAR, account_id INTEGER, directory VARCHAR,
        settings VARCHAR, state VARCHAR, rows BIGINT, shards BIGINT,
        started_at TIMESTAMP, finished_at TIMESTAMP, summary VARCHAR
    """,
    "shards": """
        run_id VARCHAR, shard BIGINT, committed_at TIMESTAMP, media BIGINT, faces BIGINT, sha256 VARCHAR
    """,
    "media": """
        media_id BIGINT, run_id VARCHAR, shard BIGINT, row BIGINT, account_id INTEGER, directory VARCHAR,
        path VARCHAR, sha256 VARCHAR, pixel_hash VARCHAR,
        bytes BIGINT, width INTEGER, height INTEGER, format VARCHAR,
        status VARCHAR, reason VARCHAR, name VARCHAR, external_id VARCHAR, extra VARCHAR,
        duplicate_of BIGINT, added_at TIMESTAMP, gone_at TIMESTAMP, taken_at TIMESTAMP
    """,
    "faces": """
        face_id BIGINT, media_id BIGINT, ordinal INTEGER, person_id UUID, outcome VARCHAR
    """,
    "detections": """
        generation INTEGER, face_id BIGINT, x1 FLOAT, y1 FLOAT, x2 FLOAT, y2 FLOAT, landmarks FLOAT[10],
        confidence FLOAT, center_pose_quality FLOAT, sharpness_quality FLOAT, contrast_quality FLOAT,
        similarity_score DOUBLE, rejection_reasons VARCHAR
    """,
    "embeddings": "generation INTEGER, face_id BIGINT, embedding_shard_id BIGINT",
    "embedding_shards": """
        embedding_shard_id BIGINT, generation INTEGER, file VARCHAR, rows BIGINT, bytes BIGINT, sha256 VARCHAR,
        run_id VARCHAR, shard BIGINT
    """,
    "pending_embeddings": "generation INTEGER, face_id BIGINT, embedding BLOB",
    "persons": """
        person_id UUID, seq BIGINT, directory_id INTEGER, parent_id UUID,
        name VARCHAR, first_name VARCHAR, last_name VARCHAR, external_id VARCHAR,
        tags VARCHAR, metadata VARCHAR, ignored BOOLEAN,
        occurrence BIGINT, last_occurrence_at TIMESTAMP, added_at TIMESTAMP, modified_at TIMESTAMP,
        commit_number BIGINT, cover BIGINT
    """,
    "reference_faces": """
        generation INTEGER, person_id UUID, face_id BIGINT, image_guid VARCHAR, seq BIGINT, commit_number BIGINT
    """,
    "segments": """
        generation INTEGER, directory_id INTEGER, file VARCHAR, rows BIGINT, first_seq BIGINT, last_seq BIGINT
    """,
    "tombstones": """
        generation INTEGER, directory_id INTEGER, seq BIGINT, person_id UUID, face_id BIGINT, erase BOOLEAN
    """,
    "objects": "image_guid VARCHAR, bytes BIGINT, sha256 VARCHAR, media_type VARCHAR, encrypted BOOLEAN",
    "replaced_images": "image_guid VARCHAR, person_id UUID, replaced_at TIMESTAMP",
    "facts": """
        correction_id BIGINT, kind VARCHAR, face_id BIGINT, person_id UUID, other_id UUID,
        origin VARCHAR, stated_at TIMESTAMP
    """,
    "corrections": """
        correction_id BIGINT, account_id INTEGER, directory_id INTEGER, kind VARCHAR, origin VARCHAR,
        made_at TIMESTAMP, before VARCHAR, after VARCHAR, person_ids UUID[], undone_at TIMESTAMP, merges_only BOOLEAN,
        undoes BIGINT, commit_number BIGINT, position BIGINT, gone UUID[], generation INTEGER
    """,
    "files": """
        source VARCHAR, account_id INTEGER, path VARCHAR, directory VARCHAR, media_id BIGINT, size BIGINT,
        mtime_ns BIGINT, ctime_ns BIGINT, inode BIGINT, seen_at TIMESTAMP, gone_at TIMESTAMP, label VARCHAR
    """,
    "forgotten": "account_id INTEGER, kind VARCHAR, digest VARCHAR, forgotten_at TIMESTAMP",
    "erasures": """
        deleted_at TIMESTAMP, account_id INTEGER, kind VARCHAR, people BIGINT, faces BIGINT, photos BIGINT,
        receipt VARCHAR, erased_at TIMESTAMP
    """,
    "page_subjects": "file VARCHAR, person_id UUID, media_id BIGINT",
    "pending_deletes": "path VARCHAR, added_at TIMESTAMP",
}
# table -> column -> type
TABLES: Final[dict[str, dict[str, str]]] = {
    table: dict(column.split() for column in columns.split(",")) for table, columns in _COLUMNS.items()
}

# column type -> Arrow type; UUIDs are texts
_ARROW: Final = {
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "VARCHAR": pa.string(),
    "UUID": pa.string(),
    "UUID[]": pa.list_(pa.string()),
    "FLOAT": pa.float32(),
    "FLOAT[10]": pa.list_(pa.float32(), 10),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us"),
    "BLOB": pa.binary(),
}

# Small tables only. The key of `shards` prevents a second commit of a shard.
_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "generations": ("PRIMARY KEY (generation)",),
    "accounts": ("PRIMARY KEY (account_id)", "UNIQUE (user_id)"),
    "directories": ("PRIMARY KEY (directory_id)", "UNIQUE (account_id, name)"),
    "runs": ("PRIMARY KEY (run_id)",),
    "shards": ("PRIMARY KEY (run_id, shard)",),
}

# Parent pointers may form chains. UNION (not UNION ALL) terminates on a damaged cycle.
_PERSONS_VIEW: Final = """
    WITH RECURSIVE ancestors(person_id, ancestor_id) AS (
        SELECT person_id, parent_id FROM core.persons WHERE parent_id IS NOT NULL
        UNION
        SELECT a.person_id, p.parent_id FROM ancestors a JOIN core.persons p ON p.person_id = a.ancestor_id
        WHERE p.parent_id IS NOT NULL
    ), roots AS (
        SELECT a.person_id, a.ancestor_id FROM ancestors a JOIN core.persons p ON p.person_id = a.ancestor_id
        WHERE p.parent_id IS NULL
    )
    SELECT p.person_id::VARCHAR AS person_id, coalesce(t.ancestor_id, p.person_id)::VARCHAR AS root_person_id,
        p.name, p.external_id, a.user_id AS account, d.name AS directory, p.occurrence, r.image_guid, p.added_at,
        p.first_name, p.last_name, p.tags, p.metadata
    FROM core.persons p
    JOIN core.directories d ON d.directory_id = p.directory_id
    JOIN core.accounts a ON a.account_id = d.account_id
    LEFT JOIN roots t ON t.person_id = p.person_id
    LEFT JOIN core.reference_faces r ON r.person_id = p.person_id
        AND r.generation = (SELECT current_generation FROM core.store)
"""

# Public: names and columns change only with a major version.
VIEWS: Final[dict[str, str]] = {
    "media": "SELECT media_id, path, sha256, status, reason, width, height, taken_at FROM core.media",
    "faces": """
    SELECT f.face_id, f.media_id, m.path, f.person_id::VARCHAR AS person_id, f.outcome, d.x1, d.y1, d.x2, d.y2,
        d.confidence, d.center_pose_quality, d.sharpness_quality, d.contrast_quality, d.similarity_score
    FROM core.faces f
    JOIN core.media m ON m.media_id = f.media_id
    JOIN core.detections d ON d.face_id = f.face_id
        AND d.generation = (SELECT current_generation FROM core.store)
""",
    "persons": _PERSONS_VIEW,
    "facts": """
    SELECT correction_id, kind, face_id, person_id::VARCHAR AS person_id, other_id::VARCHAR AS other_id, origin,
        stated_at
    FROM core.facts
""",
}


def arrow_schema(
    table: str, names: Iterable[str] = (), *, without: Collection[str] = (), required: Collection[str] = ()
) -> pa.Schema:
    """The Arrow schema of a table's columns (default: all except `without`); `required` ones are not nullable."""
    columns = {name: TABLES[table][name] for name in names or TABLES[table] if name not in without}
    return pa.schema([pa.field(name, _ARROW[kind], name not in required) for name, kind in columns.items()])


def arrow_table(table: str, names: Iterable[str], rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """These columns of a table's rows."""
    columns = arrow_schema(table, names)
    return pa.table([[row[name] for row in rows] for name in columns.names], schema=columns)


def table_statements(*tables: str) -> list[str]:
    """The statements that create these tables."""
    sql = []
    for table in tables:
        parts = [f'"{name}" {kind}' for name, kind in TABLES[table].items()] + list(_KEYS.get(table, ()))
        sql.append(f"CREATE TABLE core.{table} ({', '.join(parts)})")
    return sql


def view_statements() -> list[str]:
    """The statements that create or replace the views."""
    return [f"CREATE OR REPLACE VIEW main.{view} AS {query}" for view, query in VIEWS.items()]
