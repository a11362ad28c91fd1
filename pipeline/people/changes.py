"""The changes of a decided post: new identities, updated references and metadata, counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.config import REFUSE, ServeSettings
from pipeline.errors import PersonHeadersRequired
from pipeline.extraction.stored_picture import MEDIA_TYPE
from pipeline.matching.match import Matcher
from pipeline.people.decide import Decision, DetectedFace, gives_way, occurrences, updaters
from pipeline.people.locks import ReadWriteSet
from pipeline.people.merging import merged_parents
from pipeline.people.rules import (
    broken_constraints,
    changed,
    difference,
    label_conflict,
    require_free,
    row_of,
)
from pipeline.people.types import Conflict, PostRequest
from pipeline.store import (
    ADD_FACE,
    API,
    INSERT,
    MERGE,
    NO_CHANGE,
    UPDATE,
    USER,
    Change,
    LocalStore,
    PersonChange,
    PersonRecord,
    Picture,
    PostedFace,
    PostedImage,
    PostedPhoto,
    ReferenceOrigin,
    Rows,
    reference_origins,
)
from pipeline.types import utc_now


@dataclass(frozen=True)
class Post:
    """A posted image, its faces and the request."""

    image: PostedImage
    request: PostRequest
    matcher: Matcher  # with the request's threshold
    detected_faces: Sequence[DetectedFace]  # largest face first
    guids: Sequence[str]  # of the faces' pictures if stored
    described: int | None  # the face that the headers describe
    once_per_photo: bool = False  # nobody is twice on the image

    def said_of(self, detected: DetectedFace) -> PersonChange:
        """The headers' data if they describe this face, else NO_CHANGE."""
        request = self.request
        described = detected.ordinal == self.described
        return replace(request.details, name=request.name, external_id=request.external_id) if described else NO_CHANGE


def matched_origins(client: LocalStore, post: Post, decision: Decision) -> Mapping[str, ReferenceOrigin] | None:
    """The origins of the references that the faces may replace; None if the request sets no conditions."""
    request = post.request
    if not request.update or not (request.update_if_lower_quality or request.update_if_older_days):
        return None
    return client.ask(reference_origins, sorted(decision.matched)) if decision.matched else {}


class Changes:
    """The changes of a post, collected for its commit."""

    def __init__(
        self,
        client: LocalStore,
        settings: ServeSettings,
        post: Post,
        decision: Decision,
        origins: Mapping[str, ReferenceOrigin] | None,
    ) -> None:
        """`origins`: the `matched_origins` of the decision.

        Raises PersonHeadersRequired, ExternalIdTaken, MetadataTooLarge, PersonUnknown.
        """
        self._settings = settings
        self._directory = decision.directory
        self._post, self._decision = post, decision
        self._now = utc_now()
        self._inserted: dict[str, PersonRecord] = {}
        self._updated: dict[str, dict[str, Any]] = {}  # new columns of stored persons
        inserting = [s for s in decision.detected_faces if s.outcome == "inserted"]
        matched = decision.matched - {s.new_id for s in inserting}
        self._known = {record.person_id: record for record in self._directory.those(matched)}  # `_merge` adds to it
        shown = occurrences(self._directory, decision.detected_faces)
        self._seen = {person_id: count for person_id, count in shown.items() if person_id in self._known}
        self._references: list[DetectedFace] = []  # new ones
        self._merged: set[str] = set()  # by a merge: persons and roots
        self._kind = INSERT
        for detected in inserting:
            self._insert(detected)
        self.conflicts = self._conflicts()  # by ordinal
        for detected in self._updating():
            self._update(detected, origins)
        if post.request.merge_with is not None and (inserting or not post.request.by_user):
            self._merge(client, post.request.merge_with)

    @property
    def account_updated(self) -> bool:
        return bool(self._inserted or self._updated)

    @property
    def person_ids(self) -> set[str]:
        """The persons that it changes."""
        return {*self._inserted, *self._updated, *self._seen}

    def pictures(self) -> dict[str, Picture]:
        """The pictures of the new references, by person."""
        return {str(s.person_id): _picture(self._post, s) for s in self._references}

    def read_write_set(self) -> ReadWriteSet:
        decision = self._decision
        records = (*self._inserted.values(), *self._known.values())
        given = (columns.get("external_id") for columns in self._updated.values())
        external_ids = (*(record.external_id for record in records), *given)
        matched = {detected.person_id for detected in decision.detected_faces if detected.person_id is not None}
        return ReadWriteSet(
            person_ids=frozenset(matched | self.person_ids | self._merged),
            external_ids=frozenset(each for each in external_ids if each and self._settings.unique_external_ids),
            image_hashes=frozenset(decision.detected_faces[0].image_hashes),
            faces=decision.faces.embeddings,
            new_references=[detected.ordinal for detected in self._references],
            matcher=self._post.matcher,
        )

    def change(self, client: LocalStore) -> Change:
        """Builds the `Change`; reserves ids."""
        media_id, first_face_id = client.reserve_ids(bool(self._references), len(self._references))
        faces = dict(enumerate(self._references, first_face_id))
        columns = {p: {name: getattr(self._known[p], name) for name in new} for p, new in self._updated.items()}
        posted = [_posted(face_id, s) for face_id, s in faces.items()]
        kind = UPDATE if self._kind == INSERT and any(columns.values()) else self._kind
        added = self._post.request.by_user and bool(self._inserted)
        return Change(
            self._directory.account_id,
            self._directory.name,
            ADD_FACE if added else kind,
            USER if added else API,
            before=Rows({**dict.fromkeys(self._inserted), **columns}),
            after=Rows(
                {**{p: row_of(record) for p, record in self._inserted.items()}, **self._updated},
                references={str(s.person_id): face_id for face_id, s in faces.items()},
            ),
            seen=self._seen,
            seqs={person_id: record.seq for person_id, record in self._known.items()},
            photo=PostedPhoto(media_id, self._post.image, posted) if faces else None,
            replaced=[str(s.person_id) for s in self._references if s.person_id not in self._inserted],
            pictures=self.pictures(),
            vectors={face_id: s.vector for face_id, s in faces.items()},
            measured={face_id: s.face.other for face_id, s in faces.items() if s.face.other is not None},
        )

    def _conflicts(self) -> dict[int, Conflict]:
        """By ordinal: faces that are not the named person's, or that the headers contradict."""
        request, detected_faces = self._post.request, self._decision.detected_faces
        if request.update_person_id is not None:
            return {detected.ordinal: "person" for detected in detected_faces if detected.outcome == "recognised"}
        conflicts: dict[int, Conflict] = {}
        if request.update and self._settings.update_conflicts == REFUSE:
            for detected in detected_faces:
                record = self._known.get(str(detected.person_id))
                conflict = label_conflict(record, self._post.said_of(detected)) if record is not None else None
                if conflict is not None:
                    conflicts[detected.ordinal] = conflict
        return conflicts

    def _updating(self) -> list[DetectedFace]:
        """The faces that update their person; none of a person with a face in conflict."""
        detected_faces = self._decision.detected_faces
        in_conflict = {detected_faces[ordinal].person_id for ordinal in self.conflicts}
        found = updaters(detected_faces) if self._post.request.update else []
        return [detected for detected in found if detected.person_id not in in_conflict]

    def _insert(self, detected: DetectedFace) -> None:
        said = self._post.said_of(detected)
        request = self._post.request
        is_somebody_new = request.merge_with is None or not request.by_user
        required = self._settings.person_headers == "required" and detected.ordinal == self._post.described
        if required and is_somebody_new and (said.name is None or said.external_id is None):
            raise PersonHeadersRequired
        if self._settings.unique_external_ids:
            require_free(self._directory, said.external_id, None)
        record = PersonRecord.new(detected.new_id, self._now)
        self._inserted[detected.new_id] = changed(record, said)
        self._references.append(detected)

    def _update(self, detected: DetectedFace, origins: Mapping[str, ReferenceOrigin] | None) -> None:
        """Updates the matched record's columns and, if allowed, its reference."""
        old = self._known[str(detected.person_id)]
        said = self._post.said_of(detected)
        if self._settings.unique_external_ids and said.external_id != old.external_id:
            require_free(self._directory, said.external_id, old.person_id)
        columns = difference(old, changed(old, said))
        replaces = self._replaces(detected, origins)
        if replaces:
            self._references.append(detected)
        if columns or replaces:
            self._updated[old.person_id] = columns

    def _replaces(self, detected: DetectedFace, origins: Mapping[str, ReferenceOrigin] | None) -> bool:
        """Whether the face replaces the matched reference: not if it is the same face of the same image."""
        position = int(self._decision.positions[detected.ordinal])
        if self._decision.view.index.is_of(position, detected.image_hashes, detected.face.box):
            return False
        if origins is None:
            return True
        origin = origins.get(str(detected.person_id))
        return origin is not None and gives_way(origin, detected.face, self._post.request, self._now)

    def _merge(self, client: LocalStore, with_id: str) -> None:
        """Merges the face's person with another, like `PUT /merge`, unless the face has a conflict or a constraint
        forbids it, which becomes one."""
        (detected,) = self._decision.detected_faces
        person_id = detected.person_id
        if person_id is None or detected.ordinal in self.conflicts:
            return
        self._merged = {with_id, person_id}
        parents = merged_parents(self._directory, [with_id, person_id], self._inserted.get(person_id))
        if broken_constraints(client, self._directory, parents):
            self.conflicts[detected.ordinal] = "stated-two-people"
            return
        for child, parent_id in parents.items():
            if child in self._inserted:
                self._inserted[child] = replace(self._inserted[child], parent_id=parent_id)
            else:
                self._known[child] = self._directory.record(child)
                self._updated.setdefault(child, {})["parent_id"] = parent_id
            self._merged |= {child, str(parent_id)}
            self._kind = MERGE


def _posted(face_id: int, detected: DetectedFace) -> PostedFace:
    assert detected.score is not None
    return PostedFace(
        face_id=face_id,
        person_id=str(detected.person_id),
        ordinal=detected.ordinal,
        outcome=detected.outcome,
        similarity_score=detected.score,
        fields=detected.face.fields,
    )


def _picture(post: Post, detected: DetectedFace) -> Picture:
    assert detected.face.crop is not None
    return post.guids[detected.ordinal], detected.face.crop, MEDIA_TYPE
