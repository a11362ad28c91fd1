"""Folding: embeddings of posted faces, and of those that a regroup admitted, move from the catalog into shards.
Replaced images are forgotten after their day. And erasing: what transactions removed leaves the files.

Files are written first, then one transaction for each shard is committed, then what the shard replaces is unlinked.
Between two transactions other commits go on, so a face may be removed while its new shard is written: the next fold
takes its vector out.

A new shard is `folded-<face>.parquet`, after the lowest of its faces; where there was one, `folded-<face>-2`. A shard
without its removed faces, or several small ones in one, is `<stem>.<n>.parquet`: the stem of the (first) shard it
replaces, rewritten for the n-th time. So a fold that is repeated after a crash writes the same file again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import StoreError
from pipeline.store.catalog import deletes, replaced_images
from pipeline.store.catalog.connection import Catalog, Submit
from pipeline.store.catalog.references import add_embedding_shard
from pipeline.store.files import matrix, shards
from pipeline.store.files.durable import Folder, disk_errors
from pipeline.store.records import StoreIdentity

# 8 MiB of 512 float32: written in a moment, so that a server's commits never wait long.
SHARD_ROWS = 4096
_SMALL_SHARDS = 16  # so many are put together: each vector is written about once more for as many folds
_NAME = re.compile(r"(.+?)(?:\.(\d+))?\.parquet")
_UNLINKED_AT_ONCE: Final = 500  # files
_log = logging.getLogger(__name__)


def fold(submit: Submit, folder: Folder, identity: StoreIdentity, generation: int, min_pending: int) -> int:
    """Does all of it; returns how many embeddings moved. One at a time. Raises StoreDamaged, StoreFull."""
    erase(submit, folder, identity, generation)
    metadata = shards.embedding_metadata(identity, generation)
    moved = 0
    waiting = submit(count_pending)
    while moved < waiting and waiting >= min_pending:
        table = submit(_pending)
        if table.num_rows == 0:  # the rest was removed meanwhile
            break
        file = submit(partial(_new_file, face_id=table["face_id"][0].as_py()))
        written = shards.write_embeddings(folder, file, table, metadata)
        submit(partial(_commit_pending, table=table, file=written))
        moved += table.num_rows
    _rewrite_all(submit, folder, metadata, submit(plan_rewritings))
    submit(replaced_images.forget_old)
    return moved


def erase(submit: Submit, folder: Folder, identity: StoreIdentity, generation: int) -> None:
    """Finishes what transactions removed: unlinks files, and takes vectors of removed and of rejected faces out of
    matrices and shards. Raises StoreDamaged, StoreFull, StoreUnwritable."""
    while submit(partial(deletes.replay, most=_UNLINKED_AT_ONCE)) == _UNLINKED_AT_ONCE:
        pass
    submit(_blank_matrices)
    metadata = shards.embedding_metadata(identity, generation)
    stale = submit(lambda catalog: [_rewriting(catalog, [row]) for row in _stale_shards(catalog)])
    _rewrite_all(submit, folder, metadata, stale)


def left_to_erase(catalog: Catalog) -> list[str]:
    """The files of which transactions removed something that they still have. What is to be unlinked or blanked is
    listed in the transaction; a shard that has more rows than the catalog has faces in it needs no list."""
    return [*deletes.pending(catalog), *(file for _, file, _ in _stale_shards(catalog))]


def finish_erasure(catalog: Catalog) -> None:
    """At opening: finishes what a command or a server committed before it was killed or its disk failed, and says so.
    If that fails as well, the store can be used, and the next opening tries it again."""
    root = catalog.folder.root
    if not left_to_erase(catalog):
        return
    if catalog.read_only:
        _log.warning("An erasure in the store %s is not finished: the next command that can write there does it.", root)
        return
    try:
        erase(lambda work: work(catalog), catalog.folder, catalog.identity, catalog.generation)
    except StoreError as exc:
        _log.warning("An erasure in the store %s could not be finished, and is tried again: %s", root, exc)
    else:
        _log.warning("Finished an erasure in the store %s that was interrupted.", root)


def sweep(catalog: Catalog) -> None:
    """At opening: removes the embedding files that no row names. A commit that was cut off left them; repeated, it
    would write the same file again, but a vector in it may be of somebody who is deleted before that."""
    for file in unnamed_files(catalog):
        catalog.folder.unlink(file)


def unnamed_files(catalog: Catalog) -> set[str]:
    """The embedding files that no row names."""
    named = {file for (file,) in catalog.rows("SELECT file FROM core.embedding_shards")}
    root = catalog.folder.root
    with disk_errors(root):
        paths = [path for path in root.glob("embeddings/*/*") if path.is_file() and catalog.folder.holds(path)]
    return {path.relative_to(root).as_posix() for path in paths} - named


# Posted embeddings become shards


def count_pending(catalog: Catalog) -> int:
    """How many embeddings wait for `fold`."""
    return int(catalog.one("SELECT count(*) FROM core.pending_embeddings WHERE generation = ?", [catalog.generation]))


def _pending(catalog: Catalog) -> pa.Table:
    """Up to SHARD_ROWS pending embeddings, the oldest faces first, as the rows of an embedding shard."""
    table = catalog.read(
        "SELECT face_id, embedding FROM core.pending_embeddings WHERE generation = ? ORDER BY face_id LIMIT ?",
        [catalog.generation, SHARD_ROWS],
    )
    vectors = shards.vectors_of_bytes(table["embedding"], catalog.identity.embedding_size)
    return shards.embedding_rows(table["face_id"].to_numpy(), vectors)


def _new_file(catalog: Catalog, face_id: int) -> str:
    """For vectors from this face on: after a crash the same again, but never one that is taken, or is being deleted. A
    face that an undo rejected again may come a second time."""
    stem = f"embeddings/g{catalog.generation:04d}/folded-{face_id}"
    named = "SELECT file FROM core.embedding_shards UNION ALL SELECT path FROM core.pending_deletes"
    names = [name for (name,) in catalog.rows(f"SELECT * FROM ({named}) t(name) WHERE starts_with(name, ?)", [stem])]
    taken = {match[1] for match in map(_NAME.fullmatch, names) if match}
    return next(s for s in (stem, *(f"{stem}-{n}" for n in range(2, len(taken) + 3))) if s not in taken) + ".parquet"


def _commit_pending(catalog: Catalog, table: pa.Table, file: shards.WrittenFile) -> None:
    """The transaction: these embeddings are in the shard from now on."""
    generation = catalog.generation
    with catalog.tables(folded=table.select(["face_id"])), catalog.transaction("fold"):
        shard_id = add_embedding_shard(catalog, file)
        these = "generation = ? AND face_id IN (SELECT face_id FROM folded)"
        catalog.execute(
            f"INSERT INTO core.embeddings SELECT generation, face_id, ? FROM core.pending_embeddings WHERE {these}",
            [shard_id, generation],
        )
        catalog.execute(f"DELETE FROM core.pending_embeddings WHERE {these}", [generation])


# Shards without the vectors of removed faces, and several small shards as one


@dataclass(frozen=True)
class Rewriting:
    """Shards that become one, or none, and the face ids [n] that it is to hold."""

    shard_ids: Sequence[int]
    files: Sequence[str]
    hashes: Sequence[str]
    face_ids: pa.Array


def plan_rewritings(catalog: Catalog) -> list[Rewriting]:
    """What is due: each shard with more rows than the catalog has faces in it, and the small shards when many."""
    stale = _stale_shards(catalog)
    groups = [[row] for row in stale]
    stale_ids = {shard for shard, _, _ in stale}
    small = [row for row in _small_shards(catalog) if row[0] not in stale_ids]
    if len(small) >= _SMALL_SHARDS:
        groups.append(small)
    return [_rewriting(catalog, group) for group in groups]


def _stale_shards(catalog: Catalog) -> list[tuple[int, str, str]]:
    """Those with more rows than the catalog has faces in them. If there is none, equal sums tell it at once."""
    rows = catalog.one("SELECT coalesce(sum(rows), 0) FROM core.embedding_shards")
    if rows == catalog.one("SELECT count(*) FROM core.embeddings"):
        return []
    return catalog.rows(
        "SELECT embedding_shard_id, file, sha256 FROM core.embedding_shards s WHERE generation = ? AND rows >"
        " (SELECT count(*) FROM core.embeddings e WHERE e.embedding_shard_id = s.embedding_shard_id) ORDER BY 1",
        [catalog.generation],
    )


def _small_shards(catalog: Catalog) -> Iterator[tuple[int, str, str]]:
    """Shards of posted images, the oldest first, that fit into one."""
    total = 0
    for shard, file, sha256, rows in catalog.rows(
        'SELECT embedding_shard_id, file, sha256, "rows" FROM core.embedding_shards'
        ' WHERE generation = ? AND run_id IS NULL AND "rows" <= ? ORDER BY 1',
        [catalog.generation, SHARD_ROWS // 2],
    ):
        total += rows
        if total > SHARD_ROWS:
            return
        yield shard, file, sha256


def _rewriting(catalog: Catalog, rows: Sequence[tuple[int, str, str]]) -> Rewriting:
    ids, files, hashes = zip(*rows, strict=True)
    faces = catalog.read("SELECT face_id FROM core.embeddings WHERE list_contains(?, embedding_shard_id)", [list(ids)])
    return Rewriting(ids, files, hashes, faces["face_id"].combine_chunks())


def _rewrite_all(submit: Submit, folder: Folder, metadata: dict[str, object], rewritings: Sequence[Rewriting]) -> None:
    for rewriting in rewritings:
        rewritten = _rewrite(folder, rewriting, metadata)
        submit(partial(_commit_rewriting, rewriting=rewriting, file=rewritten))


def _rewrite(folder: Folder, rewriting: Rewriting, metadata: dict[str, object]) -> shards.WrittenFile | None:
    """The new shard; None where no vector is needed any more. Raises StoreDamaged, StoreFull, StoreUnwritable."""
    if len(rewriting.face_ids) == 0:
        return None
    for file, sha256 in zip(rewriting.files, rewriting.hashes, strict=True):
        # A damaged file must not become a new file whose hash is right.
        shards.require_hash(folder, file, sha256)
    table = pa.concat_tables([shards.read_parquet(folder, file) for file in rewriting.files])
    kept = table.filter(pc.is_in(table["face_id"], rewriting.face_ids))
    match = _NAME.fullmatch(rewriting.files[0])
    stem, count = match.groups() if match else (rewriting.files[0], None)
    return shards.write_embeddings(folder, f"{stem}.{int(count or 0) + 1}.parquet", kept, metadata)


def _commit_rewriting(catalog: Catalog, rewriting: Rewriting, file: shards.WrittenFile | None) -> None:
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


def _blank_matrices(catalog: Catalog) -> None:
    """Overwrites what the reference matrices hold of references that were removed."""
    listed = [path for path in deletes.pending(catalog) if deletes.is_matrix(path)]
    for (directory,) in catalog.rows("SELECT directory_id FROM core.directories ORDER BY 1"):
        current = catalog.read(
            "SELECT r.seq FROM core.reference_faces r JOIN core.persons p ON p.person_id = r.person_id"
            " WHERE r.generation = ? AND p.directory_id = ?",
            [catalog.generation, directory],
        )
        stem, size = matrix.stem(catalog.generation, directory), catalog.identity.embedding_size
        matrix.blank(catalog.folder, stem, current["seq"].to_numpy(), size)
    deletes.clear(catalog, listed)
