"""Commits one shard of a run: files, under names that a repeated commit reuses; then one transaction with everything;
then clean-up, which is done later if a crash intervenes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import StoreError
from pipeline.store import cleanup
from pipeline.store.catalog import files, runs
from pipeline.store.catalog.connection import Catalog, OpenStore
from pipeline.store.catalog.references import add_embedding_shard
from pipeline.store.commits.commit import write_changes, write_pictures
from pipeline.store.commits.reindex import MeasuredFaces, insert_measured, write_measured
from pipeline.store.commits.removal import blank_photos
from pipeline.store.files import shards
from pipeline.store.records import (
    FACES_SCHEMA,
    FILES_SCHEMA,
    MEDIA_SCHEMA,
    Committed,
    RunRow,
    ShardCommit,
    embeddings_schema,
)
from pipeline.store.schema import arrow_schema
from pipeline.types import FORGOTTEN, utc_now


@dataclass(frozen=True)
class PreparedShard:
    """A commit with valid tables and its files on disk."""

    commit: ShardCommit
    tables: dict[str, pa.Table]
    embeddings: shards.WrittenFile | None  # None: no face has one
    measured: MeasuredFaces | None = None  # by the other generation


def conform(commit: ShardCommit, size: int) -> dict[str, pa.Table]:
    """The commit's tables in their schemas. Raises StoreError if columns do not fit."""
    schemas = {
        "media": (commit.media, MEDIA_SCHEMA),
        "faces": (commit.faces, FACES_SCHEMA),
        "embeddings": (commit.embeddings, embeddings_schema(size)),
        "files": (commit.files, FILES_SCHEMA),
    }
    tables = {}
    for name, (table, columns) in schemas.items():
        try:
            tables[name] = table.select(columns.names).cast(columns).combine_chunks()
        except (KeyError, ValueError, pa.ArrowException) as exc:
            raise StoreError(message=f"The {name} of shard {commit.shard} don't have the right columns: {exc}") from exc
    return tables


def check_new(catalog: Catalog, commit: ShardCommit, tables: dict[str, pa.Table]) -> RunRow:
    """Returns the run. Before any file is written, raises StoreError if it is not open, or the shard or an id is
    already used."""
    run = runs.run_row(catalog, commit.run_id)
    if run.state != runs.OPEN or run.account_id != commit.account_id:
        raise StoreError(
            message=f"Run {commit.run_id} of account {run.account_id} is {run.state}: no shard can be committed."
        )
    if commit.shard in runs.committed_shards(catalog, commit.run_id):
        raise StoreError(message=f"Shard {commit.shard} of run {commit.run_id} is committed already.")
    if not 0 <= commit.shard < (run.shards or 0):
        raise StoreError(message=f"Run {commit.run_id} has {run.shards} shards, but no shard {commit.shard}.")
    for table, column in (("media", "media_id"), ("faces", "face_id")):
        ids = pc.min_max(tables[table][column]).as_py()
        taken = f"SELECT 1 FROM core.{table} WHERE {column} BETWEEN ? AND ? LIMIT 1"
        if catalog.rows(taken, [ids["min"], ids["max"]]):
            raise StoreError(message=f"Shard {commit.shard} uses ids that are taken.")
    return run


def write_files(
    store: OpenStore, commit: ShardCommit, tables: dict[str, pa.Table], image_key: bytes | None
) -> PreparedShard:
    """Writes objects, encrypted if there is a key, and the embedding shard. Raises StoreFull, StoreUnwritable."""
    rows = write_pictures(store.folder, commit.pictures, image_key)
    objects = pa.Table.from_pylist(list(rows.values()), arrow_schema("objects"))
    written = None
    if tables["embeddings"].num_rows:
        file = shards.embedding_file(store.generation, commit.run_id, commit.shard)
        generation = store.generations[store.generation]
        written = shards.write_embeddings(store.folder, file, tables["embeddings"], generation)
    measured = None
    other = store.submit(lambda catalog: catalog.other)
    if other is not None and commit.measured is not None and commit.measured[0] == other.identity.model:
        file = shards.embedding_file(other.number, commit.run_id, commit.shard)
        measured = write_measured(store.folder, other, commit.measured[1], file)
    return PreparedShard(commit, {**tables, "objects": objects}, written, measured)


def commit_rows(catalog: Catalog, prepared: PreparedShard) -> list[Committed]:
    """Commits a prepared shard durably and atomically; returns the results of its changes.

    Raises StoreError; TooManyDirectories if the account would exceed MAX_DIRECTORIES.
    """
    commit, now = prepared.commit, utc_now()
    new = {f"new_{name}": table for name, table in prepared.tables.items()}
    with catalog.tables(**new), catalog.transaction("commit_shard"):
        run = check_new(catalog, commit, prepared.tables)
        _insert_media_and_faces(catalog, commit, now)
        files.add(catalog, run.source, commit.account_id, prepared.tables["media"])
        blank_photos(catalog, commit.forgotten, FORGOTTEN)
        if prepared.embeddings is not None:
            number = add_embedding_shard(catalog, prepared.embeddings, commit.run_id, commit.shard)
            insert = "INSERT INTO core.embeddings SELECT ?, face_id, ? FROM new_embeddings"
            catalog.execute(insert, [catalog.generation, number])
        if prepared.measured is not None:
            insert_measured(catalog, prepared.measured, commit.run_id, commit.shard)
        committed = write_changes(catalog, commit.changes, now)
        _insert_shard(catalog, prepared, now)
        runs.note_face_changes(catalog, commit.run_id, commit.face_changes)
    return committed


def _insert_media_and_faces(catalog: Catalog, commit: ShardCommit, now: datetime) -> None:
    catalog.execute(
        "INSERT INTO core.media BY NAME"
        " SELECT ? AS run_id, ? AS shard, ? AS account_id, ? AS added_at, * FROM new_media",
        [commit.run_id, commit.shard, commit.account_id, now],
    )
    catalog.execute(
        "INSERT INTO core.faces BY NAME SELECT face_id, media_id, ordinal, person_id::UUID AS person_id, outcome"
        " FROM new_faces"
    )
    catalog.execute(
        "INSERT INTO core.detections BY NAME SELECT ? AS generation, * EXCLUDE (media_id, ordinal, person_id, outcome)"
        " FROM new_faces WHERE outcome <> 'removed'",
        [catalog.generation],
    )
    catalog.execute("INSERT INTO core.objects BY NAME SELECT * FROM new_objects")


def _insert_shard(catalog: Catalog, prepared: PreparedShard, now: datetime) -> None:
    commit, tables = prepared.commit, prepared.tables
    sha256 = prepared.embeddings.sha256 if prepared.embeddings else None
    catalog.execute(
        "INSERT INTO core.shards VALUES (?, ?, ?, ?, ?, ?)",
        [commit.run_id, commit.shard, now, tables["media"].num_rows, tables["faces"].num_rows, sha256],
    )
    next_ids = {"next_media_id": tables["media"]["media_id"], "next_face_id": tables["faces"]["face_id"]}
    catalog.raise_counters({name: (pc.max(ids).as_py() or 0) + 1 for name, ids in next_ids.items()})
    cleanup.delete_later(catalog, [shards.run_shard_file(commit.run_id, shard) for shard in commit.finished_run_shards])
