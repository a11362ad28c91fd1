"""What goes into a store and comes out of it: dataclasses, and the Arrow schemas of their tables.

The schemas are the interface of an open store, not the format on disk (see FORMAT.md). Boxes are xyxy and landmarks
(x, y) pairs in pixels of the upright original; hashes are lower-case hexadecimal, and SHA-256 but for those of pixels;
directories are given by name and belong to the account of the commit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from functools import cached_property
from typing import Any, Final, TypeAlias, TypedDict

import pyarrow as pa

from pipeline.config import MatchSettings
from pipeline.store.files.segments import Segment
from pipeline.store.schema import TABLES, arrow_schema
from pipeline.types import FORGOTTEN, FloatArray, IntArray, Measured

USER, API, LABEL, RUN = "user", "api", "label", "run"  # the origin of a change
INSERT, UPDATE, MERGE = "insert", "update", "merge"  # kinds of changes; INSERT: that only inserts and counts
# Kinds of changes that delete persons with all of theirs, or photos.
NEVER_UNDONE: Final = frozenset(
    {"delete", "delete_merged", "delete_directory", "forget", "forget_photos", "replace_photos"}
)
COUNTERS: Final = ("occurrence", "last_occurrence_at")  # columns of a person that say how often it was seen

# Media, without what the commit of a shard knows: `row` is that of the run's manifest, from 0; `extra` is a JSON
# object; `duplicate_of` is the media_id whose faces were used.
MEDIA_SCHEMA = arrow_schema(
    "media",
    without={"run_id", "shard", "account_id", "added_at", "gone_at"},
    required={"media_id", "row", "path", "directory", "status"},
)
_WHY: Final = {"similarity_score", "rejection_reasons"}
# Faces with their detections: `ordinal` is the place in the photo, from the largest face, from 0; `rejection_reasons`
# are comma-joined; `landmarks` are five points, x and y.
FACES_SCHEMA = pa.schema(
    [
        *arrow_schema("faces", required={"face_id", "media_id", "ordinal", "outcome"}),
        *arrow_schema("detections", without={"generation", "face_id"}, required=TABLES["detections"].keys() - _WHY),
    ]
)
# Faces that another generation measured again: their detections, and a vector (little-endian float32), or none.
MEASURED_SCHEMA = pa.schema(
    [
        pa.field("face_id", pa.int64(), nullable=False),
        *arrow_schema("detections", without={"generation", "face_id", "similarity_score"}),
        pa.field("embedding", pa.binary()),
    ]
)
# In what state the files of media were read; null if that does not tell whether they changed since.
FILES_SCHEMA = arrow_schema("files", ("media_id", "mtime_ns", "ctime_ns", "inode"), required={"media_id"})
# A row that the store has of a source: see `known_files`.
KNOWN_FILES_SCHEMA = arrow_schema("files", without={"source", "account_id"}).insert(3, pa.field("sha256", pa.string()))
# A file that was read again and has not changed: media_id, bytes, mtime_ns, ctime_ns, inode.
ReadAgain: TypeAlias = tuple[int, int, int, int, int]
Move: TypeAlias = tuple[str, str, str]  # a file's old path, its directory, its new path
Label: TypeAlias = tuple[str | None, str | None]  # what a source says of a photo: name and external id
MediaLabel: TypeAlias = tuple[int, str | None, str | None]  # media_id, and its label
# The same for a label that is another than before; and whether the photo's bytes are the same. If they are not, the
# label counts among those of a person, and nothing follows from it.
LabelChange: TypeAlias = tuple[int, str | None, str | None, bool]


@dataclass(frozen=True)
class SourceMove:
    """A source that is at another path than before, and how the paths of its rows follow."""

    old: str
    prefixes: Sequence[tuple[str, str]]  # how a path began, and how it begins now; the first that fits

    def path(self, path: str) -> str:
        """Where a file is now."""
        return _replaced_prefix(path, self.prefixes)

    def former(self, path: str) -> str:
        """Where a file was that is now at the path."""
        return _replaced_prefix(path, [(new, old) for old, new in self.prefixes])


def _replaced_prefix(path: str, prefixes: Sequence[tuple[str, str]]) -> str:
    return next((new + path[len(old) :] for old, new in prefixes if path.startswith(old)), path)


@dataclass(frozen=True)
class SourceSummary:
    """A source, and how much the store has of it."""

    source: str
    kind: str  # of its last run: folder, csv, jsonl, parquet
    photos: int


@dataclass(frozen=True)
class ScanNotes:
    """What a scan found of rows that the store has."""

    read_again: Sequence[ReadAgain] = ()
    moved: Sequence[Move] = ()
    gone: Sequence[int] = ()  # media that were missed
    back: Sequence[int] = ()  # media that were missed, and are there again
    source: SourceMove | None = None  # before all else; the paths above are those of after it
    forgotten: Sequence[str] = ()  # where files of a moved source are now that were forgotten at their former paths

    def __bool__(self) -> bool:
        return bool(self.read_again or self.changes)

    @property
    def changes(self) -> bool:
        """Whether the source is another than before; files that were only read again are not."""
        return bool(self.source or self.moved or self.gone or self.back)


# Faces of photos that were extracted again, by what tells them whatever the path is; each has an embedding or a reason
# why there is none.
DECODED_SCHEMA = pa.schema(
    [
        pa.field("sha256", pa.string(), nullable=False),  # of the photo
        pa.field("ordinal", pa.int32(), nullable=False),
        pa.field("embedding", pa.binary()),  # little-endian float32
        pa.field("crop", pa.binary()),  # the picture to store; null: it is cut from the photo when it is needed
        pa.field("reason", pa.string()),
        pa.field("model", pa.string()),  # `StoreIdentity.model`
    ]
)


def embeddings_schema(size: int) -> pa.Schema:
    """Embeddings of faces: `face_id` and `size` float32 numbers each, L2 norm 1."""
    kinds = {"face_id": pa.int64(), "embedding": pa.list_(pa.float32(), size)}
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()])


@dataclass(frozen=True)
class StoreIdentity:
    """The model of a store and what made its numbers. It doesn't change in one generation."""

    embedder: str
    weights: str
    weights_sha256: str
    embedding_size: int
    preprocessing: Mapping[str, Any]
    calibration: Mapping[str, Any]
    mode: str
    output_settings: Mapping[str, Any]
    output_hash: str
    encrypted: bool = False  # images at rest
    master_key_id: str | None = None  # of the key that wraps the accounts' image keys; None: not encrypted
    # 32 hexadecimal digits, under which pixels are hashed; a secret. None: the store is older and has SHA-256.
    pixel_key: str | None = field(default=None, repr=False)

    @property
    def model(self) -> str:
        """Tells it from every other model, or way to measure faces."""
        told = [self.weights_sha256, self.preprocessing, self.mode, self.output_settings]
        return hashlib.sha256(json.dumps(told, sort_keys=True, default=dict).encode()).hexdigest()


@dataclass(frozen=True)
class Generation:
    """A model, and what it made of the store's faces."""

    number: int
    identity: StoreIdentity
    complete: bool  # else it is being built: not all faces have their vector yet


@dataclass(frozen=True)
class RunRow:
    """One run. `state`: scanning (the manifest is being written), open (shards are being committed), finished."""

    run_id: str
    source: str
    source_kind: str
    account_id: int
    directory: str  # the default of rows that name none
    settings: Mapping[str, Any]
    state: str
    rows: int | None  # None while scanning
    shards: int | None
    started_at: datetime  # UTC, naive
    finished_at: datetime | None
    summary: Mapping[str, Any] | None


@dataclass(frozen=True)
class RunCounts:
    """What runs brought, and the persons of their account."""

    statuses: dict[str, int]  # of images
    outcomes: dict[str, int]  # of faces
    rejections: dict[str, int]  # of rejected faces, by quality measure
    persons: int  # in all directories; a merged set is one
    label_conflicts: list[dict[str, Any]]
    shared_external_ids: list[dict[str, Any]]


@dataclass(frozen=True)
class PhotoRecord:
    """What became of a file."""

    status: str
    faces: int
    person_id: str | None  # of the largest face
    rejection: str | None  # of the largest face: the quality measures, comma-joined


@dataclass(frozen=True, slots=True)
class PersonRecord:
    """One identity and its current reference, as the catalog holds it. Times are UTC, naive."""

    person_id: str  # UUID text
    last_occurrence_at: datetime
    added_at: datetime
    modified_at: datetime
    seq: int = 0  # the order of insertion; 0 in a commit that inserts the person: the store draws the number
    name: str | None = None
    first_name: str | None = None
    last_name: str | None = None
    external_id: str | None = None
    parent_id: str | None = None  # set by a merge
    tags: tuple[str, ...] = ()
    metadata: str | None = None  # a JSON object: what else clients keep of the person, as they sent it
    ignored: bool = False
    occurrence: int = 1
    image_guid: str | None = None  # None: no face of this person is known, or the known one's photo can't be read

    @classmethod
    def new(cls, person_id: str, now: datetime, **fields: Any) -> PersonRecord:
        """A person that is being inserted; the guid of its picture is not known yet."""
        return cls(person_id, now, now, now, **{"image_guid": "", **fields})

    @property
    def further_fields(self) -> dict[str, Any]:
        """The metadata by name."""
        return dict(json.loads(self.metadata)) if self.metadata else {}


@dataclass(frozen=True)
class PersonRows:
    """Rows of persons, from which `records` are made."""

    number: int  # of the last commit that they show
    table: pa.Table

    def records(self) -> list[PersonRecord]:
        columns = [_person_values(self.table, each.name) for each in fields(PersonRecord)]
        return [PersonRecord(*row) for row in zip(*columns, strict=True)]


def _person_values(table: pa.Table, name: str) -> list[Any]:
    column = table[name]
    if pa.types.is_timestamp(column.type):
        return list(column.to_numpy().astype(object))  # datetimes, ten times as fast as `to_pylist`
    values = column.to_pylist()
    if name == "tags":
        return [tuple(json.loads(text)) if text else () for text in values]
    return list(values)


@dataclass(frozen=True)
class Merges:
    """How many persons a directory has, and who of them is merged with whom."""

    number: int  # of the last commit that they show
    count: int
    parents: Mapping[str, str]  # of those who have one, in the order of insertion


@dataclass(frozen=True)
class References:
    """The current references of one directory in the order in which they came: those of its segments, which are open,
    then the tail, n of them."""

    number: int  # of the last commit that they show
    segments: Sequence[Segment]
    vectors: FloatArray  # [n, d], L2 norm 1
    orders: IntArray  # [n] `PersonRecord.seq`
    person_ids: Sequence[str]
    image_hashes: Sequence[tuple[str, ...]]  # of the reference's media: sha256 of its bytes, hash of its pixels
    boxes: FloatArray  # [n, 4] xyxy


@dataclass(frozen=True)
class PostedImage:
    """The image of a request that brings a reference. The image itself is not kept."""

    sha256: str  # of its bytes
    pixel_hash: str
    bytes: int
    width: int
    height: int
    format: str
    name: str | None  # that the request gave for the largest face
    external_id: str | None


@dataclass(frozen=True)
class ReferenceOrigin:
    """The face that a person's reference was made from."""

    qualities: tuple[float, ...]  # as QUALITIES
    added_at: datetime  # when its image came into the store
    path: str | None  # of its photo; None: it was posted


@dataclass(frozen=True)
class PostedFace:
    """A face of a posted image that becomes the reference of a person."""

    face_id: int
    person_id: str
    ordinal: int  # in the posted image, from the largest face, from 0
    outcome: str  # "inserted", or "matched": it replaces the person's reference
    similarity_score: float
    fields: Mapping[str, Any]  # x1 y1 x2 y2, landmarks, confidence and the three qualities, as in FACES_SCHEMA


@dataclass(frozen=True)
class PostedPhoto:
    """A posted image, and the faces that are stored of it."""

    media_id: int
    image: PostedImage
    faces: Sequence[PostedFace]


@dataclass(frozen=True)
class FaceVector:
    """What a face is recognised by."""

    embedding: FloatArray  # [d] float32
    image_hashes: tuple[str, ...]  # of its image: SHA-256 of the bytes, hash of the pixels
    box: tuple[float, float, float, float]  # xyxy in pixels of the upright image


@dataclass(frozen=True)
class StoredFace:
    """A face of a photo or of a posted image, and whose it is."""

    face_id: int
    person_id: str | None
    outcome: str
    similarity_score: float | None
    rejection_reasons: str | None
    path: str | None  # of its photo; None: it was posted
    sha256: str | None  # of the photo's bytes
    x1: float
    y1: float
    x2: float
    y2: float
    quality: float  # the product of the three
    has_embedding: bool
    media_id: int
    width: int | None  # of the photo
    height: int | None

    @property
    def box(self) -> tuple[float, float, float, float]:
        """xyxy in pixels of the upright photo."""
        return self.x1, self.y1, self.x2, self.y2

    @property
    def area(self) -> float:
        """Of the box, in pixels."""
        return (self.x2 - self.x1) * (self.y2 - self.y1)


@dataclass(frozen=True)
class LabelledPhoto:
    """A photo of a source with its label, and whose its largest face is."""

    media_id: int
    path: str
    label: str | None  # as `known_files` has it
    face_id: int | None  # None: it shows no face
    person_id: str | None
    outcome: str | None


@dataclass(frozen=True)
class FaceToRegroup:
    """A face of a directory with what a gate asks of it."""

    stored: StoredFace
    qualities: tuple[float, float, float]  # as QUALITIES
    named: bool  # its photo has a name, which is that of a larger face
    reference: bool  # its person is known by it
    ordinal: int  # in its photo
    pixel_hash: str | None  # of its photo


@dataclass(frozen=True)
class Fact:
    """What a user or a label states of a face, or of two persons."""

    kind: str  # is, is_not, nobody, not_same
    face_id: int | None = None
    person_id: str | None = None
    other_id: str | None = None  # of not_same: the larger id
    correction_id: int | None = None  # these three: None until it is committed
    origin: str | None = None
    stated_at: datetime | None = None


@dataclass(frozen=True)
class Rows:
    """Rows as they are before a correction, or after it: exactly those, and those columns, that it changes."""

    persons: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)  # by id; None: there is none
    faces: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # by face id
    references: Mapping[str, int | None] = field(default_factory=dict)  # person id -> face id
    facts: Sequence[Fact] = ()

    @cached_property
    def texts(self) -> dict[str, str]:
        """All but the facts, as JSON: name -> text."""
        encode = json.JSONEncoder(default=str, sort_keys=True).encode
        texts = {}
        for name in ("persons", "faces", "references"):
            table: Mapping[Any, Any] = getattr(self, name)
            # Row by row: one call for thousands would keep all other threads waiting for 0.2 s.
            rows = [f"{encode(str(key))}: {encode(table[key])}" for key in sorted(table)]
            texts[name] = "{" + ", ".join(rows) + "}"
        return texts

    @cached_property
    def person_ids(self) -> set[str]:
        """Everybody whom they show."""
        shown: set[str | None] = {*self.persons, *self.references}
        shown.update(columns["parent_id"] for columns in self.persons.values() if columns and "parent_id" in columns)
        shown.update(columns["person_id"] for columns in self.faces.values())
        shown.update(person_id for fact in self.facts for person_id in (fact.person_id, fact.other_id))
        return {person_id for person_id in shown if person_id is not None}


NO_ROWS: Final = '{"persons": {}, "faces": {}, "references": {}, "facts": []}'  # as core.corrections has them
Picture: TypeAlias = tuple[str, bytes, str]  # guid, bytes and media type


@dataclass(frozen=True)
class Change:
    """A change of one directory by a request, a correction or a shard. It is committed as a whole or not at all."""

    account_id: int
    directory: str
    kind: str = INSERT  # as `CorrectionRequest.kind`; update or merge: what a post changes beside; replace_photos
    origin: str = API
    before: Rows = Rows()
    after: Rows = Rows()
    seen: Mapping[str, int] = field(default_factory=dict)  # person id -> how many more photos show the person
    seqs: Mapping[str, int] = field(default_factory=dict)  # of persons that are stored: their rows are found by it
    photo: PostedPhoto | None = None
    replaced: Sequence[str] = ()  # persons whose reference is deleted for good, because `photo` has another
    pictures: Mapping[str, Picture] = field(default_factory=dict)  # by person, of new references that have one
    vectors: Mapping[int, FaceVector] = field(default_factory=dict)  # of new references, by face id
    admitted: Mapping[int, FloatArray] = field(default_factory=dict)  # vectors of faces that were rejected, by face id
    measured: Mapping[int, Measured] = field(
        default_factory=dict
    )  # by the other generation, if there is one: as `vectors`
    undoes: int | None = None  # of the kinds undo and redo: the correction that is undone or redone
    deleted: Sequence[str] = ()  # persons that are deleted with all their faces
    remembered: Set[str] = frozenset()  # kinds of digests that are kept of them, see `catalog.forgotten`
    leaving: Sequence[int] = ()  # media of runs that are deleted with their faces
    leaving_status: str = FORGOTTEN
    labels: Sequence[MediaLabel] = ()  # that are noted with it

    @cached_property
    def persons(self) -> set[str]:
        """The ids of all persons whose rows it writes."""
        return {*self.after.persons, *self.after.references, *self.seen, *self.replaced, *self.deleted}

    @property
    def gone(self) -> list[str]:
        """The persons that are deleted."""
        return [*self.deleted, *(person_id for person_id, columns in self.after.persons.items() if columns is None)]

    @property
    def is_logged(self) -> bool:
        """Whether it is more than insertions and counts."""
        return self.kind != INSERT

    @property
    def can_be_undone(self) -> bool:
        return self.is_logged and self.kind not in NEVER_UNDONE

    @property
    def is_of_faces(self) -> bool:
        """Whether it changes what earlier faces were decided by: whose a face is, what is stated, or who there is."""
        rows = self.logged
        return bool(self.leaving or self.deleted) or any(
            each.faces or each.references or each.facts or None in each.persons.values() for each in rows
        )

    @cached_property
    def logged(self) -> tuple[Rows, Rows]:
        """The rows before and after it that the log keeps for an undo. A new person stays when a post is undone, and so
        does a reference that it replaced."""
        if not self.can_be_undone:
            return Rows(), Rows()
        if self.photo is None:
            return self.before, self.after
        before, after = {}, {}
        for person_id, new in self.after.persons.items():
            old = self.before.persons[person_id]
            if old is None:
                old, new = {"parent_id": None}, {"parent_id": (new or {}).get("parent_id")}
            names = [name for name in old if name != "modified_at" and old[name] != (new or {})[name]]
            if names:
                before[person_id] = {name: old[name] for name in names}
                after[person_id] = {name: (new or {})[name] for name in names}
        return Rows(before), Rows(after)

    def prepare(self) -> None:
        """Makes the texts of the log: for thousands of rows that takes as long as the transaction."""
        for rows in self.logged:
            _ = rows.person_ids, self.undoes is not None or rows.texts


@dataclass(frozen=True)
class Committed:
    """What the commit of a change drew."""

    number: int  # of the transaction
    at: datetime  # UTC
    seqs: Mapping[str, int]  # of new persons
    correction_id: int | None  # of its row in the log; None: it has none


@dataclass(frozen=True)
class Correction:
    """A correction that was made."""

    correction_id: int
    kind: str
    undoes: int | None  # of an undo or a redo: the correction that it is about
    what: str  # the kind of that one; else its own
    made_at: datetime  # UTC
    before: Rows
    after: Rows
    undone_at: datetime | None  # UTC
    merges_only: bool  # its rows are not complete: it deleted somebody, or somebody whom it showed was deleted later
    by_other_model: bool  # it was made, or one after it, while the store answered by another generation


@dataclass(frozen=True)
class Seen:
    """What the sender of a correction had before it. The correction is refused if one of these persons was corrected
    since by somebody else."""

    at: datetime  # UTC
    person_ids: Sequence[str]
    own: Sequence[int] = ()  # corrections that the sender made, or took back


@dataclass(frozen=True)
class CorrectedSince:
    """A correction that was made or taken back meanwhile."""

    correction_id: int
    kind: str
    at: datetime  # UTC
    undone: bool


@dataclass(frozen=True)
class ChangeEntry:
    """A change of people, for readers that keep a copy of them."""

    commit: int
    position: int  # in the commit
    kind: str  # insert, reference (it was replaced), or as in the log: merge, undo, forget, replace_photos, ...
    origin: str | None  # user, api, label, run; None of insertions and references
    at: datetime | None  # UTC; None of references
    account: str  # user id
    directory: str | None  # None: it was deleted
    persons: Sequence[str]  # ids of those who changed, or are another's now; what they are now is to be asked
    gone: Sequence[str]  # ids of those who were deleted: a reader drops them
    undoes: tuple[int, int] | None  # commit and position of the change that this one undoes or redoes


@dataclass(frozen=True)
class ChangesPage:
    """Changes in their order."""

    entries: Sequence[ChangeEntry]
    next: int  # what to ask for next, as `since`
    more: bool  # whether there are more now


@dataclass(frozen=True)
class PersonChange:
    """New values for the fields of a person: None leaves a field as it is, "" or an empty list removes it."""

    name: str | None = None
    first_name: str | None = None
    last_name: str | None = None
    external_id: str | None = None
    tags: Sequence[str] | None = None
    ignored: bool | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)  # further fields as JSON has them; None removes one
    joined: bool = False  # no name was sent: it is the first and the last, as far as they were


NO_CHANGE: Final = PersonChange()


@dataclass(frozen=True)
class CorrectionRequest:
    """What is to be put right. Each kind takes the persons and faces that its name says."""

    account_id: int
    directory: str
    # name, update, hide, unhide, merge, unmerge, split, move, not_same, delete (a record), delete_merged (all that are
    # merged with it), forget, forget_photos, regroup, label, undo (of an undo: it is logged as a redo).
    kind: str
    person_ids: Sequence[str] = ()  # of a move: the person, or none
    face_ids: Sequence[int] = ()
    change: PersonChange = NO_CHANGE  # of the persons; of a merge: of its root
    anyway: bool = False  # merges persons although a constraint says that they are two
    origin: str = USER
    gate: MatchSettings | None = None  # of regroup
    dry_run: bool = False  # of regroup and undo: only says what it would do
    decoded: str | None = None  # of regroup, to a server: the file with faces that were extracted again
    correction_id: int | None = None  # of undo; None: the last one of `undo_origin` that is in force
    undo_origin: str = USER
    media_ids: Sequence[int] = ()  # of forget_photos
    labels: Sequence[LabelChange] = ()  # of label: what the source says now
    seen: Seen | None = None  # None: it is made whatever happened meanwhile


@dataclass(frozen=True)
class FaceMove:
    """A face that is another person's, or nobody's, than before."""

    face_id: int
    path: str | None  # of its photo; None: it was posted
    before: str | None  # person ids
    after: str | None


@dataclass(frozen=True)
class KeptApart:
    """Two persons whose faces are like one person's, and that are not joined."""

    person_id: str
    other_id: str
    reason: str  # name: they have different ones; external id; stated: by a correction


@dataclass(frozen=True)
class NotDecoded:
    """A rejected face that stays so, because its photo could not be extracted again."""

    face_id: int
    path: str
    reason: str


@dataclass(frozen=True)
class Regrouping:
    """What grouping the faces of a directory anew changes."""

    threshold: float
    faces: int  # that were decided
    joins: Sequence[Sequence[str]]  # persons that become one; the first stands for them
    parted: Sequence[str]  # persons that an earlier regroup had joined with others, and that stand alone again
    moves: Sequence[FaceMove]
    new: Sequence[str]  # persons
    gone: Sequence[str]
    kept_apart: Sequence[KeptApart]
    # faces that stay, because a new person's picture can't be cut from a photo, or because their person's other faces
    # have no vector
    without_picture: Sequence[int]
    admitted: Sequence[int]  # rejected faces that this gate would admit
    decoded: bool  # whether they take part, with vectors from their photos
    not_decoded: Sequence[NotDecoded]  # then: those that do not
    names: Mapping[str, str]  # of the persons that are mentioned here


@dataclass(frozen=True)
class FollowedLabels:
    """What followed from labels that changed, in numbers, and the first thousand of each."""

    renamed: int  # persons
    relabelled: int  # faces
    unsettled: int  # labels that are not followed
    # person_id, name, external_id, old_name, old_external_id
    renamed_persons: list[dict[str, Any]]
    # face_id, path, person_id, name, external_id, old_person_id, old_name
    relabelled_faces: list[dict[str, Any]]
    # path, name, external_id, person_id, person_name, person_external_id, reason
    unsettled_labels: list[dict[str, Any]]


@dataclass(frozen=True)
class CorrectionAnswer:
    """What a correction changed."""

    correction_id: int | None  # None: nothing changed, or it cannot be undone; of an undo: what it undid
    kind: str
    persons: Sequence[str] = ()  # changed or new, the new one first; then the others whom its rows show
    gone: Sequence[str] = ()  # persons that are no more
    faces: Sequence[int] = ()
    replaced: Sequence[Fact] = ()  # earlier statements that this contradicts, and replaces
    regrouping: Regrouping | None = None  # of regroup
    labels: FollowedLabels | None = None  # of label
    made_at: datetime | None = None  # UTC; of what is undone: when it was made
    undone_by: int | None = None  # the correction that undid it; undoing that one makes it again
    names: Mapping[str, str] = field(default_factory=dict)  # of the persons, and of those who are gone


@dataclass(frozen=True)
class Credentials:
    """What a password for an account is checked against."""

    account_id: int
    password_hash: str | None  # None: no password opens it


@dataclass(frozen=True)
class AccountSummary:
    """An account, and how much it holds."""

    account_id: int
    account: str
    password_set: bool  # without one nobody gets in by the server
    directories: Sequence[DirectoryRow]

    @property
    def identities(self) -> int:
        """In all directories."""
        return sum(directory.identities for directory in self.directories)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        counts = {"directories": len(self.directories), "identities": self.identities}
        return {"account": self.account, "password_set": self.password_set, **counts}


@dataclass(frozen=True)
class DirectoryRow:
    """A directory that holds identities."""

    account_id: int
    user_id: str
    name: str
    identities: int  # a merged set is one
    records: int


@dataclass(frozen=True)
class SearchQuery:
    """The question who is in an encoded image, of the identities of one directory."""

    image: bytes
    account_id: int
    directory: str
    top: int  # how many of the most similar identities to answer for each face
    threshold: float


@dataclass(frozen=True)
class Candidate:
    """An identity (of a merged set its root) and how similar it is: a score of 1.0 or more is a match (contract,
    section 4.3)."""

    person_id: str
    name: str | None
    external_id: str | None
    similarity_score: float
    photo: str | None = None  # the path of the photo that the reference is from; None: it was posted
    strength: str | None = None  # the word for the score, once it is known


@dataclass(frozen=True)
class FaceAnswer:
    """One face of a photo that was searched for, the largest first."""

    box: tuple[float, float, float, float]  # xyxy in pixels of the upright photo
    confidence: float
    quality: dict[str, float]
    identity: Candidate | None  # the best match, if any
    similar: list[Candidate]  # the most similar identities, best first

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; no `identity` where nobody matches."""
        return {k: v for k, v in asdict(self).items() if v is not None}


class FaceChange(TypedDict):
    """A person (of a merged set the root) who lost or gained a face because a photo changed."""

    person_id: str
    path: str  # of the photo
    change: str  # lost, gained, or deleted: that was the last face of somebody without a name


@dataclass(frozen=True)
class ShardCommit:
    """A shard of a run. It is committed as a whole or not at all.

    The caller chooses ids (from `reserve_ids`) and names of pictures. With the same names after a crash the store
    overwrites the same files.
    """

    run_id: str
    shard: int
    account_id: int
    media: pa.Table  # MEDIA_SCHEMA
    faces: pa.Table  # FACES_SCHEMA
    embeddings: pa.Table  # embeddings_schema(d): of the faces that are not rejected
    files: pa.Table  # FILES_SCHEMA: of the media
    # The faces as the other generation has them, if there is one: `StoreIdentity.model`, MEASURED_SCHEMA.
    measured: tuple[str, pa.Table] | None = None
    changes: Sequence[Change] = ()  # one for each directory
    finished_run_shards: Sequence[int] = ()  # whose run shard files are no longer needed
    face_changes: Sequence[FaceChange] = ()

    @property
    def pictures(self) -> list[Picture]:
        """Each once."""
        return list({picture[0]: picture for change in self.changes for picture in change.pictures.values()}.values())


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    `kind`: catalog, commits, reference, view, embedding, object, segment, run, run_shard, run_file, run_sums, orphan,
    page, mode, pending_delete.
    """

    kind: str
    where: str
    detail: str
    cure: str


@dataclass(frozen=True)
class CheckReport:
    """All problems, how much was read (rows by table; with two generations also `faces_in_one_index_only`: that have a
    vector in one of them), and what was repaired before."""

    problems: Sequence[Problem]
    counts: Mapping[str, int]
    repaired: Sequence[Problem] = ()
