"""Converted weights and networks: safetensors files that record their origin and detect damage.

Metadata: for weights the source's SHA-256 and the converter's version; for all a digest of the arrays' names, types,
shapes and bytes, independent of the header's form. Checking needs no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from pipeline.errors import WeightsCorrupt
from pipeline.models.files.cache import replacing

if TYPE_CHECKING:
    import torch

# Increase it if published files give other tensors; older files are made again.
CONVERTER_VERSION: Final = 1

_SOURCE, _VERSION, _DIGEST = "source_sha256", "converter", "content_sha256"


def content_digest(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """SHA-256 over the arrays by name: a JSON line [name, torch's type, shape], then the bytes."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name]).reshape(arrays[name].shape)
        digest.update(json.dumps([name, f"torch.{array.dtype.name}", list(array.shape)]).encode() + b"\n")
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def write_converted(target: Path, tensors: Mapping[str, torch.Tensor], source_sha256: str) -> None:
    """Writes the file atomically. Raises CacheUnwritable."""
    # C order, because safetensors writes memory as it is.
    arrays = {name: tensor.contiguous().numpy() for name, tensor in tensors.items()}
    write_arrays(target, arrays, {_SOURCE: source_sha256, _VERSION: str(CONVERTER_VERSION)})


def write_arrays(target: Path, arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Writes arrays in C order, and metadata, atomically. Use it under `exclusive`. Raises CacheUnwritable."""
    data = safetensors.numpy.save({**arrays}, {**metadata, _DIGEST: content_digest(arrays)})
    with replacing(target) as file:
        file.write(data)


def is_current(path: Path, source_sha256: str) -> bool:
    """Whether this converter made `path` from that source, by its header. Raises WeightsCorrupt."""
    if not path.exists():
        return False
    metadata = read_metadata(path)
    for key in (_SOURCE, _VERSION):
        if key not in metadata:
            raise _corrupt(path, f"its header says nothing of {key!r}")
    return (metadata[_SOURCE], metadata[_VERSION]) == (source_sha256, str(CONVERTER_VERSION))


def read_converted(path: Path) -> dict[str, torch.Tensor]:
    """All tensors, digest checked. Raises WeightsCorrupt, also if the file cannot be read."""
    import torch

    return {name: torch.from_numpy(array) for name, array in check_converted(path).items()}


def check_converted(path: Path) -> dict[str, npt.NDArray[Any]]:
    """`read_converted` without torch."""
    metadata = read_metadata(path)
    try:
        arrays = safetensors.numpy.load_file(path)
    except (OSError, safetensors.SafetensorError, KeyError, ValueError) as exc:
        raise _corrupt(path, str(exc)) from exc
    digest = content_digest(arrays)
    if digest != metadata.get(_DIGEST):
        raise _corrupt(path, f"its content hashes to {digest}, and was written as {metadata.get(_DIGEST)}")
    return arrays


def read_metadata(path: Path) -> dict[str, str]:
    """A file's metadata. Raises WeightsCorrupt, also if the file cannot be read."""
    try:
        with safetensors.safe_open(path, framework="np") as file:
            return file.metadata() or {}
    except (OSError, safetensors.SafetensorError) as exc:
        raise _corrupt(path, str(exc)) from exc


def _corrupt(path: Path, detail: str) -> WeightsCorrupt:
    cure = f"Run `facepipe models fetch {path.stem}`, which makes it again."
    return WeightsCorrupt(path=path, detail=detail, cure=cure)
