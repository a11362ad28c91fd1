"""Exports a store as Parquet files for other tools; their columns are public, like those of the views."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from pipeline.errors import UsageError
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.public_tables import embeddings_table, view_query
from pipeline.store.catalog_thread import CatalogThread
from pipeline.store.files.durable import TEMPORARY, Folder, disk_errors
from pipeline.store.files.faults import point
from pipeline.store.records import embeddings_schema
from pipeline.store.schema import VIEWS

_CHUNK_ROWS = 65_536


def export_store(store: CatalogThread, to: Path) -> dict[str, int]:
    """Writes media, faces, persons and embeddings as `<name>.parquet` into a new or empty folder.

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
    rows = catalog.one(f"COPY ({view_query(view)}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")
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
