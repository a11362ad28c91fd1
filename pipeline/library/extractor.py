"""Faces of images in memory, without a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipeline.config import Settings
from pipeline.errors import ImageRejected
from pipeline.extraction.stored_picture import cut_faces, encode_reference_image
from pipeline.library.arguments import settings_of
from pipeline.types import QUALITIES, DecodedImage, FloatArray, boxes_of

if TYPE_CHECKING:
    from pipeline.extraction.images.given import GivenImage


@dataclass(frozen=True)
class Face:
    """A face found in an image. Coordinates are pixels of the upright image."""

    box: FloatArray  # [4] float32 xyxy, within the image
    landmarks: FloatArray  # [5, 2] float32 (x, y): left eye, right eye, nose, left and right corner of the mouth
    confidence: float  # of the detector, in [0, 1]
    center_pose_quality: float  # in [0, 1], higher is better, like the two below
    sharpness_quality: float
    contrast_quality: float
    embedding: FloatArray  # [d] float32, L2 norm 1
    picture: bytes  # an encoded cut-out, as stored for a person


class FaceExtractor:
    """Finds and embeds the faces of images in memory, without a store.

    >>> extractor = FaceExtractor.from_settings(weights="casia-webface", device="cpu")
    >>> (face,) = extractor.faces("photos/hopper.jpg")
    >>> face.embedding.shape
    (512,)
    """

    def __init__(self, settings: Settings | None = None) -> None:
        """None: facepipe's settings, as `from_settings()` takes them."""
        from pipeline.extraction.images.decode import Decoder
        from pipeline.jobs.models import load_extractor
        from pipeline.jobs.store_identity import make_identity

        settings = settings or settings_of(None, "auto")
        self._extractor = load_extractor(settings, make_identity(settings), Path())
        self._decode = Decoder(settings.decode)

    @classmethod
    def from_settings(
        cls, *, weights: str = "auto", device: str = "auto", settings: Mapping[str, object] | None = None
    ) -> FaceExtractor:
        """Loads the models onto a device: auto (CUDA if available), cpu, cuda or cuda:N.

        `weights`: auto, casia-webface, vggface2 or sface. `settings`: any others by key. Raises ModelError,
        DeviceError, UsageError.
        """
        return cls(settings_of(settings, weights, device=device))

    def faces(self, image: GivenImage) -> list[Face]:
        """Returns the faces of one image, from the largest to the smallest. `image`: a path, the bytes of a file, an
        array [H, W, 3] uint8 RGB, or a PIL image.

        Raises ImageRejected for an unusable image, UsageError for another array, DeviceError.
        """
        (found,) = self.faces_of_all([image])
        if isinstance(found, ImageRejected):
            raise found
        return found

    def faces_of_all(self, images: Iterable[GivenImage]) -> list[list[Face] | ImageRejected]:
        """Returns for each image its faces, or why it is unusable. The images are processed as one batch. Raises
        UsageError, DeviceError."""
        decoded = [self._decoded(image) for image in images]
        usable = [image for image in decoded if isinstance(image, DecodedImage)]
        tables = iter(self._extractor.extract(usable) if usable else ())
        return [image if isinstance(image, ImageRejected) else _faces(image, next(tables)) for image in decoded]

    def _decoded(self, image: GivenImage) -> DecodedImage | ImageRejected:
        from pipeline.extraction.images.given import read_given

        try:
            given = read_given(image, self._decode.settings)
            return self._decode(given) if isinstance(given, bytes) else given
        except ImageRejected as rejected:
            return rejected


def _faces(image: DecodedImage, table: pa.Table) -> list[Face]:
    cuts = cut_faces(image, boxes_of(table))
    return [_face(row, encode_reference_image(cut)) for row, cut in zip(table.to_pylist(), cuts, strict=True)]


def _face(row: Mapping[str, Any], picture: bytes) -> Face:
    return Face(
        box=np.array([row["x1"], row["y1"], row["x2"], row["y2"]], np.float32),
        landmarks=np.array(row["landmarks"], np.float32).reshape(-1, 2),
        embedding=np.array(row["embedding"], np.float32),
        picture=picture,
        **{name: row[name] for name in ("confidence", *QUALITIES)},
    )
