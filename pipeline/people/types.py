"""What goes into the identity service and comes out of it. The names of HTTP and JSON belong to `serve`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pipeline.extraction.rows import ExtractedFace
from pipeline.store import NO_CHANGE, PersonChange, PersonRecord

# Why a face does not update the person: another external id or name, or the named person is another one. Or why two
# people are not merged: a constraint says that they are two.
Conflict: TypeAlias = Literal["external-id", "name", "person", "stated-two-people"]


@dataclass(frozen=True)
class PostRequest:
    """What a `POST /people` asks for beside the image. None means the setting's value; a quality of 0 switches that
    check off."""

    name: str | None = None
    external_id: str | None = None
    details: PersonChange = NO_CHANGE  # what else is said of the person
    threshold: float | None = None  # T in [0, 3.99], or 4
    min_cpq: float | None = None
    min_fsq: float | None = None
    min_fcq: float | None = None
    insert: bool = True
    update: bool = True
    insert_all: bool = False  # every unmatched face that passes the gate, not only the largest
    closest_x: float | None = None  # only the face whose centre is nearest to this fraction of the width
    closest_y: float | None = None  # and of the height; either or both
    largest_only: bool = False  # only the largest face
    larger_than: float = 0.0  # only faces of at least this fraction of the height
    min_size_px: float = 0.0  # a face whose longer side is shorter is only recognised, whatever its quality
    update_person_id: str | None = None  # the only record that may be updated; nothing is inserted
    merge_with: str | None = None  # the person that becomes one with the person of the face
    update_if_lower_quality: bool = False  # only a reference that is lower in all three qualities is replaced
    update_if_older_days: float = 0.0  # only a reference that is older is replaced
    similar_limit: int = 0


@dataclass(frozen=True)
class PersonView:
    """A record as an answer shows it, with its merged set."""

    record: PersonRecord
    root: PersonRecord  # the record itself where nothing is merged
    children_images: Sequence[str]  # image guids of the other records of the set; empty unless the record is its root
    occurrence: int  # a root's is the sum over its set
    last_occurrence_at_ms: int  # epoch milliseconds; a root's is the latest of its set


@dataclass(frozen=True)
class SimilarPerson:
    """One root, and the score of its most similar record."""

    person: PersonView
    score: float


@dataclass(frozen=True)
class FaceResult:
    """One face of the posted image. `person` is the root it was recognised as or inserted as."""

    face: ExtractedFace
    person: PersonView | None = None
    score: float | None = None
    new_id: str | None = None  # of the record that was inserted from it; `person` is its root
    rejected: tuple[str, ...] = ()  # quality measures (types.CENTER_POSE ...) that kept it from being inserted
    conflict: Conflict | None = None  # why it updated nobody
    similar: Sequence[SimilarPerson] | None = None  # None unless asked for

    @property
    def inserted(self) -> bool:
        return self.new_id is not None


@dataclass(frozen=True)
class PostResult:
    """The answer to a post, largest face first."""

    faces: Sequence[FaceResult]
    width: int  # of the upright image, pixels
    height: int
    media_id: str  # UUID text derived from the image's SHA-256
    account_updated: bool
    detection_ms: int
    provider: str  # the models that found and recognised the faces


@dataclass(frozen=True)
class StoredImage:
    """A stored image. `data` is the picture, or the bytes at rest if those were asked for."""

    guid: str
    data: bytes
    media_type: str
