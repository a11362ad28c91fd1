"""Searches a store for what must not be in it: all bytes of its files, and all text columns of the catalog."""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import unicodedata
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store.catalog.connection import Catalog
from pipeline.store.files.durable import Folder
from pipeline.store.schema import TABLES

LEAST_BYTES: Final = 4  # shorter texts are everywhere by chance: they are only searched as whole values of columns
_UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ROWS: Final = 65_536


def forms(text: str) -> list[str]:
    """The text as a store may have it: in each Unicode form, and as JSON escapes it, also JSON in JSON."""
    plain = [text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFD"))]
    texts = [*plain, *(json.dumps(each, ensure_ascii=False)[1:-1] for each in plain)]
    return [*dict.fromkeys([*texts, *(json.dumps(each)[1:-1] for each in texts)])]


def patterns_of_text(text: str) -> list[bytes]:
    """The bytes to search for, of a UUID also as a number; none for a short text."""
    if len(text.encode()) < LEAST_BYTES:
        return []
    texts = [form.encode(code) for form in forms(text) for code in ("utf-8", "utf-16-le", "utf-16-be")]
    if not _UUID.fullmatch(text):
        return texts
    data = uuid.UUID(text).bytes
    return [*texts, data, data[:7:-1] + data[7:0:-1] + bytes([data[0] ^ 0x80])]  # the last: as DuckDB has it


def patterns_of_photo(data: bytes) -> list[bytes]:
    """The SHA-256 of a photo's bytes, raw and as text."""
    digest = hashlib.sha256(data)
    return [digest.digest(), *patterns_of_text(digest.hexdigest())]


def in_files(folder: Folder, patterns: Mapping[str, Iterable[bytes]]) -> Iterator[tuple[str, str]]:
    """Yields (key of the patterns, file relative to the store) for each file that has one of them among its bytes, in
    its name, or in a compressed text column of Parquet. Others may write meanwhile."""
    for file in sorted(folder.root.rglob("*")):
        if file.is_symlink() or not file.is_file():
            continue
        name = file.relative_to(folder.root).as_posix()
        for key, wanted in patterns.items():
            if any(pattern in name.encode("utf-8", "surrogateescape") for pattern in wanted) or _has(file, wanted):
                yield key, name


def _has(file: Path, wanted: Iterable[bytes]) -> bool:
    try:
        with file.open("rb") as opened:
            if not file.stat().st_size:
                return False
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if any(content.find(pattern) >= 0 for pattern in wanted):
                    return True
        return file.suffix == ".parquet" and any(pattern in buffer for buffer in _buffers(file) for pattern in wanted)
    except FileNotFoundError:
        return False


def _buffers(file: Path) -> Iterator[bytes]:
    """The text columns of a Parquet file; none of one that is encrypted."""
    try:
        parquet = pq.ParquetFile(file)
        schema = parquet.schema_arrow
        names = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_binary(field.type)]
        for batch in parquet.iter_batches(_ROWS, columns=names) if names else ():
            for column in batch.columns:
                yield from (buffer.to_pybytes() for buffer in column.buffers() if buffer is not None)
    except pa.ArrowException:
        return


def in_table(catalog: Catalog, table: str, text: str) -> list[tuple[str, int]]:
    """The text columns of a table in `core`, for a UUID also those of ids, that contain the text, with the number of
    rows. A short text must be the whole value."""
    kinds = ("VARCHAR", "UUID", "UUID[]") if _UUID.fullmatch(text) else ("VARCHAR",)
    columns = [name for name, kind in TABLES[table].items() if kind in kinds]
    if not columns:
        return []
    is_short = len(text.encode()) < LEAST_BYTES
    condition = "list_contains($1, {})" if is_short else "list_bool_or([contains({}, x) FOR x IN $1])"
    counts = ", ".join(f"count_if({condition.format(name)})" for name in (f'"{name}"::VARCHAR' for name in columns))
    (found,) = catalog.rows(f"SELECT {counts} FROM core.{table}", [forms(text)])
    return [(f"core.{table}.{name}", count) for name, count in zip(columns, found, strict=True) if count]
