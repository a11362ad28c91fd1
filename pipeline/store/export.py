"""Exports a store as Parquet files for other tools; their columns are public, like those of the views."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import UsageError
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.references import load_embeddings
from pipeline.store.catalog_thread import CatalogThread
from pipeline.store.files.durable import TEMPORARY, Folder, disk_errors
from pipeline.store.files.faults import point
from pipeline.store.records import embeddings_schema
from pipeline.store.schema import VIEWS

_ORDER = {"media": "media_id", "faces": "face_id", "persons": "added_at, person_id"}
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
    query = f"SELECT * FROM main.{view} ORDER BY {_ORDER[view]}"
    rows = catalog.one(f"COPY ({query}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")
    folder.publish(file + TEMPORARY, file, "export")
    return int(rows)


def _export_embeddings(store: CatalogThread, folder: Folder) -> int:
    size = store.identity.embedding_size
    faces = store.read(
        "SELECT face_id FROM core.embeddings WHERE generation = $1"
        " UNION SELECT face_id FROM core.pending_embeddings WHERE generation = $1 ORDER BY face_id",
        [store.generation],
    )["face_id"].to_numpy()
    columns = embeddings_schema(size)
    with (
        folder.replacing("embeddings.parquet", "export") as out,
        pq.ParquetWriter(out, columns, compression="zstd") as w,
    ):
        for start in range(0, len(faces), _CHUNK_ROWS):
            ids = faces[start : start + _CHUNK_ROWS]
            load = partial(load_embeddings, face_ids=ids)
            vectors = store.submit(load)
            column = pa.FixedSizeListArray.from_arrays(pa.array(np.ravel(vectors)), size)
            with disk_errors(folder.root):
                w.write_table(pa.table([pa.array(ids), column], schema=columns))
    return len(faces)
