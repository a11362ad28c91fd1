"""Photos whose faces are planted: a test about decisions needs exact vectors."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import pyarrow as pa
from PIL import Image

from pipeline.config import Settings, load_settings
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.rows import CROP, face_schema
from pipeline.matching.calibration import Calibration
from pipeline.people.directory import Directory
from pipeline.people.rules import row_of
from pipeline.people.service import IdentityService
from pipeline.people.types import FaceResult, PersonView, PostRequest, PostResult
from pipeline.runtime.stage_times import StageTimes
from pipeline.store.local import LocalStore
from pipeline.store.records import Change, Committed, FaceVector, PersonRecord, Rows, StoreIdentity
from pipeline.types import DecodedImage
from tests.store import store_samples

SIZE = 16
BOX = (0.0, 0.0, 40.0, 40.0)
NOW = datetime(2026, 1, 1)
_numbers = itertools.count(1)


def identity() -> StoreIdentity:
    """Of a model whose raw distance is the contract distance (g = 1)."""
    return replace(store_samples.identity(), embedding_size=SIZE, calibration=Calibration().as_dict())


def somebody(number: int) -> np.ndarray:
    """[SIZE] the vector of person `number`, at right angles to all others (distance sqrt 2)."""
    return np.eye(SIZE, dtype=np.float32)[number]


def near(person: int, distance: float, towards: int = SIZE - 1) -> np.ndarray:
    """[SIZE] a vector at this contract distance of a person, in the plane with another."""
    angle = 2 * math.asin(distance / 2)
    return (math.cos(angle) * somebody(person) + math.sin(angle) * somebody(towards)).astype(np.float32)


@dataclass(frozen=True)
class Face:
    """A face at (x, 0), `side` pixels wide and high."""

    vector: np.ndarray
    side: int = 40
    x: int = 0
    quality: tuple[float, float, float] = (0.9, 0.9, 0.9)
    confidence: float = 0.99


class PlantedExtractor:
    """Answers, for each image, the faces that were planted in it."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self.batches: list[int] = []  # images in each call
        self._faces: dict[bytes, pa.Table] = {}  # by the pixels

    def photo(self, *faces: Face) -> bytes:
        """A new PNG of 400 x 100 that shows these faces, given from the largest to the smallest."""
        return self.copies(1, *faces)[0]

    def copies(self, count: int, *faces: Face) -> list[bytes]:
        """Different files with the same pixels."""
        pixels = np.zeros((100, 400, 3), np.uint8)
        pixels[0, 0] = list(next(_numbers).to_bytes(3, "big"))
        made = []
        for level in range(count):
            out = io.BytesIO()
            Image.fromarray(pixels).save(out, "PNG", compress_level=level)
            made.append(out.getvalue())
        self._faces[pixels.tobytes()] = self._table(faces)
        return made

    def _table(self, faces: Sequence[Face]) -> pa.Table:
        rows = [
            {
                "x1": face.x,
                "y1": 0,
                "x2": face.x + face.side,
                "y2": face.side,
                "landmarks": [float(face.x + 10), 10.0] * 5,
                "confidence": face.confidence,
                "center_pose_quality": face.quality[0],
                "sharpness_quality": face.quality[1],
                "contrast_quality": face.quality[2],
                "embedding": face.vector.tolist(),
                "crop": b"\xff\xd8\xff picture of " + face.vector.tobytes(),
            }
            for face in faces
        ]
        return pa.Table.from_pylist(rows, face_schema(self.size).append(CROP))

    def extract(self, images: Sequence[DecodedImage], _: StageTimes | None = None) -> list[pa.Table]:
        self.batches.append(len(images))
        return [self._faces[image.pixels.tobytes()] for image in images]


def settings(**serve: object) -> Settings:
    made = load_settings(environ={})
    return replace(made, serve=replace(made.serve, **{"person_headers": "optional", **serve}))


def service(client: LocalStore, extractor: PlantedExtractor, **serve: object) -> IdentityService:
    """A service whose models are the planted ones."""
    used = settings(**serve)
    made = IdentityService(client, extractor, Decoder(used.decode), used)  # type: ignore[arg-type]
    made.load()
    return made


def person(number: int, **changed: object) -> PersonRecord:
    """The record "p<number>"."""
    record = PersonRecord.new(f"p{number}", NOW, image_guid=f"guid-{number}", seq=number + 1)
    return replace(record, **changed)


def apply(
    directory: Directory,
    records: Iterable[PersonRecord] = (),
    references: Mapping[str, FaceVector] | None = None,
    deleted: Sequence[str] = (),
) -> None:
    """Makes these changes in memory, as a commit of them would."""
    records, faces = list(records), dict(enumerate((references or {}).values()))
    change = Change(
        directory.account_id,
        directory.name,
        "delete" if deleted else "insert",
        after=Rows(
            {record.person_id: row_of(record) for record in records},
            references=dict(zip(references or (), faces, strict=True)),
        ),
        pictures={record.person_id: (record.image_guid, b"", "") for record in records if record.image_guid},
        vectors=faces,
        deleted=deleted,
    )
    directory.apply(change, Committed(NOW, {}, None))


def put(directory: Directory, number: int, vector: np.ndarray, *hashes: str) -> None:
    """Gives the person "p<number>", who is new or not, this reference."""
    person_id = f"p{number}"
    record = directory.get(person_id) or person(number)
    record = replace(record, image_guid=f"{person_id}-{len(directory.view().index)}")
    apply(directory, [record], {person_id: FaceVector(vector, hashes, BOX)})


@dataclass
class Poster:
    """Posts photos of planted faces into one directory."""

    client: LocalStore
    people: IdentityService
    extractor: PlantedExtractor
    account: int

    def send(self, data: bytes, **request: object) -> PostResult:
        return self.people.post(self.account, "main", data, PostRequest(**request))  # type: ignore[arg-type]

    def post(self, *faces: Face, **request: object) -> PostResult:
        return self.send(self.extractor.photo(*faces), **request)

    def one(self, vector: np.ndarray, **request: object) -> FaceResult:
        (face,) = self.post(Face(vector), **request).faces
        return face

    def all(self) -> list[PersonView]:
        return self.people.people(self.account, "main")

    def records(self) -> list[PersonRecord]:
        """As the service answers them."""
        return [view.record for view in self.all()]

    def stored(self) -> list[PersonRecord]:
        """As the store holds them."""
        return list(self.client.references(self.account, "main").persons)


def person_of(face: FaceResult) -> PersonView:
    assert face.person is not None
    return face.person
