"""Photos whose pixels say whose faces they show, and an extractor that reads it.

For benchmarks and tests of what stands around the models: a store, a server, a crash. There models would only take
time, and their vectors would be nobody's choice. Everything else, decoding included, is the real thing; so a server
in another process needs no table of what was planted.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from pipeline.config import load_settings
from pipeline.extraction.rows import CROP, MODEL, OTHER, face_schema, fixed_lists
from pipeline.matching.calibration import Calibration
from pipeline.runtime.stage_times import StageTimes
from pipeline.store.records import StoreIdentity
from pipeline.types import DecodedImage, FloatArray

SIDE = 64  # pixels of the place that each face has in a photo
_CODE = 24  # bytes: eight pixels
_SEEN, _MISSED = 255, 254  # marks of faces
_PAINT = (0, 255, 0)
PAINTED = slice(12, 48)  # rows and, in the face's place, columns of a missed face
_SPREAD = 0.2  # the distance, about, of two photos of one person; of two persons it is about sqrt(2)
_BOX = ("x1", "y1", "x2", "y2")
JPEG = b"\xff\xd8\xff\xe0"


@dataclass(frozen=True)
class Shown:
    """One face: of `person`, in photo number `variant` of theirs, of this quality (all three measures)."""

    person: int
    variant: int = 0
    quality: float = 0.9
    missed: bool = False  # on the whole photo: it is detected in a part of it only

    def code(self) -> bytes:
        return np.array([self.person, self.variant, round(self.quality * 1000)], "<i8").tobytes()

    @classmethod
    def of_code(cls, code: bytes) -> Shown:
        person, variant, quality = np.frombuffer(code, "<i8").tolist()
        return cls(person, variant, quality / 1000)


def photo(*faces: Shown) -> bytes:
    """A PNG of these faces, given from the largest to the smallest, side by side."""
    out = io.BytesIO()
    Image.fromarray(pixels(*faces)).save(out, "PNG", compress_level=1)
    return out.getvalue()


def pixels(*faces: Shown) -> np.ndarray:
    """The photo, [SIDE, SIDE * n, 3] uint8."""
    made = np.zeros((SIDE, SIDE * max(1, len(faces)), 3), np.uint8)
    for place, face in enumerate(faces):
        made[0, place * SIDE : place * SIDE + _CODE // 3] = np.frombuffer(face.code(), np.uint8).reshape(-1, 3)
        # A face stands here: its code alone may be all zeros.
        made[1, place * SIDE] = _MISSED if face.missed else _SEEN
        if face.missed:
            made[PAINTED, place * SIDE :][:, PAINTED] = _PAINT
    return made


def shown(image: np.ndarray, *marks: int) -> list[Shown]:
    """The faces of a photo's pixels."""
    places = [x for x in range(0, image.shape[1], SIDE) if image[1, x, 0] in (marks or (_SEEN,))]
    return [Shown.of_code(image[0, x : x + _CODE // 3].tobytes()) for x in places]


def vector(face: Shown, size: int) -> FloatArray:
    """[size] float32 of norm 1."""
    made = _direction([face.person], size)
    if face.variant:
        made = made + _SPREAD / np.sqrt(2) * _direction([face.person, face.variant], size)
    return np.asarray(made / np.linalg.norm(made), np.float32)


def _direction(seed: list[int], size: int) -> np.ndarray:
    made = np.random.default_rng(seed).normal(size=size)
    return np.asarray(made / np.linalg.norm(made))


class CodedExtractor:
    """Stands where the models do. Each face's stored picture has `crop_bytes` bytes that do not compress."""

    def __init__(self, size: int, crop_bytes: int = 300, model: str | None = None) -> None:
        """`model`: `StoreIdentity.model`; None: that of any store."""
        self.size = size
        self.crop_bytes = crop_bytes
        self.model = model
        self._other: StoreIdentity | None = None

    def measure_also(self, other: StoreIdentity | None) -> None:
        """From now on embeds by the coded model of another size, too."""
        self._other = other

    def keep_one(self, model: str) -> None:
        """As that of `BatchExtractor`."""
        if self._other is not None and self._other.model == model:
            self.size, self.model = self._other.embedding_size, model
        self._other = None

    def extract(
        self, images: Sequence[DecodedImage], _: StageTimes | None = None, known: Sequence[pa.Table] | None = None
    ) -> list[pa.Table]:
        """One table of faces (`face_schema`, with the picture) per image: of all, or of the `known` ones. In a part
        of a photo it is the missed face, if one is there."""
        if known is None:
            return [self._detected(image.pixels) for image in images]
        tables = [self.table(shown(image.pixels, _SEEN, _MISSED)) for image in images]
        return [_at_known_places(table, faces) for table, faces in zip(tables, known, strict=True)]

    def _detected(self, image: np.ndarray) -> pa.Table:
        rows, columns = np.nonzero((image[..., 1] > 200) & (image[..., 0] < 50))
        if len(image) == SIDE or not len(rows):
            return self.table(shown(image))
        box = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
        return _with_boxes(self.table([Shown(0)]), [pa.array([float(side)], pa.float32()) for side in box])

    def table(self, faces: Sequence[Shown]) -> pa.Table:
        count = len(faces)
        left = np.arange(count, dtype=np.float32) * SIDE
        side = np.maximum(40 - np.arange(count, dtype=np.float32), 20)
        quality = np.array([face.quality for face in faces], np.float32)
        vectors = [self.vector(face, self.size) for face in faces]
        columns = [
            *(pa.array(values) for values in (left, np.zeros(count, np.float32), left + side, side)),
            fixed_lists(np.full((count, 10), 20, np.float32)),
            pa.array(np.full(count, 0.99, np.float32)),
            *[pa.array(quality)] * 3,
            fixed_lists(np.array(vectors, np.float32).reshape(count, self.size)),
            self._others(faces),
            pa.array([self.crop(face) for face in faces], pa.binary()),
        ]
        schema = face_schema(self.size).append(CROP)
        return pa.table(columns, schema=schema if self.model is None else schema.with_metadata({MODEL: self.model}))

    def _others(self, faces: Sequence[Shown]) -> pa.Array:
        other = self._other
        if other is None:
            return pa.nulls(len(faces), OTHER.type)
        model, size = other.model, other.embedding_size
        rows = [{"model": model, "qualities": [f.quality] * 3, "embedding": self.vector(f, size)} for f in faces]
        return pa.array(rows, OTHER.type)

    def vector(self, face: Shown, size: int) -> FloatArray:
        """What the coded model of this size makes of a face."""
        return vector(face, size)

    def crop(self, face: Shown) -> bytes:
        """What is stored as the picture of this face."""
        return JPEG + np.random.default_rng([face.person, face.variant, 1]).bytes(self.crop_bytes - len(JPEG))


def _at_known_places(table: pa.Table, known: pa.Table) -> pa.Table:
    place = pc.cast(pc.floor(pc.divide(known["x1"], float(SIDE))), pa.int64())
    return _with_boxes(table.take(place), [known[name] for name in _BOX])


def _with_boxes(table: pa.Table, columns: Sequence[pa.Array]) -> pa.Table:
    for name, column in zip(_BOX, columns, strict=True):
        table = table.set_column(table.column_names.index(name), table.schema.field(name), column)
    return table


def coded_identity(size: int) -> StoreIdentity:
    """Of a store for these faces, whose raw distance is the contract distance (g = 1)."""
    settings = load_settings(environ={})
    return StoreIdentity(
        embedder="coded",
        weights="none",
        weights_sha256="0" * 64,
        embedding_size=size,
        preprocessing={},
        calibration=Calibration().as_dict(),
        mode=settings.run.mode,
        output_settings=settings.output_settings(),
        output_hash=settings.output_hash(),
        pixel_key="0" * 32,
    )
