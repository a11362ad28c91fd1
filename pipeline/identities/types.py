"""What goes into the identity service and comes out of it. HTTP's names and JSON's shapes are `serve`'s."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.extraction.rows import ExtractedFace
from pipeline.store.records import PersonRecord


@dataclass(frozen=True)
class PostRequest:
    """What a `POST /people` asks for beside the image. Qualities: None is "the setting's"; 0 switches off."""

    name: str | None = None
    external_id: str | None = None
    threshold: float | None = None  # T in [0, 4]; None: the setting's
    min_cpq: float | None = None
    min_fsq: float | None = None
    min_fcq: float | None = None
    insert: bool = True
    update: bool = True
    insert_all: bool = False  # every unmatched face that passes the gate, not only the largest
    largest_only: bool = False  # answer the largest face only
    min_size_px: float = 0.0  # faces whose longer side is below are recognised only, whatever their quality
    similar_limit: int = 0


@dataclass(frozen=True)
class PersonView:
    """A record as an answer shows it: itself, and the merged set it stands in."""

    record: PersonRecord
    root: PersonRecord  # itself where nothing is merged
    children_images: Sequence[str]  # image guids of the other records of the set; of a root only, else empty
    occurrence: int  # of a root: the sum over its set
    last_occurrence_at_ms: int  # epoch milliseconds; of a root: the latest of its set


@dataclass(frozen=True)
class SimilarPerson:
    """One root identity, and how similar its most similar record is."""

    person: PersonView
    score: float


@dataclass(frozen=True)
class FaceResult:
    """One face of the posted image. `person` is the root it was recognised as or inserted as."""

    face: ExtractedFace
    person: PersonView | None = None
    score: float | None = None
    inserted: bool = False
    rejected: tuple[str, ...] = ()  # quality measures (types.CENTER_POSE ...) that kept it from being inserted
    similar: Sequence[SimilarPerson] | None = None  # None: not asked for


@dataclass(frozen=True)
class PostResult:
    """The answer to a post, largest face first."""

    faces: Sequence[FaceResult]
    width: int  # of the upright image, pixels
    height: int
    media_id: str  # UUID text derived from the image's SHA-256
    account_updated: bool
    detection_ms: int


@dataclass(frozen=True)
class PersonChange:
    """What `PUT /people/{id}` changes: None leaves a field as it is, "" (or an empty list) removes it."""

    name: str | None = None
    external_id: str | None = None
    tags: tuple[str, ...] | None = None
    ignored: bool | None = None


@dataclass(frozen=True)
class StoredImage:
    """A stored image. `data` is the picture, or what is at rest where that was asked for."""

    guid: str
    data: bytes
    media_type: str


@dataclass(frozen=True)
class ServiceStats:
    """For metrics and readiness."""

    directories: int
    identities: int  # references that answer
    index_bytes: int
    queued_images: int  # waiting for the models
