"""What a decided post changes: new identities, the references and metadata of those it updates, counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pipeline.config import REFUSE, ServeSettings
from pipeline.errors import PersonHeadersRequired
from pipeline.extraction.stored_picture import MEDIA_TYPE
from pipeline.matching.match import Matcher
from pipeline.people.decide import Decision, Sighting, gives_way, seen_of, updaters
from pipeline.people.directory import Directory
from pipeline.people.merging import merged_parents
from pipeline.people.rules import (
    broken_constraints,
    changed,
    difference,
    label_conflict,
    members,
    require_free,
    row_of,
)
from pipeline.people.types import Conflict, PostRequest, SimilarPerson
from pipeline.store import (
    INSERT,
    MERGE,
    NO_CHANGE,
    UPDATE,
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
    utc_now,
)


@dataclass(frozen=True)
class Post:
    """A posted image with its faces, and what is asked for."""

    image: PostedImage
    request: PostRequest
    matcher: Matcher  # with the request's threshold
    sightings: Sequence[Sighting]  # from the largest face to the smallest
    guids: Sequence[str]  # of the faces' pictures, in case they are stored
    described: int | None  # the face that the headers describe

    def said_of(self, sighting: Sighting) -> PersonChange:
        """What the headers say of the person of this face: nothing unless they describe it."""
        request = self.request
        described = sighting.ordinal == self.described
        return replace(request.details, name=request.name, external_id=request.external_id) if described else NO_CHANGE


@dataclass(frozen=True)
class DecidedPost:
    """The decision, and what an answer shows of the directory as it was then."""

    decision: Decision
    similar: list[list[SimilarPerson]] | None
    identical: frozenset[int]  # faces that are themselves the reference they matched: the same image again
    origins: Mapping[str, ReferenceOrigin] | None  # of the matched references; None: no conditions, or no update

    @property
    def sightings(self) -> Sequence[Sighting]:
        return self.decision.sightings

    def is_outdated(self) -> bool:
        return self.decision.is_outdated()


@dataclass
class Changes:
    """What a post changes, collected for its commit."""

    now: datetime
    inserted: dict[str, PersonRecord] = field(default_factory=dict)  # new persons
    updated: dict[str, dict[str, Any]] = field(default_factory=dict)  # columns of stored persons, as they will be
    seen: Mapping[str, int] = field(default_factory=dict)  # stored persons whom the image shows again
    references: list[Sighting] = field(default_factory=list)  # the faces that become references
    conflicts: dict[int, Conflict] = field(default_factory=dict)  # by face: why it updates nobody, or is not merged
    merged: set[str] = field(default_factory=set)  # the persons that a merge joins, and their roots
    merge: bool = False

    @property
    def account_updated(self) -> bool:
        return bool(self.inserted or self.updated)

    @property
    def person_ids(self) -> set[str]:
        """Whom it changes."""
        return {*self.inserted, *self.updated, *self.seen}

    def pictures(self, post: Post) -> dict[str, Picture]:
        """Of the new references, by person."""
        return {str(s.person_id): _picture(post, s) for s in self.references}

    def change(self, directory: Directory, post: Post, ids: tuple[int, int]) -> Change:
        """`ids`: the reserved media id of the image, and the first of its faces' ids."""
        media_id, first_face_id = ids
        faces = dict(enumerate(self.references, first_face_id))
        stored = {person_id: directory.get(person_id) for person_id in {*self.updated, *self.seen}}
        known = {person_id: record for person_id, record in stored.items() if record is not None}
        columns = {p: {name: getattr(known[p], name) for name in new} for p, new in self.updated.items()}
        kind = UPDATE if any(columns.values()) else INSERT
        return Change(
            directory.account_id,
            directory.name,
            MERGE if self.merge else kind,
            before=Rows({**dict.fromkeys(self.inserted), **columns}),
            after=Rows(
                {**{p: row_of(record) for p, record in self.inserted.items()}, **self.updated},
                references={str(s.person_id): face_id for face_id, s in faces.items()},
            ),
            seen=self.seen,
            seqs={person_id: record.seq for person_id, record in known.items()},
            photo=PostedPhoto(media_id, post.image, [_posted(n, s) for n, s in faces.items()]) if faces else None,
            replaced=[str(s.person_id) for s in self.references if s.person_id not in self.inserted],
            pictures=self.pictures(post),
            vectors={face_id: s.vector for face_id, s in faces.items()},
        )


class ChangeRules:
    """Says what decided posts change, by the settings of the server."""

    def __init__(self, client: LocalStore, settings: ServeSettings) -> None:
        self._client = client
        self._settings = settings

    def changes(self, directory: Directory, post: Post, decided: DecidedPost) -> Changes:
        """All that it changes. Raises PersonHeadersRequired, ExternalIdTaken, MetadataTooLarge, PersonUnknown; then
        nothing is changed."""
        changes = Changes(utc_now(), seen=seen_of(directory, decided.decision.occurrences()))
        for sighting in decided.sightings:
            if sighting.outcome == "inserted":
                self._insert(directory, post, sighting, changes)
        changes.conflicts = self._conflicts(directory, post, decided)
        for sighting in self._updating(post, decided, changes.conflicts):
            self._update(directory, post, decided, sighting, changes)
        if post.request.merge_with is not None:
            self._merge(directory, post.request.merge_with, decided, changes)
        return changes

    def _conflicts(self, directory: Directory, post: Post, decided: DecidedPost) -> dict[int, Conflict]:
        """The faces that are not of the named person; else those that the headers call somebody else."""
        if post.request.update_person_id is not None:
            return {sighting.ordinal: "person" for sighting in decided.sightings if sighting.outcome == "recognised"}
        conflicts: dict[int, Conflict] = {}
        if post.request.update and self._settings.update_conflicts == REFUSE:
            for sighting in decided.sightings:
                record = directory.get(str(sighting.person_id)) if sighting.outcome == "matched" else None
                conflict = label_conflict(record, post.said_of(sighting)) if record is not None else None
                if conflict is not None:
                    conflicts[sighting.ordinal] = conflict
        return conflicts

    def _updating(self, post: Post, decided: DecidedPost, conflicts: dict[int, Conflict]) -> list[Sighting]:
        """The faces that update the person they matched. One in conflict keeps the other faces from it, too."""
        in_conflict = {decided.sightings[ordinal].person_id for ordinal in conflicts}
        found = updaters(decided.sightings) if post.request.update else []
        return [sighting for sighting in found if sighting.person_id not in in_conflict]

    def _insert(self, directory: Directory, post: Post, sighting: Sighting, changes: Changes) -> None:
        said = post.said_of(sighting)
        required = self._settings.person_headers == "required" and sighting.ordinal == post.described
        if required and (said.name is None or said.external_id is None):
            raise PersonHeadersRequired
        if self._settings.unique_external_ids:
            require_free(directory, said.external_id, None)
        record = PersonRecord.new(sighting.new_id, None, None, "", changes.now)
        changes.inserted[sighting.new_id] = changed(record, said)
        changes.references.append(sighting)

    def _update(
        self, directory: Directory, post: Post, decided: DecidedPost, sighting: Sighting, changes: Changes
    ) -> None:
        """Replaces the reference of the matched record, and the name and id where the headers give some."""
        old = directory.get(str(sighting.person_id))
        assert old is not None
        said = post.said_of(sighting)
        if self._settings.unique_external_ids and said.external_id != old.external_id:
            require_free(directory, said.external_id, old.person_id)
        columns = difference(old, changed(old, said))
        replaces = _replaces(post, decided, sighting, changes.now)
        if replaces:
            changes.references.append(sighting)
        if columns or replaces:
            changes.updated[old.person_id] = columns

    def _merge(self, directory: Directory, with_id: str, decided: DecidedPost, changes: Changes) -> None:
        """Makes the person of the face and another one person, as `PUT /merge` does. A conflict is no match, and a
        constraint that they are two people is one."""
        (sighting,) = decided.sightings
        person_id = sighting.person_id
        if person_id is None or sighting.ordinal in changes.conflicts:
            return
        new = changes.inserted.get(person_id)
        changes.merged = {with_id, person_id}
        parents = merged_parents(directory, [with_id, person_id], new)
        if broken_constraints(directory, parents, self._client.facts_about([], members(directory, parents))):
            changes.conflicts[sighting.ordinal] = "stated-two-people"
            return
        for child, parent_id in parents.items():
            if child in changes.inserted:
                changes.inserted[child] = replace(changes.inserted[child], parent_id=parent_id)
            else:
                changes.updated.setdefault(child, {})["parent_id"] = parent_id
            changes.merged |= {child, str(parent_id)}
        changes.merge = bool(parents)


def _replaces(post: Post, decided: DecidedPost, sighting: Sighting, now: datetime) -> bool:
    """Whether the face takes the place of the reference that it matched."""
    if sighting.ordinal in decided.identical:
        return False
    if decided.origins is None:
        return True
    origin = decided.origins.get(str(sighting.person_id))
    return origin is not None and gives_way(origin, sighting.face, post.request, now)


def _posted(face_id: int, sighting: Sighting) -> PostedFace:
    assert sighting.score is not None
    return PostedFace(
        face_id=face_id,
        person_id=str(sighting.person_id),
        ordinal=sighting.ordinal,
        outcome=sighting.outcome,
        similarity_score=sighting.score,
        fields=sighting.face.fields,
    )


def _picture(post: Post, sighting: Sighting) -> Picture:
    assert sighting.face.crop is not None
    return post.guids[sighting.ordinal], sighting.face.crop, MEDIA_TYPE
