"""Upgrades the tables of an older store to this version, each step in one transaction."""

from __future__ import annotations

from typing import Final

from pipeline.store.catalog.connection import Catalog
from pipeline.store.schema import SCHEMA_VERSION

# version -> the statements that make the next one of it
_STEPS: Final[dict[int, tuple[str, ...]]] = {
    # 2: images may be encrypted; a person has tags and a flag; a pending embedding is stored as bytes, because DuckDB
    # 2.0 logs all lists of a table again with each one that is added (version 1 never stored one). The manifests of
    # finished runs are deleted, as finishing a run now does.
    1: (
        "ALTER TABLE core.store ADD COLUMN master_key_id VARCHAR",
        "ALTER TABLE core.accounts ADD COLUMN image_key VARCHAR",
        "ALTER TABLE core.persons ADD COLUMN tags VARCHAR",
        "ALTER TABLE core.persons ADD COLUMN ignored BOOLEAN",
        "DROP TABLE core.pending_embeddings",
        "CREATE TABLE core.pending_embeddings (generation INTEGER, face_id BIGINT, embedding BLOB)",
        "INSERT INTO core.pending_deletes SELECT 'runs/' || run_id || '/manifest.parquet', finished_at FROM core.runs"
        " WHERE state = 'finished'",
    ),
}


def migrate(catalog: Catalog, version: int) -> None:
    """Upgrades tables of `version`. Raises StoreFull, StoreUnwritable; then the store is as before."""
    while version < SCHEMA_VERSION:
        with catalog.transaction("migrate"):
            for statement in _STEPS[version]:
                catalog.execute(statement)
            catalog.execute("UPDATE core.store SET schema_version = ?", [version + 1])
        version += 1
