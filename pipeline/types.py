"""What flows between the stages. Every array says its shape, dtype, range and coordinate frame.

Coordinates are pixels of the *upright* original (after the EXIF turn), x to the right and y down, the origin at
the upper left corner of the upper left pixel. Boxes are xyxy. Landmarks are, in this order, the centre of the
left eye, of the right eye, the tip of the nose, the left and the right corner of the mouth ("left" as seen in
the picture). Hashes are lower-case hexadecimal SHA-256.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
Array: TypeAlias = Any  # one of NumPy, or a torch tensor on a device: `runtime.arrays` has the arithmetic for both

# The status of a media row: these, or the `status` of an ImageRejected class.
OK: Final = "ok"
NO_FACE: Final = "no_face"
DUPLICATE: Final = "duplicate"  # the bytes of another row: no decoding, but its faces are grouped again
DUPLICATE_ROW: Final = "duplicate_row"  # the same path, directory and bytes again: not a new sighting
FORGOTTEN: Final = "forgotten"  # nothing of it is stored any more, and no run takes it up again
REPLACED: Final = "replaced"  # nothing of it is stored any more: its file changed, and has another row
# All others are refusals: the image could not be used.
ACCEPTED_STATUSES: Final = frozenset({OK, NO_FACE, DUPLICATE, DUPLICATE_ROW, FORGOTTEN, REPLACED})

# What became of a face. `recognised`: matched nothing, and the contract forbids inserting it (a further face
# of a named photo). `removed`: it was forgotten, and nothing of it is stored.
Outcome: TypeAlias = Literal["inserted", "matched", "rejected", "recognised", "removed"]
# Why a face that would have been inserted was not; in this order.
CENTER_POSE: Final = "center-pose"
SHARPNESS: Final = "sharpness"
CONTRAST: Final = "contrast"
QUALITIES: Final = ("center_pose_quality", "sharpness_quality", "contrast_quality")  # columns of a table of faces


def boxes_of(faces: pa.Table) -> FloatArray:
    """The boxes [n, 4] xyxy of a table of faces."""
    return np.stack([faces[name].to_numpy() for name in ("x1", "y1", "x2", "y2")], axis=1)


# A folder or a manifest; or, as text, the address of a prefix of a bucket: s3://bucket/photos.
Source: TypeAlias = Path | str


class FileState(NamedTuple):
    """What tells without reading whether a file is still the one that was hashed. Times in ns since 1970: of the last
    change of its content, which programs may set back, and of the last change of either, which none can. Of an object
    in a bucket the first is when it was written, in whole seconds, and the second stands for its ETag."""

    bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int  # its lower 63 bits, which fit into a table; of an object 0


@dataclass(frozen=True)
class ImageRef:
    """One row of the input: a file, and what the user says of it."""

    path: str  # as reports and the store show it: absolute for files, valid UTF-8
    file: str  # what is opened: a path, with odd bytes as os.fsdecode gives them, or an object's address
    name: str | None = None
    external_id: str | None = None
    directory: str | None = None  # None: the run's directory
    extra: Mapping[str, Any] = field(default_factory=dict)  # further manifest columns, JSON-able
    rejected: ImageRejected | None = None  # what already scanning found wrong
    state: FileState | None = None  # of an object, where the listing told it


@dataclass(frozen=True)
class DecodedImage:
    """One upright image in memory."""

    pixels: ByteArray  # [H, W, 3] uint8, RGB, alpha flattened on white, C-contiguous
    format: str  # "jpeg", "png", ...
    remark: str | None = None  # what is wrong with the file, though it was taken

    @property
    def width(self) -> int:
        return int(self.pixels.shape[1])

    @property
    def height(self) -> int:
        return int(self.pixels.shape[0])


@dataclass(frozen=True)
class EncodedImage:
    """A sound-looking JPEG file whose pixels a device will decode. Its sides are those of the upright picture."""

    data: bytes
    width: int
    height: int
    orientation: int  # the EXIF turn that is to be applied, 1 for none
    format: str


@dataclass(frozen=True)
class DeviceImage:
    """One upright image in a device's memory."""

    pixels: torch.Tensor  # [H, W, 3] uint8, RGB, contiguous
    remark: None = None


@dataclass(frozen=True)
class Detections:
    """The faces of a batch of B images, flat: n faces, on the detector's device, ordered by image, and in one
    image from the largest box to the smallest (ties by confidence)."""

    image_index: Array  # [n] int64, in 0..B-1
    boxes: Array  # [n, 4] float32 xyxy, may reach over the image's edge
    landmarks: Array  # [n, 5, 2] float32 (x, y)
    scores: Array  # [n] float32 in [0, 1]

    def __len__(self) -> int:
        return int(self.image_index.shape[0])


@dataclass(frozen=True)
class FaceCrops:
    """Faces cut from original pixels, at the embedder's input size S."""

    pixels: Array  # [n, 3, S, S] float32 in [0, 255], RGB
    frames: Array  # [n, 4] float32 xyxy: what part of the upright original each crop shows
    box_share: float  # of the crop's side: the face box without its margin, where no image edge cuts it


@dataclass(frozen=True)
class Measured:
    """A face as another model has it."""

    model: str  # `StoreIdentity.model`
    qualities: Sequence[float]  # in the order of QUALITIES
    embedding: FloatArray | None  # [d] float32; None: it has no vector


@dataclass(frozen=True)
class FaceBatch:
    """n faces of one directory, in the order in which they are decided."""

    embeddings: FloatArray  # [n, d], L2 norm 1
    insertable: BoolArray  # [n] False: never becomes an identity (the gate, or the contract's rules)
    # The identical-image rule: hashes that identify the image (of its bytes and of its pixels), and the box.
    image_hashes: Sequence[tuple[str, ...]]
    boxes: FloatArray  # [n, 4] xyxy

    def __len__(self) -> int:
        return int(self.embeddings.shape[0])


@dataclass(frozen=True)
class Decisions:
    """What `group` decided for the n faces of a FaceBatch."""

    # [n] position of the identity: p < len(index) is a reference of the index, len(index) + k the k-th
    # identity inserted by this batch (its own position for an inserted face), -1 none.
    position: IntArray
    inserted: BoolArray  # [n] the face became the identity at `position`
    score: DoubleArray  # [n] the similarityScore to that identity; for an inserted face at d = 0; NaN for none


class Progress(Protocol):
    """Receives how far a long piece of work is: a bar, a line a minute, or nothing. Called from any thread."""

    def start(self, phase: str, total: int | None) -> None:
        """A new phase begins; `total` steps, None where nobody knows yet."""

    def advance(self, count: int = 1) -> None:
        """`count` more steps are done."""

    def note(self, text: str) -> None:
        """Something that the user should read."""


class SilentProgress:
    """Progress that shows nothing."""

    def start(self, phase: str, total: int | None) -> None: ...
    def advance(self, count: int = 1) -> None: ...
    def note(self, text: str) -> None: ...
