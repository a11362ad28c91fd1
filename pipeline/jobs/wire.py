"""Encoding for the admin port: JSON, or Arrow's streaming format for a table.

JSON loses types, so the reader decodes by the method's declared types. An error is sent as its class and fields: a
command ends with the same message and exit code with or without a server.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import json
from collections.abc import Iterator, Mapping, Set
from datetime import datetime
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Union, cast, get_args, get_origin, get_type_hints

import pyarrow as pa

from pipeline.errors import FacepipeError, all_errors

TOKEN_HEADER: Final = "X-Facepipe-Token"
JSON: Final = "application/json"
ARROW: Final = "application/vnd.apache.arrow.stream"


def pack(value: object) -> tuple[str, bytes]:
    """Returns (media type, body) of a table, or of plain values, dataclasses, sets, datetimes, paths, bytes and further
    tables, nested."""
    if isinstance(value, pa.Table):
        return ARROW, b"".join(stream(value.to_reader()))
    return JSON, json.dumps(value, default=_plain).encode()


def stream(batches: pa.RecordBatchReader) -> Iterator[bytes]:
    """Yields the parts of an Arrow stream as each batch is read."""
    out = io.BytesIO()
    with pa.ipc.new_stream(out, batches.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            yield out.getvalue()
            out.seek(0)
            out.truncate()
    yield out.getvalue()


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set):
        return sorted(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, pa.Table):
        return _plain(pack(value)[1])
    raise TypeError(f"{type(value).__name__} cannot be sent through the admin port")


def unpack(media_type: str, body: bytes, kind: Any) -> Any:
    """Decodes a value of type `kind` that `pack` wrote. Raises ValueError or TypeError for any other."""
    if media_type == ARROW:
        return pa.ipc.open_stream(body).read_all()
    return decode(json.loads(body), kind)


def decode(value: Any, kind: Any) -> Any:
    """Decodes a JSON `value` of type `kind`. Raises ValueError or TypeError if it is none."""
    if kind is Any:
        return value
    origin, parameters = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in parameters:
            return None
        (kind,) = (parameter for parameter in parameters if parameter is not NoneType)
        return decode(value, kind)
    if dataclasses.is_dataclass(kind):
        types = get_type_hints(kind)
        fields = {name: decode(part, types.get(name)) for name, part in _typed(value, dict).items()}
        return cast("type[Any]", kind)(**fields)
    if origin is tuple and parameters[-1] is ...:
        return tuple(decode(part, parameters[0]) for part in _typed(value, list))
    if origin is tuple:
        return tuple(decode(part, part_kind) for part, part_kind in zip(_typed(value, list), parameters, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        return {decode(key, parameters[0]): decode(part, parameters[1]) for key, part in _typed(value, dict).items()}
    if origin is not None:  # a list, a sequence or a set
        parts = [decode(part, parameters[0]) for part in _typed(value, list)]
        return set(parts) if issubclass(origin, Set) else parts
    if kind is datetime:
        return datetime.fromisoformat(value)
    if kind is bytes:
        return base64.b64decode(value, validate=True)
    if kind is Path:
        return Path(value)
    if kind is pa.Table:
        return unpack(ARROW, decode(value, bytes), kind)
    if kind is float:
        return float(_typed(value, (int, float)))
    return _typed(value, NoneType if kind is None else kind)


def _typed(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{value!r:.40} is of another type than the method declares")
    return value


def pack_error(error: FacepipeError) -> bytes:
    return json.dumps({"error": type(error).__name__, "fields": error.fields}, default=str).encode()


def unpack_error(body: bytes) -> FacepipeError:
    """Decodes an error of `pack_error`. Raises ValueError, KeyError or TypeError for anything else."""
    error = json.loads(body)
    classes = {kind.__name__: kind for kind in all_errors()}
    return classes[error["error"]](**error["fields"])
