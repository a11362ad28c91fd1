"""Input and output of a store: dataclasses, and the Arrow schemas of their tables.

The schemas are an open store's interface, not its format on disk (FORMAT.md). Boxes are xyxy, landmarks (x, y) pairs,
in pixels of the upright original. Hashes are lower-case hexadecimal, SHA-256 except those of pixels. Directories are
names, within the commit's account.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias, TypedDict

import pyarrow as pa

from pipeline.config import SEQUENTIAL, MatchSettings, RegroupSettings
from pipeline.store.files.segments import Segment
from pipeline.store.schema import TABLES, arrow_schema
from pipeline.types import DRAWN, FORGOTTEN, FloatArray, IntArray, Measured

USER, API, LABEL, RUN = "user", "api", "label", "run"  # origins of changes
INSERT, UPDATE, MERGE = "insert", "update", "merge"  # kinds of changes; INSERT only inserts and counts
ADD_FACE: Final = "add_face"  # adds a face that a user drew or posted
DELETE_DIRECTORY: Final = "delete_directory"  # with everybody and all photos of runs
# Kinds that delete persons with all their data, or photos.
NEVER_UNDONE: Final = frozenset(
    {"delete", "delete_merged", DELETE_DIRECTORY, "forget", "forget_photos", "replace_photos"}
)
COUNTERS: Final = ("occurrence", "last_occurrence_at")  # person columns

# Media without what the commit adds. `row`: of the run's manifest, from 0; `extra`: a JSON object; `duplicate_of`: the
# media_id whose faces were used.
MEDIA_SCHEMA = arrow_schema(
    "media",
    without={"run_id", "shard", "account_id", "added_at", "gone_at"},
    required={"media_id", "row", "path", "directory", "status"},
)
_WHY: Final = {"similarity_score", "rejection_reasons"}
# Faces and detections. `ordinal`: place in the photo, largest face first, from 0; `rejection_reasons`: comma-joined;
# `landmarks`: five points, x and y.
FACES_SCHEMA = pa.schema(
    [
        *arrow_schema("faces", required={"face_id", "media_id", "ordinal", "outcome"}),
        *arrow_schema("detections", without={"generation", "face_id"}, required=TABLES["detections"].keys() - _WHY),
    ]
)
# Faces measured by another generation: detection, and a vector (little-endian float32) or null.
MEASURED_SCHEMA = pa.schema(
    [
        pa.field("face_id", pa.int64(), nullable=False),
        *arrow_schema("detections", without={"generation", "face_id", "similarity_score"}),
        pa.field("embedding", pa.binary()),
    ]
)
# The state in which files were read; null if it cannot prove that they are unchanged.
FILES_SCHEMA = arrow_schema("files", ("media_id", "mtime_ns", "ctime_ns", "inode"), required={"media_id"})
# See `known_files`.
KNOWN_FILES_SCHEMA = arrow_schema("files", without={"source", "account_id"}).insert(3, pa.field("sha256", pa.string()))
# A file that was read again and is unchanged: media_id, bytes, mtime_ns, ctime_ns, inode.
ReadAgain: TypeAlias = tuple[int, int, int, int, int]
Move: TypeAlias = tuple[str, str, str]  # old path, directory, new path
Label: TypeAlias = tuple[str | None, str | None]  # name and external id of a photo
MediaLabel: TypeAlias = tuple[int, str | None, str | None]  # media_id, label
# MediaLabel of a changed label, and whether the photo's bytes are unchanged. If they changed, the label counts among
# its person's labels, but changes nothing.
LabelChange: TypeAlias = tuple[int, str | None, str | None, bool]


@dataclass(frozen=True)
class SourceMove:
    """A source that moved, and how the paths of its rows change."""

    old: str
    prefixes: Sequence[tuple[str, str]]  # old and new prefix; the first match counts

    def path(self, path: str) -> str:
        """The file's new path."""
        return _replaced_prefix(path, self.prefixes)

    def former(self, path: str) -> str:
        """The old path of the file now at `path`."""
        return _replaced_prefix(path, [(new, old) for old, new in self.prefixes])


def _replaced_prefix(path: str, prefixes: Sequence[tuple[str, str]]) -> str:
    return next((new + path[len(old) :] for old, new in prefixes if path.startswith(old)), path)


@dataclass(frozen=True)
class SourceSummary:
    """A source and its number of photos in the store."""

    source: str
    kind: str  # of the last run: folder, csv, jsonl, parquet
    photos: int


@dataclass(frozen=True)
class ScanNotes:
    """Scan results on rows in the store."""

    read_again: Sequence[ReadAgain] = ()
    moved: Sequence[Move] = ()
    gone: Sequence[int] = ()  # media found missing
    back: Sequence[int] = ()  # missing media that are back
    source: SourceMove | None = None  # applied first; the paths above are the new ones
    forgotten: Sequence[str] = ()  # new paths, in a moved source, of files forgotten at their old paths

    def __bool__(self) -> bool:
        return bool(self.read_again or self.changes)

    @property
    def changes(self) -> bool:
        """Whether the source changed; files that were only read again do not count."""
        return bool(self.source or self.moved or self.gone or self.back)


# Faces of photos extracted again, identified independently of the path; each has an embedding or a reason why not.
DECODED_SCHEMA = pa.schema(
    [
        pa.field("sha256", pa.string(), nullable=False),  # of the photo
        pa.field("ordinal", pa.int32(), nullable=False),
        pa.field("embedding", pa.binary()),  # little-endian float32
        pa.field("crop", pa.binary()),  # the picture to store; null: cut from the photo when needed
        pa.field("reason", pa.string()),
        pa.field("model", pa.string()),  # `StoreIdentity.model`
    ]
)


def embeddings_schema(size: int) -> pa.Schema:
    """`face_id` and `embedding`: `size` float32 numbers, L2 norm 1."""
    kinds = {"face_id": pa.int64(), "embedding": pa.list_(pa.float32(), size)}
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()])


@dataclass(frozen=True)
class StoreIdentity:
    """The model and settings behind a store's numbers; constant within a generation."""

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
    master_key_id: str | None = None  # of the key that wraps the image keys; None: not encrypted
    # Key of pixel hashes, 32 hexadecimal digits; a secret. None: an older store, which uses SHA-256.
    pixel_key: str | None = field(default=None, repr=False)

    @property
    def model(self) -> str:
        """Identifies the model and the way faces are measured."""
        told = [self.weights_sha256, self.preprocessing, self.mode, self.output_settings]
        return hashlib.sha256(json.dumps(told, sort_keys=True, default=dict).encode()).hexdigest()


@dataclass(frozen=True)
class Generation:
    """A model and its results for the store's faces."""

    number: int
    identity: StoreIdentity
    complete: bool  # False: in progress, some faces lack their vector


@dataclass(frozen=True)
class RunRow:
    """A run. `state`: scanning (writing the manifest), open (committing shards), finished."""

    run_id: str
    source: str
    source_kind: str
    account_id: int
    directory: str  # default for rows without one
    settings: Mapping[str, Any]
    state: str
    rows: int | None  # None while scanning
    shards: int | None
    started_at: datetime  # UTC, naive
    finished_at: datetime | None
    summary: Mapping[str, Any] | None


@dataclass(frozen=True)
class RunCounts:
    """Results of runs, and the persons of their account."""

    statuses: dict[str, int]  # of images
    outcomes: dict[str, int]  # of faces
    rejections: dict[str, int]  # of rejected faces, by quality measure
    persons: int  # in all directories; a merged set counts once
    label_conflicts: list[dict[str, Any]]
    shared_external_ids: list[dict[str, Any]]


@dataclass(frozen=True)
class PhotoRecord:
    """The result for a file."""

    status: str
    faces: int
    person_id: str | None  # of the largest face
    rejection: str | None  # quality measures, comma-joined, by which the largest face was rejected


@dataclass(frozen=True, slots=True)
class PersonRecord:
    """An identity and its current reference. Times are UTC, naive."""

    person_id: str  # UUID text
    last_occurrence_at: datetime
    added_at: datetime
    modified_at: datetime
    seq: int = 0  # insertion order; 0 in an inserting commit: the store assigns it
    name: str | None = None
    first_name: str | None = None
    last_name: str | None = None
    external_id: str | None = None
    parent_id: str | None = None  # set by a merge
    tags: tuple[str, ...] = ()
    metadata: str | None = None  # JSON object: further client fields, as sent
    ignored: bool = False
    occurrence: int = 1
    cover: int | None = None  # the face that the web UI shows; None, or no face of the person any more: the reference
    image_guid: str | None = None  # None: no face of this person is known, or its photo cannot be read

    @classmethod
    def new(cls, person_id: str, now: datetime, **fields: Any) -> PersonRecord:
        """A person to be inserted; its image guid is not known yet."""
        return cls(person_id, now, now, now, **{"image_guid": "", **fields})

    @property
    def further_fields(self) -> dict[str, Any]:
        """The parsed metadata."""
        return dict(json.loads(self.metadata)) if self.metadata else {}


@dataclass(frozen=True)
class PersonRows:
    """Rows of persons, for `records`."""

    number: int  # of the last commit that they show
    table: pa.Table

    def records(self) -> list[PersonRecord]:
        columns = [_person_values(self.table, each.name) for each in fields(PersonRecord)]
        return [PersonRecord(*row) for row in zip(*columns, strict=True)]


def _person_values(table: pa.Table, name: str) -> list[Any]:
    column = table[name]
    if pa.types.is_timestamp(column.type):
        return list(column.to_numpy().astype(object))  # datetimes, ten times faster than `to_pylist`
    values = column.to_pylist()
    if name == "tags":
        return [tuple(json.loads(text)) if text else () for text in values]
    return list(values)


@dataclass(frozen=True)
class Merges:
    """A directory's number of persons, and its merges."""

    number: int  # of the last commit that they show
    count: int
    parents: Mapping[str, str]  # of those with a parent, in insertion order


@dataclass(frozen=True)
class References:
    """A directory's current references, in insertion order: those of its open segments, then the tail of n."""

    number: int  # of the last commit that they show
    segments: Sequence[Segment]
    vectors: FloatArray  # [n, d], L2 norm 1
    orders: IntArray  # [n] `PersonRecord.seq`
    person_ids: Sequence[str]
    image_hashes: Sequence[tuple[str, ...]]  # of the photo: sha256, pixel hash
    boxes: FloatArray  # [n, 4] xyxy


@dataclass(frozen=True)
class PostedImage:
    """A request's image that provides a reference. The image itself is not stored."""

    sha256: str  # of its bytes
    pixel_hash: str
    bytes: int
    width: int
    height: int
    format: str
    name: str | None  # given by the request for the largest face
    external_id: str | None


@dataclass(frozen=True)
class ReferenceOrigin:
    """The face behind a person's reference."""

    qualities: tuple[float, ...]  # as QUALITIES
    added_at: datetime  # when its image was added to the store
    path: str | None  # of its photo; None: it was posted


@dataclass(frozen=True)
class PostedFace:
    """A face of a posted image that becomes a person's reference."""

    face_id: int
    person_id: str
    ordinal: int  # in the image, largest first, from 0
    outcome: str  # "inserted", or "matched": it replaces the person's reference
    similarity_score: float
    fields: Mapping[str, Any]  # x1 y1 x2 y2, landmarks, confidence and the three qualities, as in FACES_SCHEMA


@dataclass(frozen=True)
class PostedPhoto:
    """A posted image and its stored faces."""

    media_id: int
    image: PostedImage
    faces: Sequence[PostedFace]


@dataclass(frozen=True)
class FaceVector:
    """The data by which a face is recognised."""

    embedding: FloatArray  # [d] float32
    image_hashes: tuple[str, ...]  # of its image: SHA-256, pixel hash
    box: tuple[float, float, float, float]  # xyxy in pixels of the upright image


@dataclass(frozen=True)
class StoredFace:
    """A face of a photo or posted image, and its person."""

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
    quality: float  # product of the three qualities
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
        """Of the box, in square pixels."""
        return (self.x2 - self.x1) * (self.y2 - self.y1)

    @property
    def is_tag(self) -> bool:
        """Whether a user drew it and it has no vector."""
        return self.outcome == DRAWN and not self.has_embedding


@dataclass(frozen=True)
class StoredPhoto:
    """A photo of a run."""

    media_id: int
    path: str
    sha256: str
    pixel_hash: str | None
    width: int
    height: int
    next_ordinal: int  # of a face to add: at least 1, above those of all photos of the account with these bytes


@dataclass(frozen=True)
class DrawnFace:
    """A face that a user drew on a photo."""

    face_id: int
    media_id: int
    ordinal: int
    fields: Mapping[str, Any]  # box, landmarks, confidence and qualities; all but the box None for a tag
    embedding: FloatArray | None  # [d] float32; None: a tag
    measured: Measured | None  # by the other generation if there is one


@dataclass(frozen=True)
class LabelledPhoto:
    """A source's photo with its label, and the person of its largest face."""

    media_id: int
    path: str
    label: str | None  # as `known_files` has it
    face_id: int | None  # None: no face
    person_id: str | None
    outcome: str | None


@dataclass(frozen=True)
class FaceToRegroup:
    """A face with the input of a quality gate."""

    stored: StoredFace
    qualities: tuple[float, float, float]  # as QUALITIES
    named: bool  # its photo has a name, but for a larger face
    reference: bool  # it is its person's reference
    ordinal: int  # in its photo
    pixel_hash: str | None  # of its photo


@dataclass(frozen=True)
class Fact:
    """A constraint by a user or a label, on a face or two persons."""

    kind: str  # is, is_not, nobody, not_same, twice
    face_id: int | None = None
    person_id: str | None = None
    other_id: str | None = None  # of not_same: the larger id
    correction_id: int | None = None  # this and the next two: None until committed
    origin: str | None = None
    stated_at: datetime | None = None


class LastMerge(NamedTuple):
    """The last correction that set a person's parent."""

    correction_id: int
    kind: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Remembered:
    """What the last regroup set for its directory, as columns of core.directories; None: not set."""

    threshold: str | None = None  # as typed: a number, or fmr:RATE
    threshold_generation: int | None = None  # of a number and of the cut: for whose distances
    method: str | None = None
    precision: float | None = None
    cut: float | None = None

    def __str__(self) -> str:
        """For users; empty if nothing was set."""
        parts = [f"T {self.threshold}"] if self.threshold is not None else []
        if self.method is not None:
            target = "" if self.precision is None else f" at precision {self.precision:g}"
            parts.append(f"regroup by {self.method}{target if self.cut is None else f', cut {self.cut:g}'}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Rows:
    """Exactly the rows and columns that a correction changes, before or after it."""

    persons: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)  # by id; None: missing
    faces: Mapping[int, Mapping[str, Any] | None] = field(default_factory=dict)  # by face id; None: missing
    references: Mapping[str, int | None] = field(default_factory=dict)  # person id -> face id
    facts: Sequence[Fact] = ()
    remembered: Remembered | None = None  # by the directory; None: it does not change

    @cached_property
    def texts(self) -> dict[str, str]:
        """All but the facts, as JSON by name."""
        encode = json.JSONEncoder(default=str, sort_keys=True).encode
        texts = {}
        for name in ("persons", "faces", "references"):
            table: Mapping[Any, Any] = getattr(self, name)
            # Row by row: one call for thousands would block other threads for 0.2 s.
            rows = [f"{encode(str(key))}: {encode(table[key])}" for key in sorted(table)]
            texts[name] = "{" + ", ".join(rows) + "}"
        if self.remembered is not None:
            texts["remembered"] = encode(vars(self.remembered))
        return texts

    @property
    def owners(self) -> dict[int, str | None]:
        """Face id -> person; without missing faces."""
        return {face_id: row["person_id"] for face_id, row in self.faces.items() if row is not None}

    @cached_property
    def person_ids(self) -> set[str]:
        """All persons in the rows."""
        shown: set[str | None] = {*self.persons, *self.references}
        shown.update(columns["parent_id"] for columns in self.persons.values() if columns and "parent_id" in columns)
        shown.update(self.owners.values())
        shown.update(person_id for fact in self.facts for person_id in (fact.person_id, fact.other_id))
        return {person_id for person_id in shown if person_id is not None}


NO_ROWS: Final = '{"persons": {}, "faces": {}, "references": {}, "facts": []}'  # as core.corrections has them
Picture: TypeAlias = tuple[str, bytes, str]  # guid, bytes and media type


@dataclass(frozen=True)
class Change:
    """An atomic change of one directory, by a request, correction or shard."""

    account_id: int
    directory: str
    kind: str = INSERT  # a `CorrectionRequest.kind`, replace_photos, or what a post also does: update or merge
    origin: str = API
    before: Rows = Rows()
    after: Rows = Rows()
    seen: Mapping[str, int] = field(default_factory=dict)  # person id -> number of additional photos
    seqs: Mapping[str, int] = field(default_factory=dict)  # of stored persons: finds their rows
    photo: PostedPhoto | None = None
    replaced: Sequence[str] = ()  # persons whose reference `photo` permanently replaces
    pictures: Mapping[str, Picture] = field(default_factory=dict)  # by person, of new references with a picture
    vectors: Mapping[int, FaceVector] = field(default_factory=dict)  # of new references, by face id
    admitted: Mapping[int, FloatArray] = field(default_factory=dict)  # vectors of formerly rejected faces, by face id
    drawn: DrawnFace | None = None  # a new face; one that `after` has as missing is deleted, as a posted one
    # As `vectors`, by the other generation if there is one: its model measured the faces.
    measured: Mapping[int, Measured] = field(default_factory=dict)
    undoes: int | None = None  # of undo and redo: the affected correction
    deleted: Sequence[str] = ()  # persons deleted with all their faces
    remembered: Set[str] = frozenset()  # kinds of digests kept of them and of `leaving` (`catalog.forgotten`)
    leaving: Sequence[int] = ()  # media of runs deleted with their faces
    leaving_status: str = FORGOTTEN
    labels: Sequence[MediaLabel] = ()  # stored with it
    receipt: str | None = None  # of a deletion: the SHA-256 of its pending receipt

    @cached_property
    def persons(self) -> set[str]:
        """The ids of all persons whose rows it writes."""
        return {*self.after.persons, *self.after.references, *self.seen, *self.replaced, *self.deleted}

    @property
    def gone(self) -> list[str]:
        """The deleted persons."""
        return [*self.deleted, *(person_id for person_id, columns in self.after.persons.items() if columns is None)]

    @property
    def is_logged(self) -> bool:
        """Whether it does more than insert and count."""
        return self.kind != INSERT

    @property
    def can_be_undone(self) -> bool:
        return self.is_logged and self.kind not in NEVER_UNDONE

    @property
    def is_of_faces(self) -> bool:
        """Whether it changes the basis of earlier decisions: persons of faces, constraints, or which persons exist."""
        rows = self.logged
        return bool(self.leaving or self.deleted) or any(
            each.faces or each.references or each.facts or each.remembered or None in each.persons.values()
            for each in rows
        )

    @cached_property
    def logged(self) -> tuple[Rows, Rows]:
        """The rows before and after it that are logged for an undo. Undoing a post keeps new persons and references,
        unless a user made it."""
        if not self.can_be_undone:
            return Rows(), Rows()
        if self.photo is None:
            return self.before, self.after
        if self.kind == ADD_FACE:
            faces = {f.face_id: {"person_id": f.person_id, "outcome": f.outcome} for f in self.photo.faces}
            missing = dict.fromkeys(self.after.references)
            was = replace(self.before, faces=dict.fromkeys(faces), references=missing)
            return was, replace(self.after, faces=faces)
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
        """Caches the log texts: thousands of rows take as long as the transaction."""
        for rows in self.logged:
            _ = rows.person_ids, self.undoes is not None or rows.texts


@dataclass(frozen=True)
class Deleted:
    """What a directory had, or all of an account's."""

    people: int
    photos: int


@dataclass(frozen=True)
class Committed:
    """Values assigned by a change's commit."""

    number: int  # of the transaction
    at: datetime  # UTC
    seqs: Mapping[str, int]  # of new persons
    correction_id: int | None  # in the log; None: not logged


@dataclass(frozen=True)
class Correction:
    """A correction in the log."""

    correction_id: int
    kind: str
    undoes: int | None  # of an undo or redo: the affected correction
    what: str  # that one's kind; otherwise its own
    made_at: datetime  # UTC
    before: Rows
    after: Rows
    undone_at: datetime | None  # UTC
    merges_only: bool  # its rows are incomplete: it deleted persons, or some of its persons were deleted later
    by_other_model: bool  # it, or a later correction, was made with another generation in use


@dataclass(frozen=True)
class Seen:
    """The version that the sender of a correction saw. The correction is refused if somebody else corrected one of
    these persons since."""

    at: datetime  # UTC
    person_ids: Sequence[str]
    own: Sequence[int] = ()  # corrections that the sender made or undid


@dataclass(frozen=True)
class CorrectedSince:
    """A correction made or undone meanwhile."""

    correction_id: int
    kind: str
    at: datetime  # UTC
    undone: bool


@dataclass(frozen=True)
class ChangeEntry:
    """A change of people, for readers that keep a copy."""

    commit: int
    position: int  # in the commit
    kind: str  # insert, reference (replaced), or a log kind: merge, undo, forget, replace_photos, ...
    origin: str | None  # user, api, label, run; None for insertions and references
    at: datetime | None  # UTC; None for references
    account: str  # user id
    directory: str | None  # None: it was deleted
    persons: Sequence[str]  # changed or merged into another; current values must be requested
    gone: Sequence[str]  # deleted: readers drop them
    undoes: tuple[int, int] | None  # commit and position of the undone or redone change


@dataclass(frozen=True)
class ChangesPage:
    """Changes in order."""

    entries: Sequence[ChangeEntry]
    next: int  # the next `since`
    more: bool  # more are available


@dataclass(frozen=True)
class PersonChange:
    """New field values of a person: None keeps a field, "" or an empty list removes it."""

    name: str | None = None
    first_name: str | None = None
    last_name: str | None = None
    external_id: str | None = None
    tags: Sequence[str] | None = None
    ignored: bool | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)  # further JSON fields; None removes one
    joined: bool = False  # no name was sent: it is joined from the first and last name, if given
    cover: int | None = None  # the face that the web UI shows


NO_CHANGE: Final = PersonChange()


@dataclass(frozen=True)
class CorrectionRequest:
    """A requested correction. Each kind uses the persons and faces that its name implies."""

    account_id: int
    directory: str
    # name, update, hide, unhide, cover, merge, unmerge, split, move, not_same, delete (a record), delete_merged (its
    # whole merged set), forget, forget_photos, allow_twice, disallow_twice, add_face, regroup, label, undo (undoing an
    # undo is logged as a redo).
    kind: str
    # Of a move or add_face: the person, or empty. Of a regroup: it decides only their faces and those of people near
    # them; empty: all.
    person_ids: Sequence[str] = ()
    face_ids: Sequence[int] = ()
    change: PersonChange = NO_CHANGE  # of the persons; of a merge, its root; of move and add_face, a new person's name
    anyway: bool = False  # overrides a cannot-link constraint in a merge
    origin: str = USER
    gate: MatchSettings | None = None  # of regroup, label and add_face
    method: RegroupSettings | None = None  # of regroup; None: sequential
    spares_corrected: bool = False  # of regroup: leaves out people who were named or corrected
    typed: Remembered = Remembered()  # of regroup: what its user gave, which the directory remembers
    dry_run: bool = False  # only report; a deletion's answer has what it would erase
    decoded: str | None = None  # of regroup, to a server: file with faces extracted again
    correction_id: int | None = None  # of undo; None: the last of `undo_origin` in force
    undo_origin: str = USER
    media_ids: Sequence[int] = ()  # of forget_photos, allow_twice, disallow_twice and add_face
    no_trace: bool = False  # of deletions: no digests are kept, so that later runs may import the faces again
    box: tuple[float, float, float, float] | None = None  # of add_face: xyxy in pixels of the upright photo
    receipt: str | None = None  # as `Change.receipt`
    labels: Sequence[LabelChange] = ()  # of label: the source's current labels
    seen: Seen | None = None  # None: not validated


@dataclass(frozen=True)
class FaceMove:
    """A face whose person changed."""

    face_id: int
    path: str | None  # of its photo; None: it was posted
    before: str | None  # person ids; None: nobody
    after: str | None


@dataclass(frozen=True)
class KeptApart:
    """Two persons with similar faces that are not joined."""

    person_id: str
    other_id: str
    # name or external id (different), stated (by a correction), photo (both are on it), hidden (one of them)
    reason: str
    faces: Sequence[int] = ()  # of the first, that are like the other's and stay


@dataclass(frozen=True)
class Contradiction:
    """Constraints and merges that contradict each other: the faces and people stay as they are."""

    detail: str  # all of them, in words, and the way out
    corrections: Sequence[int]  # that made them
    person_ids: Sequence[str]  # in them
    face_ids: Sequence[int]


@dataclass(frozen=True)
class NotDecoded:
    """A rejected face whose photo could not be extracted again, so it stays rejected."""

    face_id: int
    path: str
    reason: str


@dataclass(frozen=True)
class Regrouping:
    """The effect of re-clustering a directory's faces."""

    threshold: float
    faces: int  # decided
    joins: Sequence[Sequence[str]]  # persons joined into the first
    parted: Sequence[str]  # persons joined by an earlier regroup, now separate
    moves: Sequence[FaceMove]
    new: Sequence[str]  # persons
    gone: Sequence[str]
    kept_apart: Sequence[KeptApart]
    # unchanged faces: a new person's picture cannot be cut from a photo, or the other faces of their person have no
    # vector
    without_picture: Sequence[int]
    admitted: Sequence[int]  # rejected faces that this gate admits
    decoded: bool  # whether they take part, with vectors from their photos
    not_decoded: Sequence[NotDecoded]  # if so: those that do not
    names: Mapping[str, str]  # of the persons in these fields
    method: str = SEQUENTIAL
    # of average-link: the T that two clusters' mean similarity reached; the precision and the number of people by which
    # it was found, or None if it was given
    cut: float | None = None
    precision: float | None = None
    people: int | None = None
    remembered: Remembered | None = None  # by the directory from now on, if it changes
    scope: Sequence[str] | None = None  # the people (roots) whose faces were decided; None: of the whole directory
    contradictions: Sequence[Contradiction] = ()


@dataclass(frozen=True)
class ErasureState:
    """Deleted data that are still in the catalog's file."""

    since: datetime | None  # UTC: the first deletion; None: there are none
    due: datetime | None  # UTC: when they have to be erased
    public_key: str  # of the store's receipts


@dataclass(frozen=True)
class Erasure:
    """A deletion of people or photos, without what was deleted."""

    deleted_at: datetime  # UTC
    kind: str  # as `CorrectionRequest.kind`, or delete_directory
    people: int
    faces: int
    photos: int
    receipt: str | None  # SHA-256 of the pending receipt
    erased_at: datetime | None  # UTC: when the catalog was rewritten; None: not yet


@dataclass(frozen=True)
class Suggestion:
    """Two people (roots) who may be one; a named one is the first."""

    one: str
    other: str
    score: float  # of the mean dot product of all compared pairs of their faces
    near: int  # of the compared pairs, those that match at the wider threshold
    compared: int
    same_name: bool
    names: tuple[str | None, str | None]
    faces: tuple[Sequence[int], Sequence[int]]  # the best of each, to show

    @property
    def reasons(self) -> str:
        same = ["same name"] if self.same_name else []
        near = f"{self.near} of {self.compared} pairs of faces near"
        return ", ".join([*same, near, "never on one photo"])


@dataclass(frozen=True)
class Suggestions:
    """Suggestions, the likeliest first."""

    pairs: Sequence[Suggestion]
    threshold: float
    wider: float  # T down to which pairs are suggested
    people: int
    looked_at: int  # of them, the first
    nearest: Sequence[float] = ()  # of each of these the score of the most similar other reference


@dataclass(frozen=True)
class FollowedLabels:
    """The effects of changed labels: counts, and the first thousand of each."""

    renamed: int  # persons
    relabelled: int  # faces
    unsettled: int  # labels without effect
    # person_id, name, external_id, old_name, old_external_id
    renamed_persons: list[dict[str, Any]]
    # face_id, path, person_id, name, external_id, old_person_id, old_name
    relabelled_faces: list[dict[str, Any]]
    # path, name, external_id, person_id, person_name, person_external_id, reason
    unsettled_labels: list[dict[str, Any]]


@dataclass(frozen=True)
class CorrectionAnswer:
    """The effect of a correction."""

    correction_id: int | None  # None: no change, or it cannot be undone; of an undo: the undone correction
    kind: str
    persons: Sequence[str] = ()  # changed or new, new ones first; then others in its rows
    gone: Sequence[str] = ()  # deleted persons
    faces: Sequence[int] = ()
    replaced: Sequence[Fact] = ()  # earlier constraints that it contradicts and replaces
    regrouping: Regrouping | None = None  # of regroup
    labels: FollowedLabels | None = None  # of label
    made_at: datetime | None = None  # UTC; of an undo: when the undone correction was made
    undone_by: int | None = None  # the undo; undoing that restores it
    names: Mapping[str, str] = field(default_factory=dict)  # of the persons and deleted ones
    kept_photos: Mapping[str, int] = field(default_factory=dict)  # of forget: those that show others, path -> media id
    kept_posts: int = 0  # of forget: posted photos that show others
    tag: str | None = None  # of add_face: why the face has no vector
    # of a dry run of forget and forget_photos, by kind (`catalog.erasures`)
    erased: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Credentials:
    """An account's credentials."""

    account_id: int
    password_hash: str | None  # None: no password is accepted


@dataclass(frozen=True)
class AccountSummary:
    """An account and its size."""

    account_id: int
    account: str
    password_set: bool  # without one the server admits nobody
    directories: Sequence[DirectoryRow]

    @property
    def identities(self) -> int:
        """In all directories."""
        return sum(directory.identities for directory in self.directories)

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        counts = {"directories": len(self.directories), "identities": self.identities}
        return {"account": self.account, "password_set": self.password_set, **counts}


@dataclass(frozen=True)
class DirectoryRow:
    """A directory with identities."""

    account_id: int
    user_id: str
    name: str
    identities: int  # a merged set counts once
    records: int
    remembered: Remembered = Remembered()


@dataclass(frozen=True)
class SearchQuery:
    """A search for the faces of an encoded image among a directory's identities."""

    image: bytes
    account_id: int
    directory: str
    top: int  # number of most similar identities per face
    threshold: float  # if the directory has none
    threshold_given: bool = False  # by a flag: instead of the directory's


@dataclass(frozen=True)
class Candidate:
    """An identity (a merged set's root) and its similarity. A score >= 1.0 is a match (contract, section 4.3)."""

    person_id: str
    name: str | None
    external_id: str | None
    similarity_score: float
    photo: str | None = None  # path of the reference's photo; None: posted
    strength: str | None = None  # the score in words, once known


@dataclass(frozen=True)
class FaceAnswer:
    """One face of a searched photo."""

    box: tuple[float, float, float, float]  # xyxy in pixels of the upright photo
    confidence: float
    quality: dict[str, float]
    identity: Candidate | None  # the best match, if any
    similar: list[Candidate]  # most similar, best first

    def as_dict(self) -> dict[str, Any]:
        """JSON values; without `identity` if nobody matches."""
        return {k: v for k, v in asdict(self).items() if v is not None}


class FaceChange(TypedDict):
    """A person (a merged set's root) who lost or gained a face because a photo changed."""

    person_id: str
    path: str  # of the photo
    change: str  # lost, gained, or deleted (the last face of an unnamed person)


@dataclass(frozen=True)
class ShardCommit:
    """A shard of a run, committed atomically.

    The caller chooses ids (from `reserve_ids`) and picture names; reusing the names after a crash overwrites the same
    files.
    """

    run_id: str
    shard: int
    account_id: int
    media: pa.Table  # MEDIA_SCHEMA
    faces: pa.Table  # FACES_SCHEMA
    embeddings: pa.Table  # embeddings_schema(d): faces that are not rejected
    files: pa.Table  # FILES_SCHEMA: of the media
    # The faces in the other generation, if any: `StoreIdentity.model`, MEASURED_SCHEMA.
    measured: tuple[str, pa.Table] | None = None
    changes: Sequence[Change] = ()  # one per directory
    finished_run_shards: Sequence[int] = ()  # whose run shard files are unneeded
    face_changes: Sequence[FaceChange] = ()
    forgotten: Sequence[int] = ()  # of the media: committed without path, hashes and texts

    @property
    def pictures(self) -> list[Picture]:
        """Without repetitions."""
        return list({picture[0]: picture for change in self.changes for picture in change.pictures.values()}.values())


@dataclass(frozen=True)
class Problem:
    """A problem in a store.

    `kind`: catalog, commits, reference, view, embedding, object, segment, run, run_shard, run_file, run_sums, orphan,
    page, mode, pending_delete.
    """

    kind: str
    where: str
    detail: str
    cure: str


@dataclass(frozen=True)
class CheckReport:
    """Remaining problems, the amount read, and the repairs.

    `counts`: rows by table; with two generations also `faces_in_one_index_only`, faces with a vector in only one.
    """

    problems: Sequence[Problem]
    counts: Mapping[str, int]
    repaired: Sequence[Problem] = ()
