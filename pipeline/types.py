"""The types that stages exchange. Every array states its shape, dtype, range and coordinate frame.

Coordinates are pixels of the *upright* original (EXIF orientation applied), x right and y down; the origin is the upper
left corner of the upper left pixel. Boxes are xyxy. The landmarks are, in order, the centres of the left and right eye,
the tip of the nose, and the left and right corner of the mouth ("left" as seen in the picture). Hashes are lower-case
hexadecimal SHA-256.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

    from pipeline.errors import ImageRejected

FloatArray: TypeAlias = npt.NDArray[np.float32]
DoubleArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
ByteArray: TypeAlias = npt.NDArray[np.uint8]
Array: TypeAlias = Any  # a NumPy array, or a torch tensor on a device: `runtime.arrays` has the arithmetic for both

# The status of a media row: one of these, or the `status` of an ImageRejected class.
OK: Final = "ok"
NO_FACE: Final = "no_face"
DUPLICATE: Final = "duplicate"  # same bytes as another row: not decoded, but its faces are grouped again
DUPLICATE_ROW: Final = "duplicate_row"  # same path, directory and bytes as another row: not a new detection
FORGOTTEN: Final = "forgotten"  # its data is deleted, and no run imports it again
REPLACED: Final = "replaced"  # its data is deleted: the file changed, and has another row
# All others mean that the image could not be used.
ACCEPTED_STATUSES: Final = frozenset({OK, NO_FACE, DUPLICATE, DUPLICATE_ROW, FORGOTTEN, REPLACED})

# Outcomes of a face. `recognised`: matched nothing, and the contract forbids inserting it (a further face of a named
# photo). `removed`: forgotten, its data is deleted. `drawn`: a user drew it on the photo; it stays so.
Outcome: TypeAlias = Literal["inserted", "matched", "rejected", "recognised", "removed", "drawn"]
DRAWN: Final = "drawn"
# Why a face was not inserted, in order of precedence.
CENTER_POSE: Final = "center-pose"
SHARPNESS: Final = "sharpness"
CONTRAST: Final = "contrast"
QUALITIES: Final = ("center_pose_quality", "sharpness_quality", "contrast_quality")  # columns of a table of faces


def boxes_of(faces: pa.Table) -> FloatArray:
    """Returns the boxes [n, 4] xyxy of a table of faces."""
    return np.stack([faces[name].to_numpy() for name in ("x1", "y1", "x2", "y2")], axis=1)


# A folder or a manifest; or, as text, a bucket prefix: s3://bucket/photos.
Source: TypeAlias = Path | str


class FileState(NamedTuple):
    """Tells, without reading it, whether a file is still the one that was hashed. Times are ns since 1970. Programs can
    set mtime back, but not ctime. For an object in a bucket mtime is when it was written, in whole seconds, and ctime
    is derived from its ETag."""

    bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int  # the lower 63 bits, which fit into a table; 0 for an object


@dataclass(frozen=True)
class ImageRef:
    """One row of the input: a file, and what the user states about it."""

    path: str  # as shown in reports and stored: absolute for files, valid UTF-8
    file: str  # what is opened: a path, odd bytes as os.fsdecode gives them, or an object's address
    name: str | None = None
    external_id: str | None = None
    directory: str | None = None  # None: the run's directory
    extra: Mapping[str, Any] = field(default_factory=dict)  # further manifest columns, JSON-able
    rejected: ImageRejected | None = None  # a problem found during scanning
    state: FileState | None = None  # of an object, if the listing gave it


@dataclass(frozen=True)
class DecodedImage:
    """One upright image in memory."""

    pixels: ByteArray  # [H, W, 3] uint8, RGB, alpha flattened on white, C-contiguous
    format: str  # "jpeg", "png", ...
    remark: str | None = None  # what is wrong with the file, although it was accepted
    taken_at: datetime | None = None  # by its EXIF data: local time of the camera, without zone

    @property
    def width(self) -> int:
        return int(self.pixels.shape[1])

    @property
    def height(self) -> int:
        return int(self.pixels.shape[0])


@dataclass(frozen=True)
class EncodedImage:
    """A plausible JPEG file that a device will decode. Width and height are those of the upright picture."""

    data: bytes
    width: int
    height: int
    orientation: int  # the EXIF orientation to apply, 1 for none
    format: str
    taken_at: datetime | None = None  # as in DecodedImage


@dataclass(frozen=True)
class DeviceImage:
    """One upright image in a device's memory."""

    pixels: torch.Tensor  # [H, W, 3] uint8, RGB, contiguous
    remark: None = None


@dataclass(frozen=True)
class Detections:
    """The n faces of a batch of B images, flat, on the detector's device, ordered by image, then from the largest box
    to the smallest (ties by confidence)."""

    image_index: Array  # [n] int64, in 0..B-1
    boxes: Array  # [n, 4] float32 xyxy, may extend beyond the image
    landmarks: Array  # [n, 5, 2] float32 (x, y)
    scores: Array  # [n] float32 in [0, 1]

    def __len__(self) -> int:
        return int(self.image_index.shape[0])


@dataclass(frozen=True)
class FaceCrops:
    """Faces cut from original pixels, at the embedder's input size S."""

    pixels: Array  # [n, 3, S, S] float32 in [0, 255], RGB
    frames: Array  # [n, 4] float32 xyxy: the part of the upright original that each crop shows
    box_share: float  # of the crop's side: the face box without margin, if no image edge cuts it


@dataclass(frozen=True)
class Measured:
    """A face as measured by another model."""

    model: str  # `StoreIdentity.model`
    qualities: Sequence[float]  # in the order of QUALITIES
    embedding: FloatArray | None  # [d] float32; None: it has no vector


@dataclass(frozen=True)
class FaceBatch:
    """n faces of one directory, in the order of decision."""

    embeddings: FloatArray  # [n, d], L2 norm 1
    insertable: BoolArray  # [n] False: never becomes an identity (quality gate, or the contract's rules)
    # The identical-image rule: hashes that identify the image (of its bytes and of its pixels), and the box.
    image_hashes: Sequence[tuple[str, ...]]
    boxes: FloatArray  # [n, 4] xyxy

    def __len__(self) -> int:
        return int(self.embeddings.shape[0])


@dataclass(frozen=True)
class Decisions:
    """What `group` decided for the n faces of a FaceBatch."""

    # [n] position of the identity: p < len(index) is a reference of the index, len(index) + k the k-th identity
    # inserted by this batch (its own position for an inserted face), -1 none.
    position: IntArray
    inserted: BoolArray  # [n] the face became the identity at `position`
    score: DoubleArray  # [n] the similarityScore to that identity; for an inserted face at d = 0; NaN for none


class Progress(Protocol):
    """Receives the progress of a long task. Called from any thread."""

    def start(self, phase: str, total: int | None) -> None:
        """Begins a phase of `total` steps, None if unknown."""

    def advance(self, count: int = 1) -> None:
        """Reports `count` more steps done."""

    def note(self, text: str) -> None:
        """Shows the user a message."""


class SilentProgress:
    """Progress that shows nothing."""

    def start(self, phase: str, total: int | None) -> None: ...
    def advance(self, count: int = 1) -> None: ...
    def note(self, text: str) -> None: ...


def utc_now() -> datetime:
    """UTC, naive, as in the catalog."""
    return datetime.now(timezone.utc).replace(tzinfo=None)
