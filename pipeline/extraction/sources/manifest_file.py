"""A manifest as source: CSV, JSON Lines or Parquet, streamed.

Columns: `path` or `uri`; optional `name`, `external_id`, `directory`; others are kept. Names ignore case and
surrounding blanks. Rows without a usable location are rejected; invalid files stop the scan.
"""

from __future__ import annotations

import codecs
import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import ManifestInvalid
from pipeline.texts import MAX_TEXT, directory_name, is_unicode, path_text

LOCATION_COLUMNS: Final = ("path", "uri")
TEXT_COLUMNS: Final = ("name", "external_id", "directory")
_COLUMNS = (*LOCATION_COLUMNS, *TEXT_COLUMNS)
_HEADER_CHARACTERS = 2**17
_ONE_A_LINE: Final = "; a manifest has one object on each line"
_READ_ERRORS = (OSError, UnicodeError, csv.Error)
# For Parquet:
_BATCH_ROWS: Final = 1024
_ROW_BYTES: Final = 2**18  # on average in a batch; a CSV field has at most 2**17
_COLUMN_BYTES: Final = 2**30  # of a row group, as encoded
_VALUES_PER_ROW: Final = 10_000  # on average in a row group, for lists
_DICTIONARIES: Final = frozenset({"NONE", "STRING"})  # logical types that can be read as dictionary codes


@dataclass(frozen=True)
class ManifestRow:
    """One row; `where` ("line 7", "row 12") is for messages."""

    where: str
    location: str  # "" if the row has none
    name: str | None
    external_id: str | None
    directory: str | None
    extra: Mapping[str, Any]


def read_manifest(path: Path, kind: str) -> Iterator[ManifestRow]:
    """The rows of a csv, jsonl or parquet manifest, in order.

    Memory: a line or a batch of Parquet rows. Raises ManifestInvalid, with the line or row if known.
    """
    rows = {"csv": _csv_rows, "jsonl": _json_rows, "parquet": _parquet_rows}[kind](path)
    for where, values in rows:
        yield _row(path, where, values)


def _invalid(path: Path, detail: str) -> NoReturn:
    raise ManifestInvalid(path=path_text(path), detail=detail)


def _row(path: Path, where: str, values: Mapping[str, Any]) -> ManifestRow:
    texts = {column: _text(path, where, column, values.get(column)) for column in TEXT_COLUMNS}
    locations = (_location(path, where, values.get(column)) for column in LOCATION_COLUMNS)
    directory = texts["directory"]
    if directory is not None:
        try:
            texts["directory"] = directory_name(directory)
        except ValueError as exc:
            _invalid(path, f'{where}: directory "{path_text(directory)}" {exc}')
    extra = {_jsonable(key): _jsonable(value) for key, value in values.items() if key not in _COLUMNS}
    return ManifestRow(where, next(filter(None, locations), ""), extra=extra, **texts)


def _location(path: Path, where: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):  # Parquet file names as bytes
        return value.decode("utf-8", "surrogateescape")
    if not isinstance(value, str):
        _invalid(path, f"{where}: path must be text, not {type(value).__name__}")
    return value if value.strip() else ""


def _text(path: Path, where: str, column: str, value: Any) -> str | None:
    """A name or an id: numbers become text, a float with an integer value "7", not "7.0"."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        _invalid(path, f"{where}: {column} must be text or a number, not {type(value).__name__}")
    text = str(value).strip()
    if len(text) > MAX_TEXT:
        _invalid(path, f"{where}: {column} has {len(text):,} characters, the limit is {MAX_TEXT:,}")
    if not is_unicode(text):
        _invalid(path, f"{where}: {column} is not valid Unicode text")
    return text or None


def _jsonable(value: Any) -> Any:
    """`value` for JSON: dates in ISO format, bytes in hexadecimal, NaN as null, lone surrogates escaped."""
    if isinstance(value, str):
        return value if is_unicode(value) else path_text(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {_jsonable(str(key)): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    return str(value)


def _columns(path: Path, names: Iterable[str], where: str = "it") -> list[str]:
    """The normalised names. Raises ManifestInvalid without a location column or for repeated names."""
    names = list(names)
    columns = [name.strip().lower() if name.strip().lower() in _COLUMNS else name.strip() for name in names]
    if not any(column in LOCATION_COLUMNS for column in columns):
        listed = ", ".join(path_text(column) for column in columns[:20]) or "none"
        _invalid(path, f"{where} has no path or uri (but: {listed})")
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        _invalid(path, f'{where} has "{path_text(twice[0])}" more than once')
    return columns


def _csv_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    line = 0
    try:
        with path.open(encoding=_encoding(path), newline="") as file:
            delimiter = _delimiter(file.readline(_HEADER_CHARACTERS))
            file.seek(0)
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            header = next(reader, None)
            if header is None:
                _invalid(path, "it is empty; it needs a header line with path or uri")
            columns = _columns(path, header)
            line = reader.line_num
            for fields in reader:
                line = reader.line_num
                if not fields:
                    continue
                if len(fields) != len(columns):
                    _invalid(path, f"line {line} has {len(fields)} fields, the header has {len(columns)}")
                yield f"line {line}", dict(zip(columns, fields, strict=True))
    except _READ_ERRORS as exc:
        _invalid(path, f"line {line + 1} cannot be read ({_reason(exc)})")


def _encoding(path: Path) -> str:
    """UTF-8 with or without a byte order mark, or UTF-16 with one (spreadsheets' "Unicode text")."""
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def _delimiter(header: str) -> str:
    """The separator: spreadsheets also write tabs, or semicolons if the decimal sign is a comma."""
    for delimiter in ",;\t":
        names = {name.strip().strip('"').strip().lower() for name in header.split(delimiter)}
        if not names.isdisjoint(LOCATION_COLUMNS):
            return delimiter
    return ","


def _reason(exc: Exception) -> str:
    return "it is not UTF-8 text" if isinstance(exc, UnicodeError) else str(exc)


def _json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    line = 0
    keys: list[str] = []
    columns: list[str] = []
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for line, text in enumerate(file, start=1):
                if not text.strip():
                    continue
                values = _json_row(path, line, text)
                if list(values) != keys:
                    keys, columns = list(values), _columns(path, values, f"line {line}")
                yield f"line {line}", dict(zip(columns, values.values(), strict=True))
    except _READ_ERRORS as exc:
        _invalid(path, f"line {line + 1} cannot be read ({_reason(exc)})")


def _json_row(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        values = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        _invalid(path, f"line {line} is not JSON ({exc}){_ONE_A_LINE}")
    if not isinstance(values, dict):
        _invalid(path, f"line {line} must be a JSON object, not {type(values).__name__}{_ONE_A_LINE}")
    return values


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    row = 0
    try:
        with _open_parquet(path) as file:
            columns = _columns(path, file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                size = sum(_plain_bytes(column) for column in batch.columns)
                if size > _ROW_BYTES * batch.num_rows:
                    mean = size // batch.num_rows
                    raise ValueError(f"its rows hold {mean:,} bytes each, the limit is {_ROW_BYTES:,}")
                lists = [_micros(column).to_pylist() for column in batch.columns]
                for values in zip(*lists, strict=True):
                    row += 1
                    yield f"row {row}", dict(zip(columns, values, strict=True))
    except (pa.ArrowException, OSError, ValueError, OverflowError) as exc:
        reason = (str(exc).splitlines() or [type(exc).__name__])[0]
        _invalid(path, f"after row {row} it cannot be read as Parquet ({reason})")


def _open_parquet(path: Path) -> pq.ParquetFile:
    """Opens the file with texts as dictionary codes: a few bytes can encode millions of copies, so sizes are checked
    first (`_plain_bytes`).

    Raises ValueError if its own figures exceed the limits, and pa.ArrowException.
    """
    metadata = pq.read_metadata(path)
    leaves = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    for group in (metadata.row_group(number) for number in range(metadata.num_row_groups)):
        for number, leaf in enumerate(leaves):
            chunk = group.column(number)
            if chunk.total_uncompressed_size > _COLUMN_BYTES or leaf.length > _ROW_BYTES:
                raise ValueError(f"column {leaf.path} takes too much memory")
            if chunk.num_values > _VALUES_PER_ROW * max(group.num_rows, 1):
                raise ValueError(f"column {leaf.path} has too many values per row")
    texts = [c.path for c in leaves if c.physical_type == "BYTE_ARRAY" and c.logical_type.type in _DICTIONARIES]
    return pq.ParquetFile(path, metadata=metadata, read_dictionary=texts)


def _plain_bytes(values: pa.Array) -> int:
    """Size without dictionary encoding."""
    if pa.types.is_dictionary(values.type):
        lengths = pc.binary_length(values.dictionary).cast(pa.int64())
        return pc.sum(lengths.take(values.indices)).as_py() or 0
    if pa.types.is_struct(values.type):
        return sum(_plain_bytes(field) for field in values.flatten())
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type) or pa.types.is_map(values.type):
        return _plain_bytes(values.values)
    return int(values.nbytes)


def _micros(column: pa.Array) -> pa.Array:
    """Cuts nanoseconds to microseconds, datetime's limit."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        return column.cast(pa.timestamp("us", column.type.tz), safe=False)
    if column.type == pa.time64("ns"):
        return column.cast(pa.time64("us"), safe=False)
    return column.cast(pa.duration("us"), safe=False) if column.type == pa.duration("ns") else column
