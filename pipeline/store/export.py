"""The tables for other programs, in memory or as Parquet files; FORMAT.md specifies their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import UsageError
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.erasures import erasures
from pipeline.store.catalog.references import load_embeddings
from pipeline.store.files.durable import TEMPORARY, Folder, disk_errors
from pipeline.store.files.faults import point
from pipeline.store.files.shards import embedding_rows
from pipeline.store.records import embeddings_schema
from pipeline.store.schema import VIEWS

if TYPE_CHECKING:
    from pipeline.store.local import LocalStore

_CHUNK_ROWS = 65_536
_ORDER: Final = {
    "media": "media_id",
    "faces": "face_id",
    "persons": "added_at, person_id",
    "facts": "correction_id, face_id, person_id, other_id",
}


def _view_query(view: str) -> str:
    """SQL for a public view in its order. Raises UsageError for an unknown name."""
    if view not in _ORDER:
        raise UsageError(message=f"There is no table {view}. There are: {', '.join(_ORDER)}.")
    return f"SELECT * FROM main.{view} ORDER BY {_ORDER[view]}"


def in_pages(read: Callable[[int], pa.Table], column: str) -> pa.RecordBatchReader:
    """Streams a long table: `read(n)` returns the next rows with `column` > n, ascending."""
    first = read(-1)

    def batches() -> Iterator[pa.RecordBatch]:
        page = first
        while len(page):
            yield from page.to_batches()
            page = read(page[column][-1].as_py())

    return pa.RecordBatchReader.from_batches(first.schema, batches())


def read_table(store: LocalStore, name: str) -> pa.RecordBatchReader:
    """A public view, `embeddings` page by page, or `erasures`. Raises UsageError for another name."""
    if name == "erasures":
        return store.submit(erasures).to_reader()
    if name != "embeddings":
        return store.read(_view_query(name)).to_reader()
    part = store.at(store.generation)  # one generation throughout, even if it is switched between pages
    return in_pages(lambda after: part.submit(embeddings_table, after, _CHUNK_ROWS), "face_id")


def embeddings_table(catalog: Catalog, after: int, limit: int) -> pa.Table:
    """`embeddings_schema`: the first `limit` faces with id > `after`, ascending."""
    faces = catalog.read(
        "SELECT face_id FROM core.embeddings WHERE generation = $1 AND face_id > $2"
        " UNION SELECT face_id FROM core.pending_embeddings WHERE generation = $1 AND face_id > $2"
        " ORDER BY face_id LIMIT $3",
        [catalog.generation, after, limit],
    )["face_id"].to_numpy()
    return embedding_rows(faces, load_embeddings(catalog, faces))


def export_store(store: LocalStore, to: Path) -> dict[str, int]:
    """Writes media, faces, persons, facts and embeddings as `<name>.parquet` into a new or empty folder; returns the
    rows of each.

    Raises UsageError if the folder is not empty, StoreDamaged, and the target's StoreFull or StoreUnwritable.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(message=f"{to} is not an empty folder. Give a new one, so that nothing is overwritten.")
    folder = Folder(to.absolute())
    Folder(folder.root.parent).make(folder.root.name)
    rows = {view: store.submit(_export_view, folder, view) for view in VIEWS}
    rows["embeddings"] = _export_embeddings(store, folder)
    return rows


def _export_view(catalog: Catalog, folder: Folder, view: str) -> int:
    file = f"{view}.parquet"
    target = str(folder.path(file + TEMPORARY)).replace("'", "''")
    point("export.write")
    # COPY streams: the table is never fully in memory.
    rows = catalog.one(f"COPY ({_view_query(view)}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")
    folder.publish(file + TEMPORARY, file, "export")
    return int(rows)


def _export_embeddings(store: LocalStore, folder: Folder) -> int:
    count = 0
    with (
        folder.replacing("embeddings.parquet", "export") as out,
        pq.ParquetWriter(out, embeddings_schema(store.identity.embedding_size), compression="zstd") as writer,
    ):
        for page in read_table(store, "embeddings"):
            with disk_errors(folder.root):
                writer.write_batch(page)
            count += len(page)
    return count
