"""Decides the person of each face: a run equals posting its photos one by one.

Faces are decided on a view of their directory, without its lock, and validated under it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, ParamSpec, TypeVar

import numpy as np

from pipeline.config import MatchSettings
from pipeline.errors import StoreError
from pipeline.extraction.rows import ExtractedFace
from pipeline.matching.group import group_faces
from pipeline.matching.match import Matcher
from pipeline.matching.once_per_photo import OncePerPhoto, photos_with_rule
from pipeline.matching.references import changes_since, check_embeddings
from pipeline.people.directory import Directory, DirectoryView
from pipeline.people.types import PostRequest
from pipeline.store import FaceVector, ReferenceOrigin
from pipeline.types import CENTER_POSE, CONTRAST, SHARPNESS, FaceBatch, IntArray, Outcome

_TRIES: Final = 1000  # a deletion shows in the catalog shortly before the view
P = ParamSpec("P")
R = TypeVar("R")


def failed_measures(qualities: Sequence[float], gate: MatchSettings) -> tuple[str, ...]:
    """The qualities (in the order of QUALITIES) below the quality gate; if none, the face may become a reference
    (contract, 4.2 rules 3 and 4)."""
    lowest = {CENTER_POSE: gate.min_cpq, SHARPNESS: gate.min_fsq, CONTRAST: gate.min_fcq}
    return tuple(name for (name, low), own in zip(lowest.items(), qualities, strict=True) if own < low)


@dataclass(frozen=True)
class DetectedFace:
    """A detected face of a photo. The last three fields are its decision."""

    photo: int  # number of its photo in the batch
    ordinal: int  # rank in its photo, 0 is the largest
    face: ExtractedFace
    image_hashes: tuple[str, ...]  # of the photo's bytes and pixels
    allowed: bool  # the contract lets it become an identity
    failed: tuple[str, ...]  # qualities below the quality gate
    fit: bool  # good and large enough for a reference
    new_id: str  # of the person, if it becomes an identity
    settled: bool = False  # already resolved, by a correction or an earlier face, or forgotten
    again: bool = False  # replaces an earlier face: its person's count stays
    outcome: Outcome = "recognised"
    person_id: str | None = None
    score: float | None = None

    @property
    def keeps_vector(self) -> bool:
        """Whether its vector is stored: not if rejected, forgotten, or assigned by a correction below the quality
        gate."""
        poor = self.settled and bool(self.failed) and self.outcome == "matched"
        return self.outcome not in ("rejected", "removed") and not poor

    @property
    def vector(self) -> FaceVector:
        return FaceVector(self.face.embedding, self.image_hashes, self.face.box)


@dataclass(frozen=True)
class Decision:
    """The decision about n faces on one view of their directory."""

    directory: Directory
    view: DirectoryView
    detected_faces: Sequence[DetectedFace]
    faces: FaceBatch
    positions: IntArray  # [n] as `Decisions.position`
    matcher: Matcher
    roots: Mapping[str, str] = field(default_factory=dict)  # those of persons that mattered

    @property
    def matched(self) -> set[str]:
        """The persons that faces matched."""
        return {str(s.person_id) for s in self.detected_faces if s.outcome == "matched"}

    def is_outdated(self) -> bool:
        """Validation: whether a commit since could change the decision. May err towards True."""
        if any(self.directory.root_id(person_id) != root for person_id, root in self.roots.items()):
            return True
        now = self.directory.view()
        if now.index is self.view.index:
            return False
        changes = changes_since(self.view.index, now.index)
        if changes is None or np.isin(self.positions, changes.removed).any():
            return True
        return len(changes.appended) > 0 and self._may_match(now, changes.appended)

    def _may_match(self, now: DirectoryView, appended: range) -> bool:
        for hashes, box in zip(self.faces.image_hashes, self.faces.boxes.tolist(), strict=True):
            identical = now.index.find_identical(hashes, box)
            if identical is not None and identical >= appended.start:
                return True
        nearest = self.matcher.nearest(now.index.part(appended), self.faces.embeddings, 1, matching=True)
        return bool((nearest.positions >= 0).any())


def occurrences(directory: Directory, detected_faces: Sequence[DetectedFace]) -> Counter[str]:
    """The number of further photos of each person. A merged set counts once per photo, on the record that the largest
    face matched. The photo that inserts a person does not count: it starts at 1."""
    made_by = {s.person_id: s.photo for s in detected_faces if s.outcome == "inserted"}
    counted: dict[tuple[int, str], str] = {}
    again = set()
    for s in detected_faces:
        if s.person_id is not None and made_by.get(s.person_id) != s.photo:
            seen = s.photo, directory.root_id(s.person_id)
            counted.setdefault(seen, s.person_id)
            if s.again:
                again.add(seen)
    return Counter(person_id for seen, person_id in counted.items() if seen not in again)


def _batch(detected_faces: Sequence[DetectedFace]) -> FaceBatch:
    return FaceBatch(
        embeddings=np.stack([s.face.embedding for s in detected_faces]),
        insertable=np.array([s.allowed and s.fit for s in detected_faces]),
        image_hashes=[s.image_hashes for s in detected_faces],
        boxes=np.array([s.face.box for s in detected_faces], dtype=np.float32),
    )


class _Roots(dict[str, str]):
    """The roots of persons, as read."""

    def __init__(self, directory: Directory) -> None:
        super().__init__()
        self._directory = directory

    def __missing__(self, person_id: str) -> str:
        return self.setdefault(person_id, self._directory.root_id(person_id))


def _once_per_photo(
    view: DirectoryView,
    roots: _Roots,
    detected_faces: Sequence[DetectedFace],
    known: Sequence[DetectedFace],
    twice_allowed: Set[int],
) -> OncePerPhoto:
    """The rule that nobody is twice on a photo, but for some. `known`: faces of the photos that keep their persons."""
    faces = [*known, *detected_faces]
    photos = photos_with_rule([s.photo for s in faces], [s.face.box for s in faces], twice_allowed)[len(known) :]
    taken: dict[int, set[str]] = {}
    for s in known:
        taken.setdefault(s.photo, set()).add(roots[str(s.person_id)])
    return OncePerPhoto(np.array(photos, np.int64), lambda position: roots[view.person_ids[position]], taken)


def decide_faces(
    directory: Directory,
    detected_faces: Sequence[DetectedFace],
    matcher: Matcher,
    *,
    once_per_photo: bool = False,
    settled: Sequence[DetectedFace] = (),
    twice_allowed: Set[int] = frozenset(),
) -> Decision:
    """Decides n >= 1 faces in order, those of a photo one after another. Takes no lock. Raises StoreError.

    `once_per_photo`: nobody is twice on a photo, except on those of `twice_allowed` and of bytes for which a user said
    so; `settled` are the photos' faces that are resolved already."""
    faces = _batch(detected_faces)
    known = [s for s in settled if s.person_id is not None]
    once_per_photo = once_per_photo and max(Counter(s.photo for s in (*known, *detected_faces)).values()) > 1
    if once_per_photo:
        hashes = directory.twice_allowed()
        twice_allowed |= {s.photo for s in detected_faces if hashes.intersection(s.image_hashes)}
    for _ in range(_TRIES):
        view, roots = directory.view(), _Roots(directory)
        once = _once_per_photo(view, roots, detected_faces, known, twice_allowed) if once_per_photo else None
        grouped = group_faces(faces, view.index, matcher, once=once)
        positions, inserted = grouped.position.tolist(), grouped.inserted.tolist()
        matched_ids = {view.person_ids[p] for p in positions if 0 <= p < len(view.index)}
        if len(directory.of(matched_ids)) < len(matched_ids):
            continue  # deleted since the view was taken
        new_ids = [s.new_id for s, is_new in zip(detected_faces, inserted, strict=True) if is_new]
        decided = []
        for s, p, is_new, score in zip(detected_faces, positions, inserted, grouped.score.tolist(), strict=True):
            if p < 0:
                decided.append(replace(s, outcome="rejected" if s.allowed else "recognised"))
            else:
                person_id = view.person_ids[p] if p < len(view.index) else new_ids[p - len(view.index)]
                outcome: Outcome = "inserted" if is_new else "matched"
                decided.append(replace(s, outcome=outcome, person_id=person_id, score=score))
        return Decision(directory, view, decided, faces, grouped.position, matcher, roots)
    raise StoreError(message=f'The directory "{directory.name}" could not be read again after a failure.')


def decide_person(directory: Directory, detected: DetectedFace, person_id: str, matcher: Matcher) -> Decision:
    """Decides whether a face matches this person, ignoring others. An unfit face is rejected; a person without a
    reference matches none. Takes no lock. Raises PersonUnknown."""
    view, position = directory.reference_of(person_id)
    faces = _batch([detected])
    if position is None:
        directory.record(person_id)
        return Decision(directory, view, [detected], faces, np.array([-1], dtype=np.int64), matcher)
    check_embeddings(faces.embeddings, view.index.embedding_size)
    same = view.index.is_of(position, detected.image_hashes, detected.face.box)
    stored = view.index.vectors_at(np.array([position]))
    distances = np.zeros(1) if same else matcher.distances(faces.embeddings, stored)
    if not detected.fit:
        decided = replace(detected, outcome="rejected")
    elif same or matcher.matches(distances)[0]:
        score = float(matcher.scores(distances)[0])
        decided = replace(detected, outcome="matched", person_id=person_id, score=score)
    else:
        decided = replace(detected, outcome="recognised")
    positions = np.array([position if decided.outcome == "matched" else -1], dtype=np.int64)
    return Decision(directory, view, [decided], faces, positions, matcher)


def updaters(detected_faces: Sequence[DetectedFace]) -> list[DetectedFace]:
    """The faces that may update the person they matched: the best `fit` one each."""
    inserted = {detected.person_id for detected in detected_faces if detected.outcome == "inserted"}
    best: dict[str | None, DetectedFace] = {}
    for detected in detected_faces:
        if detected.outcome == "matched" and detected.fit and detected.person_id not in inserted:
            rival = best.setdefault(detected.person_id, detected)
            if (detected.score or 0.0) > (rival.score or 0.0):
                best[detected.person_id] = detected
    return sorted(best.values(), key=lambda detected: detected.ordinal)


def gives_way(reference: ReferenceOrigin, face: ExtractedFace, request: PostRequest, now: datetime) -> bool:
    """Whether the request's conditions let this face replace the reference."""
    lower = all(old < new for old, new in zip(reference.qualities, face.qualities, strict=True))
    if request.update_if_lower_quality and not lower:
        return False
    days = request.update_if_older_days
    return not days or now - reference.added_at > timedelta(days=days)


def with_priority(priority: Executor | None, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Runs work under a lock on `priority`; None: in the calling thread."""
    return work(*args, **kwargs) if priority is None else priority.submit(work, *args, **kwargs).result()
