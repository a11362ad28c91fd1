"""Corrections of faces, persons, merges and names, deletions, and undo.

Recognition uses a correction immediately, later runs respect its constraints, and its rows are logged for undo. It is
decided and committed under the directory's lock. Large ones are decided before and only validated and committed under
it. Pictures are always made without the lock.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from pipeline.config import ServeSettings
from pipeline.errors import (
    ChangedSince,
    CorrectionImpossible,
    FaceUnknown,
    RequestError,
    StatedTwoPeople,
    StoreError,
    UndoBlocked,
)
from pipeline.extraction.images.decode import Decoder
from pipeline.matching.once_per_photo import photos_with_rule
from pipeline.people import merging
from pipeline.people.contradictions import Chains
from pipeline.people.correction_plan import IS, IS_NOT, NOBODY, TWICE, Plan, has_name
from pipeline.people.decide import with_priority
from pipeline.people.directory import Changed, Directories
from pipeline.people.drawn_faces import add_face
from pipeline.people.labels import labels_followed
from pipeline.people.reference_pictures import Pictures
from pipeline.people.regroup import regroup
from pipeline.people.rules import (
    NOT_SAME,
    broken_constraints,
    changed,
    difference,
    require_free,
    together,
    two_people,
)
from pipeline.people.undo import undo
from pipeline.store import (
    ADD_FACE,
    LABEL,
    NO_CHANGE,
    USER,
    Change,
    CorrectionAnswer,
    CorrectionRequest,
    Fact,
    LocalStore,
    PersonRecord,
    Row,
    Rows,
    StoredFace,
    erasures,
    forgotten,
)

LONG: Final = frozenset({"regroup", "label"})  # kinds that, like their undo, may change thousands of faces
_DECIDED_FREE: Final = LONG | {"undo"}  # decided without the lock
_OF_SOMEBODY: Final = frozenset({"delete", "delete_merged", "forget", "split"})
_NAMES: Final = frozenset({"name", "first_name", "last_name", "external_id"})
# Attempts without the lock before one under it.
_FREE_TRIES: Final = 5


@dataclass(frozen=True)
class _Decided:
    """A decided correction, ready to commit."""

    plan: Plan
    change: Change
    answer: CorrectionAnswer  # before the commit
    dry_run: bool


class Corrections:
    """Makes corrections in the directories of a store."""

    def __init__(
        self,
        client: LocalStore,
        directories: Directories,
        decoder: Decoder,
        settings: ServeSettings,
        committing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`committing`: entered before the lock, to commit a correction decided without it."""
        self._client = client
        self._committing = committing
        self._directories = directories
        self._settings = settings
        self._decoder = decoder

    def make(
        self, request: CorrectionRequest, decoded: pa.Table | None = None, priority: Executor | None = None
    ) -> CorrectionAnswer:
        """Makes a correction durably. Raises RequestError (nothing is changed) and StoreError. `decoded`: for a
        regroup, rejected faces extracted again (DECODED_SCHEMA); for a drawn face, what `find_face` found.
        `priority`: executor for the commit of a large correction."""
        free = request.kind in _DECIDED_FREE
        locked = not free or (request.kind == "undo" and request.dry_run)  # a dry run needs no pictures
        required = request.kind != "forget_photos"
        with self._directories.using(request.account_id, request.directory) as opened:
            pictures = Pictures(self._client, self._decoder, opened, required=required, locked=locked)
            asked = request, decoded, pictures
            answer = self._free(*asked, priority) if free else self._locked(*asked)
        self._client.unlink_needless()
        return answer

    def switch_generation(
        self,
        request: CorrectionRequest | None = None,
        *,
        back: bool = False,
        committing: Callable[[], AbstractContextManager[None]] = nullcontext,
        priority: Executor | None = None,
    ) -> CorrectionAnswer | None:
        """Switches the store to its newer generation, or `back` to the older one. `request`: a regroup by the newer
        one in the same transaction; its dry run switches nothing. `committing` wraps the commit, which runs on
        `priority`. Raises ReindexMissing, RequestError, and StoreError if corrections keep coming."""
        if request is None:
            with_priority(priority, self._switch, back, committing)
            return None
        if request.kind != "regroup" or request.person_ids or back:
            raise CorrectionImpossible(detail="Only a regroup of all comes with a swap.")
        before, client = self._client.generation, self._client.after_switch()
        corrections = Corrections(client, self._directories, self._decoder, self._settings, committing)
        answer = corrections.make(request, None, priority)
        if not request.dry_run and self._client.generation == before:  # an empty regroup commits nothing
            with_priority(priority, self._switch, back, committing)
        return answer

    def _switch(self, back: bool, committing: Callable[[], AbstractContextManager[None]]) -> None:
        with committing():
            self._client.switch_generation(back=back)

    def _locked(self, request: CorrectionRequest, decoded: pa.Table | None, pictures: Pictures) -> CorrectionAnswer:
        """Decides and commits under the lock. If pictures are missing, reads them without the lock and repeats."""
        while True:
            with self._directories.writing(pictures.directory):
                plan = self._planned(request, decoded, pictures)
                if request.dry_run or not pictures.wanted:
                    return self._commit(_decided(plan, request))
            pictures.read_wanted()

    def _refuse_if_changed(self, request: CorrectionRequest) -> None:
        """Raises ChangedSince if the sender has not seen a correction made since."""
        if request.seen is None:
            return
        at, person_ids, own = request.seen.at, request.seen.person_ids, request.seen.own
        changes = self._client.corrected_since(request.account_id, request.directory, at, person_ids, own)
        if changes:
            what = ", ".join(f"{change.kind.replace('_', '-')}{' (taken back)' * change.undone}" for change in changes)
            raise ChangedSince(
                what=what,
                changes=[
                    {"correction": c.correction_id, "kind": c.kind, "at": f"{c.at.isoformat()}Z", "undone": c.undone}
                    for c in changes
                ],
            )

    def _free(
        self, request: CorrectionRequest, decoded: pa.Table | None, pictures: Pictures, priority: Executor | None
    ) -> CorrectionAnswer:
        """Optimistic: decides and writes pictures without the lock, validates and commits under it. After _FREE_TRIES
        failures, decides under the lock, so that writers cannot starve it. A refusal counts only if no correction was
        committed meanwhile."""
        asked, directory = (request, decoded, pictures), pictures.directory
        for _ in range(_FREE_TRIES):
            before = directory.changed
            try:
                found = _decided(self._planned(*asked), request)
                if request.dry_run:
                    return self._commit(found)
                with self._client.images_ahead(directory.account_id, list(found.change.pictures.values())) as ahead:
                    answer = with_priority(priority, self._commit_valid, found, before, ahead)
                if answer is not None:
                    return answer
            except RequestError:
                with self._directories.writing(directory):
                    if directory.changed.corrections == before.corrections:
                        raise
        if self._client.is_after_switch:  # deciding under the lock would stall all requests
            raise StoreError(message="Corrections came all the time: nothing was changed. Try again.")
        return with_priority(priority, self._locked, *asked)

    def _planned(self, request: CorrectionRequest, decoded: pa.Table | None, pictures: Pictures) -> Plan:
        """Decides the correction. Raises RequestErrors."""
        self._refuse_if_changed(request)
        if request.kind == "label":
            return labels_followed(request, pictures)
        plan = Plan(pictures)
        if request.kind == "regroup":
            regroup(plan, request, decoded)
        elif request.kind == ADD_FACE:
            add_face(plan, request, decoded)
        else:
            _decide(plan, request)
        return plan

    def _commit_valid(self, decided: _Decided, before: Changed, ahead: dict[str, Row]) -> CorrectionAnswer | None:
        """Commits, or returns None if validation fails. `before`: the version before deciding. `ahead`: from
        `images_ahead`."""
        directory = decided.plan.directory
        with self._committing(), self._directories.writing(directory):
            if directory.changed.of_faces != before.of_faces or decided.plan.is_outdated():
                return None
            return self._commit(decided, ahead)

    def _commit(self, decided: _Decided, ahead: dict[str, Row] | None = None) -> CorrectionAnswer:
        """Commits and applies the change. The caller holds the directory's lock."""
        plan, change, answer = decided.plan, decided.change, decided.answer
        unique = self._settings.unique_external_ids and change.origin != LABEL  # a taken id must not fail a run
        _require_allowed(plan, change.before, change.after, unique_external_ids=unique)
        if decided.dry_run:
            return answer
        if change.before == change.after and not (change.leaving or change.deleted):
            if change.labels:
                self._client.note_labels(change.labels)
            return answer
        done = self._client.commit(change, ahead)
        if self._client.is_after_switch:  # the index is of the other generation
            plan.directory.forget_index(self._client.identity.embedding_size)
        plan.directory.apply(change, done)
        if plan.undoes:
            return replace(answer, undone_by=done.correction_id)
        return replace(answer, correction_id=done.correction_id if change.can_be_undone else None, made_at=done.at)


def _decided(plan: Plan, request: CorrectionRequest) -> _Decided:
    """Builds and prepares the plan's change."""
    change = replace(plan.change(request.kind, request.origin, dry_run=request.dry_run), receipt=request.receipt)
    if not request.dry_run:
        change.prepare()
    return _Decided(plan, change, _answer(plan, request, change), request.dry_run)


def _require_allowed(plan: Plan, before: Rows, after: Rows, *, unique_external_ids: bool) -> None:
    """Refuses merge cycles, merges against constraints, persons without face and name, and taken external ids if ids
    are unique. Raises CorrectionImpossible, StatedTwoPeople, ExternalIdTaken; for an undo UndoBlocked."""
    try:
        _require_merges(plan, before, after)
        stored = plan.directory.of((*after.persons, *after.references))
        for person_id, known in stored.items():
            columns = after.persons.get(person_id, {})
            if columns is None:
                continue
            loses_face = plan.undoes is not None and after.references.get(person_id, 0) is None
            if not loses_face and columns.keys().isdisjoint(_NAMES):
                continue
            new = replace(known, **columns)
            if unique_external_ids and new.external_id != known.external_id:
                require_free(plan.directory, new.external_id, person_id)
            if has_name(new) or not (loses_face or has_name(known)):
                continue
            stored_one = plan.client.reference_faces([person_id]).get(person_id)
            if after.references.get(person_id, stored_one) is None:
                detail = f"The person {person_id} has no face and would have no name: forget it instead."
                raise CorrectionImpossible(detail=detail)
    except RequestError as exc:
        if plan.undoes is None:
            raise
        detail = str(exc.fields.get("detail", exc))
        if isinstance(exc, StatedTwoPeople):
            two = "{person_id} and {other_id} were stated to be two people (correction {correction_id}).{chain}"
            detail = two.format_map(exc.fields).removesuffix(".")
        raise UndoBlocked(correction_id=plan.undoes.correction_id, kind=plan.undoes.kind, detail=detail) from exc


def _require_merges(plan: Plan, before: Rows, after: Rows) -> None:
    parents = {p: new["parent_id"] for p, new in after.persons.items() if new and "parent_id" in new}
    stated = [fact for fact in after.facts if fact.kind == NOT_SAME]
    if not stated and not any(parents.values()):
        return
    if (person_id := merging.below_itself(plan.directory, parents)) is not None:
        detail = f"The person {parents[person_id]} was merged with the person {person_id}, which is above it."
        raise CorrectionImpossible(detail=detail)
    broken = broken_constraints(plan.client, plan.directory, parents, set(before.facts))
    for fact in (*broken, *together(plan.directory, parents, stated)):
        chain = _chains(plan, parents).why_one(str(fact.person_id), str(fact.other_id))
        raise StatedTwoPeople(chain=chain, **{name: value for name, value in vars(fact).items() if value is not None})


def _chains(plan: Plan, parents: Mapping[str, str | None] | None = None) -> Chains:
    last = plan.client.last_merges(plan.directory.account_id, plan.directory.name)
    return Chains(plan.directory, last, parents or {})


def _answer(plan: Plan, request: CorrectionRequest, change: Change) -> CorrectionAnswer:
    """The answer, before the commit."""
    before, after, last = change.before, change.after, plan.undoes
    owners = [person_id for person_id in after.owners.values() if person_id]
    others = sorted(before.person_ids | after.person_ids)
    mentioned = dict.fromkeys([*owners, *after.persons, *after.references, *others])
    gone = dict.fromkeys(change.gone)
    stored = {person_id: record.name for person_id, record in plan.directory.of(mentioned).items()}
    new = {person_id: (columns or {}).get("name") for person_id, columns in after.persons.items()}
    names = {p: name for p in mentioned if (name := new.get(p) or stored.get(p))}
    answer = CorrectionAnswer(
        correction_id=None,
        kind=request.kind,
        persons=[person_id for person_id in mentioned if person_id not in gone],
        names=names,
        gone=list(gone),
        faces=sorted([*after.faces, *plan.gone_faces]),
        replaced=[fact for fact in before.facts if fact.person_id not in gone and fact.other_id not in gone],
    )
    if last is not None:
        answer = replace(answer, correction_id=last.correction_id, kind=last.kind, made_at=last.made_at, replaced=())
    return replace(answer, **plan.said)


def _decide(plan: Plan, request: CorrectionRequest) -> None:
    """Fills the plan. Raises RequestErrors."""
    persons = plan.directory.those(request.person_ids)
    if not persons and request.kind in _OF_SOMEBODY:
        raise CorrectionImpossible(detail="It names nobody.")
    change, changing = request.change, persons
    match request.kind:
        case "name" | "update":
            pass
        case "hide" | "unhide":
            change = replace(change, ignored=request.kind == "hide")
        case "cover":
            faces, own = plan.faces(request.face_ids), plan.directory.merged_ids(persons[0].person_id)
            if len(faces) != 1 or faces[0].person_id not in own:
                raise FaceUnknown(face_ids=", ".join(map(str, request.face_ids)))
            change = replace(change, cover=faces[0].face_id)
        case "merge":
            changing = [_merge(plan, persons, request)]
        case "unmerge":
            _unmerge(plan, request)
        case "not_same":
            _not_same(plan, persons)
        case "move":
            _move(plan, plan.movable(request.face_ids), persons, request.change.name)
        case "split":
            _split(plan, persons, plan.movable(request.face_ids))
        case "delete":
            if len(persons) > 1:
                raise CorrectionImpossible(detail="Only one record is deleted at a time.")
            for child, parent_id in merging.orphaned(plan.directory, persons[0]).items():
                plan.update(plan.directory.record(child), parent_id=parent_id)
            plan.delete([persons[0].person_id], frozenset() if request.no_trace else forgotten.PHOTOS)
        case "delete_merged" | "forget":
            everybody = [member for members in _sets(plan, persons).values() for member in sorted(members)]
            kinds = forgotten.PHOTOS
            if request.kind == "forget":  # later runs skip the faces, too
                kinds |= {forgotten.FACE}
                plan.gone_faces = {face.face_id for face in plan.faces(person_ids=everybody)}
                whose = request.account_id, request.directory, everybody
                photos, posts = plan.client.ask(erasures.photos_with_others, *whose)
                plan.said = {"kept_photos": photos, "kept_posts": posts}
                if request.dry_run:
                    plan.said |= {"erased": plan.client.ask(erasures.values_of_people, *whose)}
            plan.delete(everybody, frozenset() if request.no_trace else kinds)
        case "forget_photos":
            faces = plan.forget_photos(request.media_ids)
            plan.settle([face.person_id for face in faces if face.person_id is not None])
            plan.remembered = frozenset() if request.no_trace else forgotten.PHOTOS
            if request.dry_run:
                gone = [person_id for person_id, columns in plan.rows()[1].persons.items() if columns is None]
                plan.said = {"erased": plan.client.ask(erasures.values_of_photos, request.media_ids, gone)}
        case "allow_twice":
            _allow_twice(plan, request.media_ids)
        case "disallow_twice":
            _disallow_twice(plan, request.media_ids)
        case "undo":
            undo(plan, request)
        case _:
            raise CorrectionImpossible(detail=f"There is no correction {request.kind}.")
    for person in changing if change != NO_CHANGE else []:
        plan.update(person, **difference(person, changed(person, change)))


def _sets(plan: Plan, persons: Sequence[PersonRecord]) -> dict[str, set[str]]:
    """The merged sets of these persons: root -> ids."""
    sets = [plan.directory.merged_ids(person.person_id) for person in persons]
    return {members[0]: set(members) for members in sets}


def _merge(plan: Plan, persons: Sequence[PersonRecord], request: CorrectionRequest) -> PersonRecord:
    """Merges the persons; returns the root. That one of their faces is not another's of them, it replaces."""
    if request.origin == USER and len(_sets(plan, persons)) < 2:  # `PUT /merge` may repeat a merge
        raise CorrectionImpossible(detail="They are one person already.")
    parents = merging.merged_parents(plan.directory, request.person_ids)
    if request.anyway:  # else `_require_allowed` refuses them
        plan.withdraw(broken_constraints(plan.client, plan.directory, parents))
    plan.withdraw(_denied_faces(plan, parents))
    for person_id, parent_id in parents.items():
        plan.update(plan.directory.record(person_id), parent_id=parent_id)
    root_id = next(iter(parents.values()), None) or plan.directory.root_id(persons[0].person_id)
    return plan.directory.record(root_id)


def _denied_faces(plan: Plan, parents: Mapping[str, str | None]) -> list[Fact]:
    """The constraints that a face of the people who become one is not another's of them."""
    ends = (one for pair in parents.items() for one in pair if one is not None)
    members = {member for one in ends for member in plan.directory.merged_ids(one)}
    facts = [fact for fact in plan.client.facts_about([], sorted(members)) if fact.kind == IS_NOT]
    faces = plan.faces([fact.face_id for fact in facts if fact.face_id is not None]) if facts else []
    theirs = {face.face_id for face in faces if face.person_id in members}
    return [fact for fact in facts if fact.face_id in theirs]


def _unmerge(plan: Plan, request: CorrectionRequest) -> None:
    """Unmerges; if a user asks, with not-same constraints."""
    two: dict[Fact, None] = {}
    for record in merging.unmerged(plan.directory, request.person_ids):
        root = plan.directory.root_id(record.person_id)
        two.update(dict.fromkeys(two_people(record.person_id, one) for one in (root, str(record.parent_id))))
        plan.update(record, parent_id=None)
    if request.origin == USER:
        plan.state(list(two))


def _not_same(plan: Plan, persons: Sequence[PersonRecord]) -> None:
    sets = _sets(plan, persons)
    if len(sets) != 2:
        chain = _chains(plan).why_one(persons[0].person_id, persons[-1].person_id)
        detail = f"They are one person: unmerge them, or split off the faces of one.{chain}"
        raise CorrectionImpossible(detail=detail)
    plan.state([two_people(*sets)])


def _move(plan: Plan, faces: Sequence[StoredFace], to: Sequence[PersonRecord], name: str | None) -> None:
    """To a person, or somebody new of this name, or nobody."""
    target = to[0].person_id if to else None
    root = None if target is None else plan.directory.root_id(target)
    if target is None and name:
        new = PersonRecord.new(str(uuid.uuid4()), plan.now, name=name)
        plan.insert(new)
        target = new.person_id
    facts = []
    for face in faces:
        plan.move(face, target)
        facts.append(Fact(NOBODY, face.face_id) if target is None else Fact(IS, face.face_id, target))
        if face.person_id is not None and plan.directory.root_id(face.person_id) != root:
            facts.append(Fact(IS_NOT, face.face_id, face.person_id))
    plan.state(facts)
    if target is not None:
        plan.settle([target], None if to else set())  # nobody is recognised as somebody new of poor faces only
    plan.settle([face.person_id for face in faces if face.person_id is not None])
    if plan.leaves_nobody:
        raise CorrectionImpossible(detail="The directory would have nobody: forget its persons instead.")


def _split(plan: Plan, persons: Sequence[PersonRecord], faces: Sequence[StoredFace]) -> None:
    ((root, members),) = _sets(plan, persons).items()
    for face in faces:
        if face.person_id not in members:
            raise CorrectionImpossible(detail=f"The face {face.face_id} is not one of this person.")
    if not faces or len(plan.faces(person_ids=sorted(members))) == len(faces):
        raise CorrectionImpossible(detail="A split takes some of a person's faces, and leaves some.")
    new = PersonRecord.new(str(uuid.uuid4()), plan.now)
    plan.insert(new)
    for face in faces:
        plan.move(face, new.person_id)
    plan.state([*(Fact(IS, face.face_id, new.person_id) for face in faces), two_people(root, new.person_id)])
    plan.settle([new.person_id, *(str(face.person_id) for face in faces)])


def _allow_twice(plan: Plan, media_ids: Sequence[int]) -> None:
    """Somebody may be twice on these photos, and on copies of them."""
    faces = plan.faces_of_copies(media_ids)
    counting = Counter(photos_with_rule([face.media_id for face in faces], [face.box for face in faces]))
    for media_id in media_ids:
        if counting[media_id] < 2:
            raise CorrectionImpossible(detail=f"The photo {media_id} has fewer than two faces: nobody is on it twice.")
    known = {fact.face_id for fact in _twice(plan, faces)}
    new = sorted({face.face_id for face in faces} - known)
    plan.state([Fact(TWICE, face_id) for face_id in new])
    plan.said = {"faces": new}


def _disallow_twice(plan: Plan, media_ids: Sequence[int]) -> None:
    """Takes `_allow_twice` back."""
    known = _twice(plan, plan.faces_of_copies(media_ids))
    plan.withdraw(known)
    plan.said = {"faces": sorted(fact.face_id for fact in known if fact.face_id is not None), "replaced": ()}


def _twice(plan: Plan, faces: Sequence[StoredFace]) -> list[Fact]:
    """The constraints by which somebody may be twice on the photos of these faces."""
    return [f for f in plan.client.facts_about([face.face_id for face in faces], []) if f.kind == TWICE]
