"""Embedding shards written anew: without the vectors of removed faces, or several small ones as one.

The new file is `<stem>.<n>.parquet`, the stem that of the (first) shard it replaces, rewritten for the n-th time: a
rewriting that is repeated after a crash writes the same file again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.store.catalog import deletes
from pipeline.store.catalog.connection import Catalog
from pipeline.store.files.durable import Folder
from pipeline.store.files.shards import WrittenFile, damaged_file, embedding_metadata, read_parquet, write_embeddings
from pipeline.store.records import StoreIdentity

# 8 MiB of 512 float32: written in a moment, so that a server's commits never wait long.
SHARD_ROWS = 4096
_SMALL_SHARDS = 16  # so many are put together: each vector is written about once more for as many folds
_NAME = re.compile(r"(.+?)(?:\.(\d+))?\.parquet")


@dataclass(frozen=True)
class Rewriting:
    """Shards that become one, or none, and the face ids [n] that it is to hold."""

    shard_ids: Sequence[int]
    files: Sequence[str]
    hashes: Sequence[str]
    face_ids: pa.Array


def plan_rewritings(catalog: Catalog) -> list[Rewriting]:
    """What is due: each shard with more rows than the catalog has faces in it, and the small shards when many."""
    stale = catalog.rows(
        "SELECT embedding_shard_id, file, sha256 FROM core.embedding_shards s WHERE generation = ? AND rows >"
        " (SELECT count(*) FROM core.embeddings e WHERE e.embedding_shard_id = s.embedding_shard_id) ORDER BY 1",
        [catalog.generation],
    )
    groups = [[row] for row in stale]
    taken = {shard for shard, _, _ in stale}
    small = [row for row in _small_shards(catalog) if row[0] not in taken]
    if len(small) >= _SMALL_SHARDS:
        groups.append(small)
    return [_rewriting(catalog, group) for group in groups]


def _small_shards(catalog: Catalog) -> Iterator[tuple[int, str, str]]:
    """Shards of posted images, the oldest first, that fit into one."""
    held = 0
    for shard, file, sha256, rows in catalog.rows(
        'SELECT embedding_shard_id, file, sha256, "rows" FROM core.embedding_shards'
        ' WHERE generation = ? AND run_id IS NULL AND "rows" <= ? ORDER BY 1',
        [catalog.generation, SHARD_ROWS // 2],
    ):
        held += rows
        if held > SHARD_ROWS:
            return
        yield shard, file, sha256


def _rewriting(catalog: Catalog, shards: Sequence[tuple[int, str, str]]) -> Rewriting:
    ids, files, hashes = zip(*shards, strict=True)
    faces = catalog.read("SELECT face_id FROM core.embeddings WHERE list_contains(?, embedding_shard_id)", [list(ids)])
    return Rewriting(ids, files, hashes, faces["face_id"].combine_chunks())


def rewrite(folder: Folder, identity: StoreIdentity, generation: int, rewriting: Rewriting) -> WrittenFile | None:
    """The new shard; None where nothing is needed any more. Raises StoreDamaged, StoreFull, StoreUnwritable."""
    if len(rewriting.face_ids) == 0:
        return None
    for file, sha256 in zip(rewriting.files, rewriting.hashes, strict=True):
        _require_whole(folder, file, sha256)
    table = pa.concat_tables([read_parquet(folder, file) for file in rewriting.files])
    kept = table.filter(pc.is_in(table["face_id"], rewriting.face_ids))
    return write_embeddings(folder, _next_name(rewriting.files[0]), kept, embedding_metadata(identity, generation))


def _require_whole(folder: Folder, file: str, sha256: str) -> None:
    """Raises StoreDamaged: what was damaged must not become a new file with a hash that is right."""
    try:
        found = hashlib.sha256(folder.path(file).read_bytes()).hexdigest()
    except OSError as exc:
        raise damaged_file(folder, file, f"cannot be read: {exc.strerror}") from exc
    if found != sha256:
        raise damaged_file(folder, file, "its SHA-256 is not the recorded one")


def _next_name(file: str) -> str:
    match = _NAME.fullmatch(file)
    stem, count = match.groups() if match else (file, None)
    return f"{stem}.{int(count or 0) + 1}.parquet"


def commit_rewriting(catalog: Catalog, rewriting: Rewriting, file: WrittenFile | None) -> None:
    """The transaction: the first shard is the new file, the others are gone; without a file all are."""
    first, *others = rewriting.shard_ids
    gone = others if file else [first, *others]
    with catalog.transaction("fold"):
        if file:
            catalog.execute(
                'UPDATE core.embedding_shards SET file = ?, "rows" = ?, bytes = ?, sha256 = ?'
                " WHERE embedding_shard_id = ?",
                [file.file, file.rows, file.bytes, file.sha256, first],
            )
        if gone:
            catalog.execute(
                "UPDATE core.embeddings SET embedding_shard_id = ? WHERE list_contains(?, embedding_shard_id)",
                [first, gone],
            )
            catalog.execute("DELETE FROM core.embedding_shards WHERE list_contains(?, embedding_shard_id)", [gone])
        deletes.add(catalog, rewriting.files)
    deletes.replay(catalog)
