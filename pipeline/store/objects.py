"""Stored images: one file per guid under objects/ab/cd/, where ab and cd are the guid's first characters."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from pipeline.errors import StoreDamaged, StoreError
from pipeline.store.durable import Folder

# The time goes into waiting for the disk, so more threads than cores.
_WRITERS = 8
_GUID = re.compile(r"[0-9a-f]{4}[0-9a-f-]{4,60}")

OBJECTS_SCHEMA = pa.schema(
    [("image_guid", pa.string()), ("bytes", pa.int64()), ("sha256", pa.string()), ("media_type", pa.string())]
)


def object_file(guid: str) -> str:
    """The relative path of an object. Raises StoreError for what is no guid."""
    if not _GUID.fullmatch(guid):
        raise StoreError(message=f'"{guid}" cannot name an object: lower-case hexadecimal digits and "-" serve.')
    return f"objects/{guid[:2]}/{guid[2:4]}/{guid}"


def write_objects(folder: Folder, objects: Sequence[tuple[str, bytes, str]]) -> pa.Table:
    """Writes (guid, bytes, media type) each to its file, durably; returns their rows for core.objects.

    Raises StoreFull, StoreUnwritable.
    """
    files = {object_file(guid): data for guid, data, _ in objects}
    folders = sorted({file.rpartition("/")[0] for file in files})
    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="store-objects") as pool:
        _all(pool.map(folder.make, folders))
        _all(pool.map(lambda f: folder.write(f, files[f], "object", sync_folder=False), files))
        _all(pool.map(lambda f: folder.sync_folder(f, "object"), folders))
    rows = [(guid, len(data), hashlib.sha256(data).hexdigest(), kind) for guid, data, kind in objects]
    columns = list(zip(*rows, strict=True)) or [()] * len(OBJECTS_SCHEMA)
    return pa.table([list(column) for column in columns], schema=OBJECTS_SCHEMA)


def _all(results: Iterator[None]) -> None:
    """Waits for all, and raises the first error."""
    for _ in results:
        pass


def read_object(folder: Folder, guid: str) -> bytes:
    """The bytes of an object as they are at rest. Raises StoreDamaged where the file is gone."""
    try:
        return folder.path(object_file(guid)).read_bytes()
    except OSError as exc:
        detail = f"the image {guid} cannot be read: {exc.strerror}"
        cure = f"`facepipe check --store {folder.root}` lists all such; restore them from a backup."
        raise StoreDamaged(path=folder.root, detail=detail, cure=cure) from exc
