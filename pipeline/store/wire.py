"""How the two sides of the door write things down: JSON, or Arrow's streaming format for tables.

An error crosses the door as its class and its fields, so that a command ends with the same message and exit code
on either side of it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Set
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pipeline.errors import FacepipeError, all_errors

TOKEN_HEADER: Final = "X-Facepipe-Token"
JSON: Final = "application/json"
ARROW: Final = "application/vnd.apache.arrow.stream"


def pack(value: Any) -> tuple[str, bytes]:
    """(media type, body) of a table, or of what JSON can say; dataclasses become objects, sets sorted lists."""
    if not isinstance(value, pa.Table):
        return JSON, json.dumps(value, default=_plain).encode()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, value.schema) as writer:
        writer.write_table(value)
    return ARROW, sink.getvalue().to_pybytes()


def unpack(media_type: str, body: bytes) -> Any:
    """A table, or plain JSON values. Raises ValueError (ArrowInvalid is one) for what `pack` did not write."""
    if media_type == ARROW:
        return pa.ipc.open_stream(body).read_all()
    return json.loads(body)


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set):
        return sorted(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} does not go through the door")


def pack_error(error: FacepipeError) -> bytes:
    return json.dumps({"error": type(error).__name__, "fields": error.fields}, default=str).encode()


def unpack_error(body: bytes) -> FacepipeError:
    """The error that `pack_error` wrote. Raises ValueError, KeyError or TypeError for anything else."""
    said = json.loads(body)
    classes = {kind.__name__: kind for kind in all_errors()}
    return classes[said["error"]](**said["fields"])
