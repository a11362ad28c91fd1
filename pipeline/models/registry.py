"""The weight sets that facepipe knows: where each comes from, what it must hash to, and how it is used.

Plain data, in `registry.yaml`: usable without the weights and without torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import yaml

from pipeline.errors import UnknownWeights
from pipeline.matching.calibration import Calibration

# How `align` cuts a face out: the box with a margin, or turned and scaled by its five landmarks.
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
    """The network's input: a face cut out as `alignment` says, each RGB value x in [0, 255] as (x - mean) * scale.

    `centre_sha256`: of the file with the mean embedding that is subtracted from the network's output
    (`weights.load_centre`); None: nothing is subtracted.
    """

    mean: float
    scale: float
    alignment: Alignment
    centre_sha256: str | None = None


@dataclass(frozen=True)
class WeightSet:
    """One row of the registry. A set comes from a `package` (its files lie in the folder `folder`), or a `url`."""

    name: str
    kind: Literal["embedder", "detector"]
    architecture: str  # of an embedder, a name in `architectures`; what a store records as its embedder
    title: str
    source: str  # for people
    files: tuple[SourceFile, ...]
    licence: str
    input_size: int  # pixels, the crops' width and height; 0: any
    embedding_size: int  # 0: embeds nothing
    preprocessing: Preprocessing
    accuracy: str  # as published
    calibration: Calibration
    package: str | None = None  # as it would be imported
    distribution: str | None = None  # as it is installed
    folder: str = "."
    url: str | None = None
    detection_version: int | None = None

    @property
    def file(self) -> SourceFile:
        """The one file of an embedder."""
        return self.files[0]

    @property
    def sha256(self) -> str:
        """Of the published file; of several, the SHA-256 of theirs."""
        hashes = [file.sha256 for file in self.files]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def _row(name: str, row: dict[str, Any]) -> WeightSet:
    facts = row["calibration"]
    table = facts.pop("table", ())
    facts["thresholds"] = tuple((rate, threshold) for rate, threshold, _, _ in table)
    facts["intervals"] = tuple((low, high) for _, _, low, high in table)
    row["calibration"] = Calibration(**facts)
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
