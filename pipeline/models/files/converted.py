"""Converted weights as a safetensors file that knows what it was made from, and notices when it was damaged.

The metadata hold the SHA-256 of the source file, the converter's version, and a digest of the content: of every
tensor's name, type, shape and bytes, which unlike the file's own hash does not depend on how the header is written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import safetensors
import safetensors.torch
import torch

from pipeline.errors import WeightsCorrupt
from pipeline.models.files.cache import replacing

# Raised when a published file would give other tensors: converted files of another version are made anew.
CONVERTER_VERSION: Final = 1

_SOURCE, _VERSION, _DIGEST = "source_sha256", "converter", "content_sha256"


def content_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over the tensors in the order of their names: a JSON line [name, type, shape], then the bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode() + b"\n")
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_converted(target: Path, tensors: Mapping[str, torch.Tensor], source_sha256: str) -> None:
    """Writes the file, whole or not at all. Raises CacheUnwritable."""
    metadata = {_SOURCE: source_sha256, _VERSION: str(CONVERTER_VERSION), _DIGEST: content_digest(tensors)}
    data = safetensors.torch.save(dict(tensors), metadata)
    with replacing(target) as file:
        file.write(data)


def is_current(path: Path, source_sha256: str) -> bool:
    """`path` was made from that source by this converter; reads the header alone. Raises WeightsCorrupt."""
    if not path.exists():
        return False
    return _claims(path, _metadata(path)) == (source_sha256, str(CONVERTER_VERSION))


def read_converted(path: Path) -> dict[str, torch.Tensor]:
    """All tensors, their digest checked. Raises WeightsCorrupt, also where the file cannot be read."""
    metadata = _metadata(path)
    try:
        tensors = safetensors.torch.load(path.read_bytes())
    except (OSError, safetensors.SafetensorError, KeyError, ValueError) as exc:
        raise _corrupt(path, str(exc)) from exc
    found = content_digest(tensors)
    if found != metadata.get(_DIGEST):
        raise _corrupt(path, f"its content hashes to {found}, and was written as {metadata.get(_DIGEST)}")
    return tensors


def _metadata(path: Path) -> dict[str, str]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (OSError, safetensors.SafetensorError) as exc:
        raise _corrupt(path, str(exc)) from exc


def _claims(path: Path, metadata: Mapping[str, str]) -> tuple[str, str]:
    try:
        return metadata[_SOURCE], metadata[_VERSION]
    except KeyError as exc:
        raise _corrupt(path, f"its header says nothing of {exc}") from exc


def _corrupt(path: Path, detail: str) -> WeightsCorrupt:
    cure = f"Run `facepipe models fetch {path.stem}`, which makes it again."
    return WeightsCorrupt(path=path, detail=detail, cure=cure)
