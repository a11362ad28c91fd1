"""Cached files that detect damage: SHA-256 of the rest, JSON line of metadata, content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pipeline.models.files.cache import replacing

_DIGEST_BYTES: Final = 64  # a SHA-256 in hexadecimal


def write_sealed(path: Path, facts: Mapping[str, str], content: bytes) -> None:
    """Writes the file. Use it under `exclusive`. Raises CacheUnwritable."""
    sealed = json.dumps(facts).encode() + b"\n" + content
    with replacing(path) as file:
        file.write(hashlib.sha256(sealed).hexdigest().encode() + b"\n" + sealed)


def read_sealed(path: Path, claims: Mapping[str, str]) -> tuple[dict[str, str], memoryview] | None:
    """Metadata and content; None if the file is missing, damaged or lacks any of `claims`."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    sealed = memoryview(data)[_DIGEST_BYTES + 1 :]
    if data[:_DIGEST_BYTES] != hashlib.sha256(sealed).hexdigest().encode():
        return None
    start = data.index(b"\n", _DIGEST_BYTES + 1) + 1
    facts: dict[str, str] = json.loads(data[_DIGEST_BYTES:start])
    return (facts, memoryview(data)[start:]) if claims.items() <= facts.items() else None
