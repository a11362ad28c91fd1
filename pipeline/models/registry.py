"""The known weight sets with sources, hashes and use, from `registry.yaml`. Needs no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import yaml

from pipeline.errors import UnknownWeights
from pipeline.matching.calibration import Calibration

# How `align` crops faces: box with margin, or rotated and scaled by the landmarks.
Alignment: TypeAlias = Literal["box", "five-point"]
FIVE_POINT: Final = "five-point"


@dataclass(frozen=True)
class SourceFile:
    """One published file."""

    name: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Preprocessing:
    """The network's input: crops by `alignment`, with (x - mean) * scale of RGB values x in [0, 255].

    `centre_sha256`: of the file with the mean embedding to subtract from outputs (`weights.load_centre`), or None.
    """

    mean: float
    scale: float
    alignment: Alignment
    centre_sha256: str | None = None


@dataclass(frozen=True)
class WeightSet:
    """A registry row. Its source is a `package` (files in `folder`) or a `url`."""

    name: str
    kind: Literal["embedder", "detector"]
    architecture: str  # of an embedder: name in `architectures`, recorded by stores
    title: str
    source: str  # human-readable
    files: tuple[SourceFile, ...]
    licence: str
    input_size: int  # side of crops in pixels; 0: any
    embedding_size: int  # 0: no embedder
    preprocessing: Preprocessing
    accuracy: str  # as published
    calibration: Calibration
    cuts: tuple[tuple[float, float], ...] = ()  # of average link, as `calibration.cut_for` takes them
    package: str | None = None  # import name
    distribution: str | None = None  # name to install
    folder: str = "."
    url: str | None = None

    @property
    def file(self) -> SourceFile:
        """An embedder's only file."""
        return self.files[0]

    @property
    def sha256(self) -> str:
        """The published file's hash; of several, the SHA-256 of theirs."""
        hashes = [file.sha256 for file in self.files]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def _row(name: str, row: dict[str, Any]) -> WeightSet:
    facts = row["calibration"]
    table = facts.pop("table", ())
    facts["thresholds"] = tuple((rate, threshold) for rate, threshold, _, _ in table)
    facts["intervals"] = tuple((low, high) for _, _, low, high in table)
    row["calibration"] = Calibration(**facts)
    row["cuts"] = tuple(map(tuple, row.get("cuts", ())))
    row["preprocessing"] = Preprocessing(**row["preprocessing"])
    row["files"] = tuple(SourceFile(**file) for file in row["files"])
    return WeightSet(name, **row)


_ROWS: Final = [
    _row(name, row) for name, row in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8")).items()
]
REGISTRY: Final[Mapping[str, WeightSet]] = {row.name: row for row in _ROWS}
EMBEDDERS: Final = tuple(row.name for row in _ROWS if row.kind == "embedder")
CASIA_WEBFACE, VGGFACE2, SFACE, DETECTOR = "casia-webface", "vggface2", "sface", "detector"


def weight_set(name: str) -> WeightSet:
    """The registry's row `name`. Raises UnknownWeights."""
    if name not in REGISTRY:
        raise UnknownWeights(name=name, known=", ".join(REGISTRY))
    return REGISTRY[name]
