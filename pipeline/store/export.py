"""The tables that other programs read, in memory or as Parquet files; FORMAT.md promises their columns."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import UsageError
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.references import load_embeddings
from pipeline.store.catalog_thread import CatalogThread
from pipeline.store.files.durable import TEMPORARY, Folder, disk_errors
from pipeline.store.files.faults import point
from pipeline.store.files.shards import embedding_rows
from pipeline.store.records import embeddings_schema
from pipeline.store.schema import VIEWS

_CHUNK_ROWS = 65_536
_ORDER: Final = {
    "media": "media_id",
    "faces": "face_id",
    "persons": "added_at, person_id",
    "facts": "correction_id, face_id, person_id, other_id",
}


def _view_query(view: str) -> str:
    """The SQL that reads a public view in its order. Raises UsageError where there is none of that name."""
    if view not in _ORDER:
        raise UsageError(message=f"There is no table {view}. There are: {', '.join(_ORDER)}.")
    return f"SELECT * FROM main.{view} ORDER BY {_ORDER[view]}"


def view_table(catalog: Catalog, view: str) -> pa.Table:
    """All rows of the public view `media`, `faces`, `persons` or `facts`. Raises UsageError for another name."""
    return catalog.read(_view_query(view))


def embeddings_table(catalog: Catalog, after: int, limit: int) -> pa.Table:
    """The embeddings (`embeddings_schema`) of the first `limit` faces whose id is above `after`, by id."""
    faces = catalog.read(
        "SELECT face_id FROM core.embeddings WHERE generation = $1 AND face_id > $2"
        " UNION SELECT face_id FROM core.pending_embeddings WHERE generation = $1 AND face_id > $2"
        " ORDER BY face_id LIMIT $3",
        [catalog.generation, after, limit],
    )["face_id"].to_numpy()
    return embedding_rows(faces, load_embeddings(catalog, faces))


def export_store(store: CatalogThread, to: Path) -> dict[str, int]:
    """Writes media, faces, persons, facts and embeddings as `<name>.parquet` into a new or empty folder.

    Returns the rows of each. Raises UsageError where the folder holds something, StoreDamaged, and StoreFull or
    StoreUnwritable of the target.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(message=f"{to} is not an empty folder. Give a new one, so that nothing is overwritten.")
    folder = Folder(to.absolute())
    Folder(folder.root.parent).make(folder.root.name)
    rows = {view: store.submit(partial(_export_view, folder=folder, view=view)) for view in VIEWS}
    rows["embeddings"] = _export_embeddings(store, folder)
    return rows


def _export_view(catalog: Catalog, folder: Folder, view: str) -> int:
    file = f"{view}.parquet"
    target = str(folder.path(file + TEMPORARY)).replace("'", "''")
    point("export.write")
    # COPY streams: the table is never in memory as a whole.
    rows = catalog.one(f"COPY ({_view_query(view)}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")
    folder.publish(file + TEMPORARY, file, "export")
    return int(rows)


def _export_embeddings(store: CatalogThread, folder: Folder) -> int:
    count, last = 0, -1
    with (
        folder.replacing("embeddings.parquet", "export") as out,
        pq.ParquetWriter(out, embeddings_schema(store.identity.embedding_size), compression="zstd") as writer,
    ):
        while len(page := store.submit(partial(embeddings_table, after=last, limit=_CHUNK_ROWS))):
            with disk_errors(folder.root):
                writer.write_table(page)
            count, last = count + len(page), page["face_id"][-1].as_py()
    return count
