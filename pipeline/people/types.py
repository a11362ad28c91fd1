"""Requests and results of the identity service. `serve` maps them to HTTP and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pipeline.extraction.rows import ExtractedFace
from pipeline.store import NO_CHANGE, PersonChange, PersonRecord

# Why a face does not update its person (first three) or is not merged.
Conflict: TypeAlias = Literal["external-id", "name", "person", "stated-two-people"]


@dataclass(frozen=True)
class PostRequest:
    """Parameters of `POST /people`. None: the setting's value; a quality of 0 switches that check off."""

    name: str | None = None
    external_id: str | None = None
    details: PersonChange = NO_CHANGE  # other data of the person
    threshold: float | None = None  # T in [0, 3.99], or 4
    min_cpq: float | None = None
    min_fsq: float | None = None
    min_fcq: float | None = None
    insert: bool = True
    update: bool = True
    insert_all: bool = False  # every unmatched face that passes the quality gate, not only the largest
    closest_x: float | None = None  # only the face with its centre nearest to this fraction of the width
    closest_y: float | None = None  # and of the height; either or both
    largest_only: bool = False
    larger_than: float = 0.0  # only faces of at least this fraction of the height
    min_size_px: float = 0.0  # faces with a shorter longer side are only recognised
    update_person_id: str | None = None  # the only record that may be updated; nothing is inserted
    merge_with: str | None = None  # a person to merge with the face's
    by_user: bool = False  # on the web UI: inserting is a correction, and only who is inserted is merged
    update_if_lower_quality: bool = False  # replaces only references lower in all three qualities
    update_if_older_days: float = 0.0  # replaces only older references
    similar_limit: int = 0


@dataclass(frozen=True)
class PersonView:
    """A record in an answer, with its merged set."""

    record: PersonRecord
    root: PersonRecord  # the record itself if not merged
    children_images: Sequence[str]  # image guids of the set's other records; empty unless the record is its root
    occurrence: int  # for a root, the set's sum
    last_occurrence_at_ms: int  # epoch milliseconds; for a root, the set's latest


@dataclass(frozen=True)
class SimilarPerson:
    """A root and its most similar record's score."""

    person: PersonView
    score: float


@dataclass(frozen=True)
class FaceResult:
    """A face of the posted image. `person`: the root that it was recognised or inserted as."""

    face: ExtractedFace
    person: PersonView | None = None
    score: float | None = None
    new_id: str | None = None  # of the record inserted from it
    rejected: tuple[str, ...] = ()  # qualities (types.CENTER_POSE ...) that prevented its insertion
    conflict: Conflict | None = None  # why it updated nobody
    similar: Sequence[SimilarPerson] | None = None  # None unless requested

    @property
    def inserted(self) -> bool:
        return self.new_id is not None


@dataclass(frozen=True)
class PostResult:
    """The answer to a post, largest face first."""

    faces: Sequence[FaceResult]
    width: int  # of the upright image, pixels
    height: int
    media_id: str  # UUID text from the image's SHA-256
    account_updated: bool
    detection_ms: int
    provider: str  # the models' names
    correction_id: int | None = None  # if it was logged


@dataclass(frozen=True)
class StoredImage:
    """A stored image: the picture, or its bytes at rest if requested."""

    guid: str
    data: bytes
    media_type: str
