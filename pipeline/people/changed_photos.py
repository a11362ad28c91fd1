"""Changed photos: a new face that is one of the earlier faces takes over its person, constraints and reference role.

It is one if it matches, or is at the same place within a wider distance bound. Place alone could give a person to a
stranger, if another photo took over the file name. The commit removes the earlier faces.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np

from pipeline.config import CONTRACT_THRESHOLD, MatchSettings
from pipeline.extraction.rows import ExtractedFace, ExtractedRow
from pipeline.matching.calibration import Calibration
from pipeline.matching.identical_images import box_iou
from pipeline.matching.match import Matcher
from pipeline.people.correction_plan import TWICE, Plan
from pipeline.people.decide import DetectedFace, failed_measures
from pipeline.people.directory import Directory
from pipeline.store import ERASED, FaceChange, Fact, LocalStore, PersonRecord, StoredFace
from pipeline.types import DUPLICATE, FORGOTTEN, NO_FACE, OK, REPLACED, FloatArray

_SAME_PLACE: Final = 0.5  # intersection over union of the boxes
_BOUND_FMR: Final = 1e-2  # see `place_bound`
Box = tuple[float, float, float, float]


class ChangedPhotos:
    """The photos of one directory, possibly none, that rows of a shard replace."""

    def __init__(
        self, plan: Plan, rows: Mapping[int, ExtractedRow], gate: MatchSettings, matcher: Matcher, bound: Matcher
    ) -> None:
        """`rows`: the shard's rows of the directory, by number in the shard. `matcher`, `bound`: as in `same_faces`."""
        self.plan, self.directory = plan, plan.directory
        self._gate, self._matcher, self._bound = gate, matcher, bound
        self._rows: dict[int, ExtractedRow] = {}
        self._erased: set[int] = set()  # media with erased labels
        self._persons: dict[str, list[PersonRecord]] = {}  # as read, for `is_outdated`
        self._earlier: dict[int, list[StoredFace]] = defaultdict(list)  # by media id
        self._embeddings: dict[int, FloatArray] = {}  # of the earlier faces
        self._going: list[StoredFace] = []
        self._facts: dict[int | None, list[Fact]] = defaultdict(list)
        self._references: set[int] = set()
        self._successors: dict[int, int] = {}  # earlier face id -> new face id
        self._new: dict[int, DetectedFace] = {}  # by face id
        self._later: Sequence[DetectedFace] = ()  # the photos' new faces that have a person
        replacing = {photo: row for photo, row in rows.items() if replaced_by(row)}
        if replacing:
            self._read(plan.client, replacing)

    def _read(self, client: LocalStore, replacing: Mapping[int, ExtractedRow]) -> None:
        place = self.directory.account_id, self.directory.name
        known = client.photos_of_runs(*place, [media_id for row in replacing.values() for media_id in replaced_by(row)])
        there = [media_id for media_id, status in known.items() if status not in (FORGOTTEN, REPLACED)]
        if not there:
            return
        faces = self.plan.faces(media_ids=there)
        persons = _records(self.directory, (f.person_id for f in faces if f.person_id))
        for face in faces:
            self._earlier[face.media_id].append(face)
        vectors = client.face_vectors([face.face_id for face in faces if face.has_embedding])
        self._embeddings = {face_id: vector.embedding for face_id, vector in vectors.items()}
        turned = {photo for photo, row in replacing.items() if self._lies_on_its_side(row)}
        rows = {photo: row for photo, row in replacing.items() if photo not in turned}
        going = {media_id for row in rows.values() for media_id in replaced_by(row)}.intersection(there)
        if not going:
            return
        self._rows, self._persons = rows, persons
        self._erased = {p.media_id for p in client.labelled_photos(*place, there, []) if p.label == ERASED}
        self._going = [face for face in faces if face.media_id in going]
        self.plan.remove_photos([media_id for media_id in there if media_id in going], self._going, REPLACED)
        for fact in client.facts_about([face.face_id for face in self._going], []):
            self._facts[fact.face_id].append(fact)
        self._references = set(client.reference_faces(list(persons)).values())

    @property
    def unnamed(self) -> list[int]:
        """The photos with a label erased for a forgotten person."""
        return [photo for photo, row in self._rows.items() if self._erased & {*replaced_by(row)}]

    def is_outdated(self) -> bool:
        """Whether any person who lost a face has changed since, except counters."""
        return _records(self.directory, self._persons) != self._persons

    def take_over(self, faces: dict[int, DetectedFace]) -> None:
        """Updates `faces` (by id): resolves those that are earlier faces with a person or a constraint."""
        by_photo: dict[int, list[int]] = defaultdict(list)
        for face_id, s in faces.items():
            if s.photo in self._rows and s.outcome != "removed":
                by_photo[s.photo].append(face_id)
        for photo, own in by_photo.items():
            row = self._rows[photo]
            earlier = self._earlier_faces(row)
            for later, known in self._same(earlier, row, [faces[face_id].face for face_id in own]).items():
                face, s = earlier[known], faces[own[later]]
                facts = self._facts.get(face.face_id, ())
                is_known = face.person_id is not None or any(fact.kind != TWICE for fact in facts)
                if is_known and (not s.settled or s.person_id == face.person_id):
                    self._successors[face.face_id] = own[later]
                    faces[own[later]] = replace(
                        s,
                        settled=True,
                        again=True,
                        person_id=face.person_id,
                        outcome="matched" if face.person_id else "recognised",
                        failed=() if face.has_embedding else s.failed,  # keeps its vector, as the earlier face's was
                    )

    @property
    def twice_allowed(self) -> set[int]:
        """The photos, by number in the shard, on which somebody may be twice because it was so on the earlier ones: for
        that one of the faces must be on both."""
        kept = {face_id for face_id in self._successors if any(f.kind == TWICE for f in self._facts.get(face_id, ()))}
        return {n for n, row in self._rows.items() if any(f.face_id in kept for f in self._earlier_faces(row))}

    def _earlier_faces(self, row: ExtractedRow) -> list[StoredFace]:
        return [face for media_id in replaced_by(row) for face in self._earlier[media_id]]

    def _same(self, earlier: Sequence[StoredFace], row: ExtractedRow, later: Sequence[ExtractedFace]) -> dict[int, int]:
        """`same_faces` of a photo's earlier and later faces."""
        width, height = row.image["width"], row.image["height"]
        return same_faces(
            [PlacedFace(_place(f.box, f.width, f.height), self._embeddings.get(f.face_id)) for f in earlier],
            [PlacedFace(_place(face.box, width, height), face.embedding) for face in later],
            self._matcher,
            self._bound,
        )

    def _lies_on_its_side(self, row: ExtractedRow) -> bool:
        """Whether the photo was probably rotated by 90 degrees without EXIF orientation: width and height are swapped
        (or equal), and any faces are poor and none is an earlier one."""
        sides = row.image["height"], row.image["width"]
        earlier = self._earlier_faces(row)
        if not any((f.width, f.height) == sides and f.outcome != "rejected" for f in earlier):
            return False
        poor = all(failed_measures(face.qualities, self._gate) for face in row.faces)
        return poor and not self._same(earlier, row, row.faces)

    def settle(self, faces: Mapping[int, DetectedFace]) -> None:
        """Chooses the references of persons that lose a face. `faces`: the directory's decided faces, by id."""
        if not self._rows:
            return
        self._later = [s for s in faces.values() if s.photo in self._rows and s.person_id is not None]
        self._new = {face_id: s for face_id, s in faces.items() if s.outcome == "matched"}
        self.plan.new_faces += [_stored_face(face_id, s) for face_id, s in self._new.items()]
        for face_id in self._new:
            self.plan.pictures.add(face_id, b"")  # made later
        for face in self._going:
            if face.face_id in self._successors:
                face_id = self._successors[face.face_id]
                is_reference = face.face_id in self._references and self._new[face_id].keeps_vector
                self.plan.succeed(face, face_id, self._facts.get(face.face_id, []), reference=is_reference)
        # Leaves out persons whose commit is not in memory yet: then validation fails.
        self.plan.settle(self.directory.of(self._persons))

    def face_changes(self) -> list[FaceChange]:
        """The persons who lost and gained faces, photo by photo."""
        deleted = {person_id for person_id, columns in self.plan.rows()[1].persons.items() if columns is None}
        later: dict[int, Counter[str]] = defaultdict(Counter)
        for s in self._later:
            later[s.photo][self._root(str(s.person_id), deleted)] += 1
        lost, gained = [], []
        for photo, row in self._rows.items():
            known = (face.person_id for face in self._earlier_faces(row))
            earlier = Counter(self._root(person_id, deleted) for person_id in known if person_id is not None)
            path = str(row.manifest["path"])
            lost += [(person_id, path) for person_id in (earlier - later[photo]).elements()]
            gained += [(person_id, path) for person_id in (later[photo] - earlier).elements()]
        last = {person_id: number for number, (person_id, _) in enumerate(lost) if person_id in deleted}
        return [
            *(
                FaceChange(person_id=p, path=path, change="deleted" if last.get(p) == number else "lost")
                for number, (p, path) in enumerate(lost)
            ),
            *(FaceChange(person_id=p, path=path, change="gained") for p, path in gained),
        ]

    def _root(self, person_id: str, deleted: Set[str]) -> str:
        """The person's root after the commit, or before it if the whole merged set is deleted."""
        root = self.directory.root_id(person_id)
        if root not in deleted:
            return root
        members = (record.person_id for record in self.directory.merged_set(person_id))
        return next((member for member in members if member not in deleted), root)


def replaced_by(row: ExtractedRow) -> Sequence[int]:
    """The media that the row replaces: none if its file is unusable, so that a bad copy loses nobody. Runs planned by
    an earlier version lack the column."""
    return (row.manifest.get("replaces") or ()) if row.status in (OK, NO_FACE, DUPLICATE) else ()


def _place(box: Box, width: int | None, height: int | None) -> Box | None:
    if not width or not height:
        return None
    x1, y1, x2, y2 = box
    return x1 / width, y1 / height, x2 / width, y2 / height


def _records(directory: Directory, person_ids: Iterable[str]) -> dict[str, list[PersonRecord]]:
    """The merged set of each of these persons, without counters."""
    return {
        person_id: [replace(r, occurrence=0, last_occurrence_at=r.added_at, modified_at=r.added_at) for r in records]
        for person_id, records in directory.merged_sets(person_ids).items()
    }


def _stored_face(face_id: int, s: DetectedFace) -> StoredFace:
    """A new face as stored, as far as choosing a reference needs it."""
    x1, y1, x2, y2 = s.face.box
    return StoredFace(
        face_id=face_id,
        person_id=s.person_id,
        outcome=s.outcome,
        similarity_score=s.score,
        rejection_reasons=None,
        path="",
        sha256=None,
        x1=x1,
        y1=y1,
        x2=x2,
        y2=y2,
        quality=math.prod(s.face.qualities),
        has_embedding=s.keeps_vector,
        media_id=0,
        width=None,
        height=None,
    )


@dataclass(frozen=True)
class PlacedFace:
    """A face and its place in its photo."""

    box: Box | None  # xyxy as fractions of the upright photo's width and height; None: unknown
    embedding: FloatArray | None  # [d] float32; None: not stored


def place_bound(calibration: Calibration, threshold: float) -> float:
    """The T above which a face at an earlier face's place is another: at a false match rate of 1 %, or the nearest
    measured; without a table, twice the contract's T. At least `threshold`."""
    bound = calibration.threshold_near(_BOUND_FMR)
    return max(2 * CONTRACT_THRESHOLD if bound is None else bound, threshold)


def same_faces(
    earlier: Sequence[PlacedFace], later: Sequence[PlacedFace], matcher: Matcher, bound: Matcher
) -> dict[int, int]:
    """Maps later faces to equal earlier ones (indices, one to one). Precedence: matching at the same place, matching,
    at the same place within `bound`."""
    pairs = []
    for (number, new), (known, old) in product(enumerate(later), enumerate(earlier)):
        overlap = box_iou(new.box, old.box) if new.box is not None and old.box is not None else 0.0
        there = overlap >= _SAME_PLACE
        distance = math.nan
        if new.embedding is not None and old.embedding is not None:
            distance = float(matcher.distances(new.embedding[None], old.embedding[None])[0])
        like = bool(matcher.matches(np.array([distance]))[0])
        within = math.isnan(distance) or bool(bound.matches(np.array([distance]))[0])
        if like or (there and within):
            pairs.append((not (like and there), not like, distance if like else -overlap, number, known))
    found: dict[int, int] = {}
    for *_, number, known in sorted(pairs):
        if number not in found and known not in found.values():
            found[number] = known
    return found
