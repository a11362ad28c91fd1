"""What a decided post changes: new identities, the references and metadata of those it updates, counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from pipeline.config import REFUSE, ServeSettings
from pipeline.errors import PersonHeadersRequired
from pipeline.extraction.stored_picture import MEDIA_TYPE
from pipeline.matching.match import Matcher
from pipeline.people.decide import Decision, Sighting, gives_way, seen_again, updaters
from pipeline.people.directory import Directory
from pipeline.people.merging import merged
from pipeline.people.rules import broken_constraints, changed, label_conflict, members, require_free
from pipeline.people.types import Conflict, PostRequest, SimilarPerson
from pipeline.store.catalog.opening import utc_now
from pipeline.store.local import LocalStore
from pipeline.store.records import (
    NO_CHANGE,
    NewReference,
    PersonChange,
    PersonRecord,
    PostedImage,
    ReferenceOrigin,
    Rows,
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
    records: dict[str, PersonRecord] = field(default_factory=dict)  # as they are afterwards
    inserted: list[str] = field(default_factory=list)
    references: list[NewReference] = field(default_factory=list)
    conflicts: dict[int, Conflict] = field(default_factory=dict)  # by face: why it updates nobody, or is not merged
    merged: set[str] = field(default_factory=set)  # the persons that a merge joins, and their roots
    merge: tuple[Rows, Rows] | None = None  # before and after it
    account_updated: bool = False


class ChangeRules:
    """Says what decided posts change, by the settings of the server."""

    def __init__(self, client: LocalStore, settings: ServeSettings) -> None:
        self._client = client
        self._settings = settings

    def changes(self, directory: Directory, post: Post, decided: DecidedPost) -> Changes:
        """All that it changes. Raises PersonHeadersRequired, ExternalIdTaken, MetadataTooLarge, PersonUnknown; then
        nothing is changed."""
        changes = Changes(utc_now())
        for sighting in decided.sightings:
            if sighting.outcome == "inserted":
                self._insert(directory, post, sighting, changes)
        seen = seen_again(directory, decided.decision.occurrences(), changes.now)
        changes.records.update((record.person_id, record) for record in seen)
        changes.conflicts = self._conflicts(directory, post, decided)
        for sighting in self._updating(post, decided, changes.conflicts):
            self._update(directory, post, decided, sighting, changes)
        if post.request.merge_with is not None:
            self._merge(directory, post.request.merge_with, decided, changes)
        return changes

    def new_pictures(self, directory: Directory, post: Post, decided: DecidedPost) -> list[tuple[str, bytes, str]]:
        """(guid, bytes, media type) of the faces that become references if nothing comes in meanwhile."""
        new = [sighting for sighting in decided.sightings if sighting.outcome == "inserted"]
        updating = self._updating(post, decided, self._conflicts(directory, post, decided))
        new += [sighting for sighting in updating if _replaces(post, decided, sighting, utc_now())]
        return [(post.guids[s.ordinal], s.face.crop, MEDIA_TYPE) for s in new if s.face.crop]

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
        person_id, guid = sighting.new_id, post.guids[sighting.ordinal]
        changes.references.append(_new_reference(post, sighting))
        changes.inserted.append(person_id)
        changes.records[person_id] = changed(PersonRecord.new(person_id, None, None, guid, changes.now), said)
        changes.account_updated = True

    def _update(
        self, directory: Directory, post: Post, decided: DecidedPost, sighting: Sighting, changes: Changes
    ) -> None:
        """Replaces the reference of the matched record, and the name and id where the headers give some."""
        person_id = str(sighting.person_id)
        old = changes.records[person_id] if person_id in changes.records else directory.get(person_id)
        assert old is not None
        said = post.said_of(sighting)
        if self._settings.unique_external_ids and said.external_id != old.external_id:
            require_free(directory, said.external_id, person_id)
        record = changed(old, said)
        if _replaces(post, decided, sighting, changes.now):
            changes.references.append(_new_reference(post, sighting))
            record = replace(record, image_guid=post.guids[sighting.ordinal])
        if record != old:
            changes.records[person_id] = replace(record, modified_at=changes.now)
            changes.account_updated = True

    def _merge(self, directory: Directory, with_id: str, decided: DecidedPost, changes: Changes) -> None:
        """Makes the person of the face and another one person, as `PUT /merge` does. A conflict is no match, and a
        constraint that they are two people is one."""
        (sighting,) = decided.sightings
        if sighting.person_id is None or sighting.ordinal in changes.conflicts:
            return
        new = changes.records[sighting.person_id] if sighting.outcome == "inserted" else None
        changes.merged = {with_id, sighting.person_id}
        tops = merged(directory, [with_id, sighting.person_id], changes.now, new)
        parents = {top.person_id: top.parent_id for top in tops}
        if broken_constraints(directory, parents, self._client.facts_about([], members(directory, parents))):
            changes.conflicts[sighting.ordinal] = "stated-two-people"
            return
        for top in tops:
            record = changes.records.get(top.person_id, top)
            changes.records[top.person_id] = replace(record, parent_id=top.parent_id, modified_at=changes.now)
            changes.merged |= {top.person_id, str(top.parent_id)}
            changes.account_updated = True
        if tops:
            before = {top.person_id: {"parent_id": None} for top in tops}  # only who had none gets a parent
            changes.merge = Rows(before), Rows({p: {"parent_id": parent_id} for p, parent_id in parents.items()})


def _replaces(post: Post, decided: DecidedPost, sighting: Sighting, now: datetime) -> bool:
    """Whether the face takes the place of the reference that it matched."""
    if sighting.ordinal in decided.identical:
        return False
    if decided.origins is None:
        return True
    origin = decided.origins.get(str(sighting.person_id))
    return origin is not None and gives_way(origin, sighting.face, post.request, now)


def _new_reference(post: Post, sighting: Sighting) -> NewReference:
    face = sighting.face
    assert face.crop is not None
    assert sighting.score is not None
    return NewReference(
        person_id=str(sighting.person_id),
        ordinal=sighting.ordinal,
        outcome=sighting.outcome,
        similarity_score=sighting.score,
        fields=face.fields,
        embedding=face.embedding,
        image_guid=post.guids[sighting.ordinal],
        image=face.crop,
        media_type=MEDIA_TYPE,
    )
