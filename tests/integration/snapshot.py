"""A store's contents without ids and times, read with plain DuckDB: what two equal stores have in common."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

from pipeline.store.checks.check import check_store
from pipeline.store.local import LocalStore


def assert_whole(store: Path) -> None:
    """`facepipe check` finds nothing wrong."""
    with LocalStore.open(store, command="test") as client:
        assert check_store(client).problems == []


def occurrences(store: Path) -> dict[tuple[str, str], int]:
    """How often each person was seen, by the first file that showed them and the directory."""
    return {(Path(p[0].split("#")[0]).name, p[3]): p[4] for p in snapshot(store)["persons"]}


def snapshot(store: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Rows of media, faces, persons and embeddings in a canonical order; persons are named by their first face."""
    catalog = store / (store / "CURRENT").read_text().strip()
    with duckdb.connect(str(catalog), read_only=True) as con:
        first = (
            "SELECT person_id, min(path || '#' || ordinal) AS who FROM core.faces JOIN core.media USING (media_id)"
            " WHERE person_id IS NOT NULL GROUP BY person_id"
        )
        media = con.execute(
            "SELECT path, directory, sha256, if(pixel_hash IS NULL, NULL, min(path) OVER (PARTITION BY pixel_hash)),"
            " bytes, width, height, format, status, reason, name,"
            " external_id, gone_at IS NOT NULL FROM core.media ORDER BY ALL"
        ).fetchall()
        faces = con.execute(
            f"SELECT m.path, m.directory, f.ordinal, f.outcome, d.rejection_reasons, d.similarity_score, w.who,"
            f" d.* EXCLUDE (face_id, rejection_reasons, similarity_score)"
            f" FROM core.faces f JOIN core.media m USING (media_id)"
            f" JOIN core.detections d USING (face_id) LEFT JOIN ({first}) w USING (person_id) ORDER BY ALL"
        ).fetchall()
        persons = con.execute(
            f"SELECT w.who, p.name, p.external_id, d.name, p.occurrence, row_number() OVER (ORDER BY p.seq)"
            f" FROM core.persons p JOIN ({first}) w USING (person_id) JOIN core.directories d USING (directory_id)"
            " ORDER BY ALL"
        ).fetchall()
        runs = con.execute("SELECT source, state, rows, shards FROM core.runs ORDER BY ALL").fetchall()
        names = dict(
            con.execute(
                "SELECT face_id, coalesce(path, '') || '#' || ordinal FROM core.faces JOIN core.media USING (media_id)"
            ).fetchall()
        )
        # After a kill there may be others, which no row names yet.
        shards = con.execute("SELECT file FROM core.embedding_shards ORDER BY file").fetchall()
    embeddings = []
    for (file,) in shards:
        table = pq.read_table(store / file)
        for face, vector in zip(table["face_id"].to_pylist(), table["embedding"].to_pylist(), strict=True):
            embeddings.append((names[face], tuple(vector)))
    files = sorted(str(p.relative_to(store).parts[0]) for p in (store / "objects").rglob("*") if p.is_file())
    return {
        "media": media,
        "faces": faces,
        "persons": persons,
        "runs": runs,
        "embeddings": sorted(embeddings),
        "objects": [(len(files),)],
    }


def pictures(store: Path) -> list[str]:
    """The hashes of the stored pictures of a store that is not encrypted."""
    files = (path for path in (store / "objects").rglob("*") if path.is_file())
    return sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)
