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
from pipeline.people.records import StoredDirectory, by_age
from pipeline.people.rules import row_of
from pipeline.people.service import IdentityService
from pipeline.people.types import FaceResult, PersonView, PostRequest, PostResult
from pipeline.runtime.stage_times import StageTimes
from pipeline.store.local import LocalStore
from pipeline.store.records import (
    Change,
    Committed,
    FaceVector,
    Merges,
    PersonRecord,
    PersonRows,
    References,
    Remembered,
    Rows,
    StoreIdentity,
)
from pipeline.types import DecodedImage
from tests.store import store_samples
from tests.stored import stored_people

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


class _Rows(PersonRows):
    """Records that no table has."""

    def __init__(self, number: int, records: Iterable[PersonRecord]) -> None:
        super().__init__(number, pa.table({}))
        object.__setattr__(self, "_records", list(records))

    def records(self) -> list[PersonRecord]:
        return list(self._records)  # type: ignore[attr-defined]


class PlantedPeople(StoredDirectory):
    """What a store would hold of a directory."""

    def __init__(self, size: int) -> None:  # without a store
        self.account_id, self.name, self.embedding_size = 1, "main", size
        self.number = 0  # of the last commit
        self.people: dict[str, PersonRecord] = {}
        self.faces: dict[str, FaceVector] = {}  # by person
        self.allowed: set[str] = set()  # hashes of photos on which somebody may be twice

    def merges(self) -> Merges:
        parents = {p: record.parent_id for p, record in self.people.items() if record.parent_id is not None}
        return Merges(self.number, len(self.people), parents)

    def persons(self, person_ids: Sequence[str]) -> PersonRows:
        return _Rows(self.number, [self.people[p] for p in person_ids if p in self.people])

    def persons_after(self, seq: int, count: int) -> PersonRows:
        return _Rows(self.number, [r for r in by_age(self.people.values()) if r.seq > seq][:count])

    def persons_called(self, names: Sequence[str], external_ids: Sequence[str]) -> list[str]:
        found = (r for r in self.people.values() if r.name in names or r.external_id in external_ids)
        return [record.person_id for record in found]

    def remembered(self) -> Remembered:
        return Remembered()

    def twice_allowed(self) -> set[str]:
        return self.allowed

    def threshold_of(self, values: Remembered) -> float | None:
        return None

    def fold(self) -> None:
        pass

    def is_picture(self, guid: str) -> bool:
        return guid in {record.image_guid for record in self.people.values()}

    def references(self) -> References:
        known = [record for record in by_age(self.people.values()) if record.person_id in self.faces]
        faces = [self.faces[record.person_id] for record in known]
        return References(
            self.number,
            [],
            np.array([face.embedding for face in faces], np.float32).reshape(-1, self.embedding_size),
            np.array([record.seq for record in known], np.int64),
            [record.person_id for record in known],
            [face.image_hashes for face in faces],
            np.array([face.box for face in faces], np.float32).reshape(-1, 4),
        )


class PlantedDirectory(Directory):
    """A directory without a store."""

    def __init__(self, size: int = SIZE, planted: PlantedPeople | None = None) -> None:
        self.planted = planted or PlantedPeople(size)
        super().__init__(self.planted)
        self.load()


def apply(
    directory: PlantedDirectory,
    records: Iterable[PersonRecord] = (),
    references: Mapping[str, FaceVector] | None = None,
    deleted: Sequence[str] = (),
) -> None:
    """Commits these changes, and follows them."""
    records, faces = list(records), dict(enumerate((references or {}).values()))
    planted = directory.planted
    known = planted.people
    change = Change(
        directory.account_id,
        directory.name,
        "delete" if deleted else "insert",
        before=Rows({r.person_id: row_of(known[r.person_id]) if r.person_id in known else None for r in records}),
        after=Rows(
            {record.person_id: row_of(record) for record in records},
            references=dict(zip(references or (), faces, strict=True)),
        ),
        pictures={record.person_id: (record.image_guid, b"", "") for record in records if record.image_guid},
        vectors=faces,
        deleted=deleted,
    )
    planted.number += 1
    known |= {record.person_id: record for record in records}
    planted.faces |= references or {}
    for person_id in deleted:
        known.pop(person_id)
        planted.faces.pop(person_id, None)
    directory.apply(change, Committed(planted.number, NOW, {}, None))


def put(directory: PlantedDirectory, number: int, vector: np.ndarray, *hashes: str) -> None:
    """Gives the person "p<number>", who is new or not, this reference."""
    person_id = f"p{number}"
    record = directory.get(person_id) or person(number)
    record = replace(record, image_guid=f"{person_id}-{len(directory.view().index)}")
    apply(directory, [record], {person_id: FaceVector(vector, hashes, BOX)})


def listed(people: IdentityService, account_id: int, directory: str) -> list[PersonView]:
    """Everybody, as the service lists them."""
    return people.people(account_id, directory, [r.person_id for r in people.records(account_id, directory)])


@dataclass
class PostHandler:
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
        return listed(self.people, self.account, "main")

    def records(self) -> list[PersonRecord]:
        """As the service answers them."""
        return [view.record for view in self.all()]

    def stored(self) -> list[PersonRecord]:
        """As the store holds them."""
        return list(stored_people(self.client, self.account, "main").persons)


def person_of(face: FaceResult) -> PersonView:
    assert face.person is not None
    return face.person
