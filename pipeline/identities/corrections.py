"""Corrections: whose a face is, who is one person, what a person is called; and taking the last one back.

Each is decided and committed in one step under its directory's lock, as a post is, and recognition follows at once. It
writes the facts that it states, so that later runs hold to them, and what it changed, so that it can be undone. The
pictures that new references need are cut from the photos before, without the lock.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pipeline.errors import CorrectionImpossible, StatedTwoPeople, UndoBlocked
from pipeline.extraction.images.decode import Decoder
from pipeline.identities import merging
from pipeline.identities.correction_plan import (
    FACE_COLUMNS,
    IS,
    IS_NOT,
    NOBODY,
    NOT_SAME,
    Plan,
    has_name,
    two_people,
)
from pipeline.identities.decide import commit_decided
from pipeline.identities.directory import Directories, Directory, ReferenceFace
from pipeline.identities.reference_pictures import PictureReader, Pictures
from pipeline.identities.regroup import Regrouped, regrouped
from pipeline.store.catalog.opening import utc_now
from pipeline.store.local import LocalStore
from pipeline.store.records import (
    Correction,
    CorrectionAnswer,
    CorrectionCommit,
    CorrectionRequest,
    DirectoryCommit,
    Fact,
    PersonRecord,
    Rows,
    StoredFace,
)

# Times a directory is decided anew without its lock before that is done under it.
_FREE_TRIES: Final = 5


class Corrections:
    """Makes corrections in the directories of a store."""

    def __init__(self, client: LocalStore, directories: Directories, decoder: Decoder, max_bytes: int) -> None:
        """`max_bytes`: of a photo's file."""
        self._client = client
        self._directories = directories
        self._pictures = PictureReader(client, decoder, max_bytes)

    def make(self, request: CorrectionRequest) -> CorrectionAnswer:
        """Does what is asked, durably, or raises a RequestError and does nothing; StoreError."""
        with self._directories.using(request.account_id, request.directory) as opened:
            if request.kind == "forget":
                return self._forget(opened, request)
            pictures = Pictures()
            if request.kind == "regroup":
                return self._regroup(opened, request, pictures)
            while True:
                with self._directories.writing(opened):
                    plan = Plan(self._client, opened, utc_now())
                    undone = _undo(plan, pictures) if request.kind == "undo" else None
                    if undone is None:
                        _decide(plan, request, pictures)
                    if not pictures.wanted:
                        return self._commit(plan, request, pictures, undone)
                for face in pictures.take_wanted():
                    pictures.add(face.face_id, self._pictures.read(opened, face))

    def _commit(
        self, plan: Plan, request: CorrectionRequest, pictures: Pictures, undone: Correction | None
    ) -> CorrectionAnswer:
        """The transaction, and then the same in memory. Under the directory's lock."""
        kind = request.kind if undone is None else undone.kind
        before, after = (undone.after, undone.before) if undone is not None else plan.rows()
        if before == after:
            return CorrectionAnswer(None, kind)
        parents = {p: new["parent_id"] for p, new in after.persons.items() if new and "parent_id" in new}
        if (person_id := merging.below_itself(plan.directory, parents)) is not None:
            if undone is None:
                raise CorrectionImpossible(detail=f"The person {person_id} would be merged with one below it.")
            detail = f"the person {parents[person_id]} was merged with the person {person_id}"
            raise UndoBlocked(correction_id=undone.correction_id, kind=kind, detail=detail)
        chosen = {person_id: face_id for person_id, face_id in after.references.items() if face_id is not None}
        commit = CorrectionCommit(
            account_id=request.account_id,
            directory=request.directory,
            kind=kind,
            origin=request.origin,
            before=before,
            after=after,
            pictures={person_id: (str(uuid.uuid4()), pictures[face_id]) for person_id, face_id in chosen.items()},
            undoes=None if undone is None else undone.correction_id,
        )
        vectors = self._client.face_vectors(sorted(chosen.values()))
        done = self._client.commit_correction(commit)
        plan.directory.corrections += 1
        records: dict[str, PersonRecord] = {}
        for person_id in (*after.persons, *after.references):
            columns, known = after.persons.get(person_id, {}), plan.directory.get(person_id)
            if columns is None:
                continue
            if known is None:
                seq = done.seqs.get(person_id, columns.get("seq"))
                record = PersonRecord(**{**columns, "seq": seq, "image_guid": None})
            else:
                record = replace(known, **columns, modified_at=done.at if columns else known.modified_at)
            if person_id in after.references:
                guid, _ = commit.pictures.get(person_id, (None, b""))
                record = replace(record, image_guid=guid)
            records[person_id] = record
        gone = [person_id for person_id, columns in after.persons.items() if columns is None]
        plan.directory.apply(
            records.values(),
            gone,
            [
                ReferenceFace(
                    person_id, vectors[face_id].embedding, vectors[face_id].image_hashes, vectors[face_id].box
                )
                for person_id, face_id in chosen.items()
            ],
        )
        owners = [str(columns["person_id"]) for columns in after.faces.values() if columns["person_id"]]
        return CorrectionAnswer(
            correction_id=done.correction_id,
            kind=kind,
            persons=list(dict.fromkeys([*owners, *records])),
            gone=gone,
            faces=sorted(after.faces),
            replaced=[f for f in before.facts if not {f.person_id, f.other_id} & set(gone)] if undone is None else [],
        )

    def _regroup(self, directory: Directory, request: CorrectionRequest, pictures: Pictures) -> CorrectionAnswer:
        """Decides the faces anew, without the lock, and commits what that changes, unless it is only asked."""

        def decide() -> Regrouped:
            return regrouped(self._client, directory, request, pictures, self._pictures)

        def commit(decided: Regrouped, _: None) -> CorrectionAnswer:
            answer = self._commit(decided.plan, request, pictures, None)
            return replace(answer, regrouping=decided.report)

        if request.dry_run:
            return CorrectionAnswer(None, request.kind, regrouping=decide().report)
        return commit_decided(decide, lambda _: self._directories.writing(directory), commit, free_tries=_FREE_TRIES)

    def _forget(self, directory: Directory, request: CorrectionRequest) -> CorrectionAnswer:
        """Deletes persons with all that is merged with them. Raises PersonUnknown."""
        with self._directories.writing(directory):
            plan = Plan(self._client, directory, utc_now())
            roots = [plan.record(person_id).person_id for person_id in request.person_ids]
            gone = list(dict.fromkeys(r.person_id for root in roots for r in directory.merged_set(root)))
            faces = [face.face_id for face in plan.faces(person_ids=gone)]
            commit = DirectoryCommit(request.account_id, request.directory, deleted=gone, forget=True)
            directory.apply(self._client.commit_directory(commit), gone)
        return CorrectionAnswer(None, request.kind, gone=gone, faces=faces)


def _decide(plan: Plan, request: CorrectionRequest, pictures: Pictures) -> None:
    """Collects what a correction of this kind changes. Raises RequestErrors."""
    persons = [plan.record(person_id) for person_id in dict.fromkeys(request.person_ids)]
    match request.kind:
        case "name":
            _name(plan, persons, request.name or None)
        case "hide" | "unhide":
            for person in persons:
                plan.change(person, ignored=request.kind == "hide")
        case "merge":
            _merge(plan, persons, anyway=request.anyway)
        case "unmerge":
            for record in merging.unmerged(plan.directory, request.person_ids, plan.now):
                plan.change(plan.record(record.person_id), parent_id=None)
        case "not_same":
            _not_same(plan, persons)
        case "move":
            _move(plan, plan.movable(request.face_ids), persons, pictures)
        case "split":
            _split(plan, persons, plan.movable(request.face_ids), pictures)
        case _:
            raise CorrectionImpossible(detail=f"There is no correction {request.kind}.")


def _name(plan: Plan, persons: Sequence[PersonRecord], name: str | None) -> None:
    for person in persons:
        if person.image_guid is None and not has_name(replace(person, name=name)):
            raise CorrectionImpossible(detail="The person has no face and would have no name: forget it instead.")
        plan.change(person, name=name)


def _sets(plan: Plan, persons: Sequence[PersonRecord]) -> dict[str, set[str]]:
    """The root of each person -> the ids of all that are merged with it."""
    sets = [plan.directory.merged_set(person.person_id) for person in persons]
    return {members[0].person_id: {member.person_id for member in members} for members in sets}


def _merge(plan: Plan, persons: Sequence[PersonRecord], *, anyway: bool) -> None:
    sets = _sets(plan, persons)
    if len(sets) < 2:
        raise CorrectionImpossible(detail="They are one person already.")
    root_of = {member: root for root, members in sets.items() for member in members}
    for fact in plan.facts(list(root_of)):
        pair = {root_of.get(str(fact.person_id)), root_of.get(str(fact.other_id))}
        if fact.kind == NOT_SAME and None not in pair and len(pair) > 1:
            if not anyway:
                raise StatedTwoPeople(**{name: value for name, value in vars(fact).items() if value is not None})
            plan.withdraw([fact])
    for record in merging.merged(plan.directory, [person.person_id for person in persons], plan.now):
        plan.change(plan.record(record.person_id), parent_id=record.parent_id)


def _not_same(plan: Plan, persons: Sequence[PersonRecord]) -> None:
    sets = _sets(plan, persons)
    if len(sets) != 2:
        raise CorrectionImpossible(detail="They are one person: unmerge them, or split off the faces of one.")
    plan.state([two_people(*sets)])


def _move(plan: Plan, faces: Sequence[StoredFace], to: Sequence[PersonRecord], pictures: Pictures) -> None:
    target = to[0].person_id if to else None
    facts = []
    for face in faces:
        plan.move(face, target)
        facts.append(Fact(NOBODY, face.face_id) if target is None else Fact(IS, face.face_id, target))
        if face.person_id not in (None, target):
            facts.append(Fact(IS_NOT, face.face_id, face.person_id))
    plan.state(facts)
    plan.settle([p for p in (target, *(face.person_id for face in faces)) if p is not None], pictures.pick)
    if plan.leaves_nobody:
        raise CorrectionImpossible(detail="The directory would have nobody: forget its persons instead.")


def _split(plan: Plan, persons: Sequence[PersonRecord], faces: Sequence[StoredFace], pictures: Pictures) -> None:
    ((root, members),) = _sets(plan, persons).items()
    for face in faces:
        if face.person_id not in members:
            raise CorrectionImpossible(detail=f"The face {face.face_id} is not one of this person.")
    if not faces or len(plan.faces(person_ids=sorted(members))) == len(faces):
        raise CorrectionImpossible(detail="A split takes some of a person's faces, and leaves some.")
    new = PersonRecord.new(str(uuid.uuid4()), None, None, "", plan.now)
    plan.insert(new)
    for face in faces:
        plan.move(face, new.person_id)
    plan.state([*(Fact(IS, face.face_id, new.person_id) for face in faces), two_people(root, new.person_id)])
    plan.settle([new.person_id, *(str(face.person_id) for face in faces)], pictures.pick)


def _undo(plan: Plan, pictures: Pictures) -> Correction:
    """The last correction, if all is as it left it. Raises CorrectionImpossible, UndoBlocked, PictureMissing."""
    last = plan.last_correction()
    if last is None:
        raise CorrectionImpossible(detail="There is no correction to undo.")
    for what in _changed_since(plan, last.before, last.after):
        raise UndoBlocked(correction_id=last.correction_id, kind=last.kind, detail=what)
    wanted = [face_id for face_id in last.before.references.values() if face_id is not None]
    by_id = {face.face_id: face for face in plan.faces(wanted)}
    for person_id, face_id in last.before.references.items():
        if face_id is not None:
            pictures.pick(person_id, [by_id[face_id]])
    return last


def _changed_since(plan: Plan, before: Rows, after: Rows) -> list[str]:
    """What is not as a correction left it."""
    changed = []
    for person_id, columns in after.persons.items():
        record = plan.directory.get(person_id)
        made = before.persons[person_id] is None
        for name, value in (columns or {}).items():
            own = made and name in ("occurrence", "last_occurrence_at", "modified_at", "seq")
            if record is None or (not own and getattr(record, name) != value):
                changed.append(f"the {name} of the person {person_id} was changed")
        if made and record is not None:
            changed += _came_to(plan, person_id, after)
    for face in plan.faces(list(after.faces)):
        if {name: getattr(face, name) for name in FACE_COLUMNS} != after.faces[face.face_id]:
            changed.append(f"the face {face.face_id} was moved")
    references = plan.reference_faces(list(after.references))
    for person_id, face_id in after.references.items():
        if references.get(person_id) != face_id:
            changed.append(f"the person {person_id} got another reference")
    faces = [fact.face_id for fact in after.facts if fact.face_id is not None]
    known = plan.facts([fact.person_id for fact in after.facts if fact.person_id is not None], faces)
    changed += [f'the fact "{fact.kind}" of it was replaced' for fact in after.facts if fact not in known]
    return changed


def _came_to(plan: Plan, person_id: str, after: Rows) -> list[str]:
    """What a person who was made by a correction got since."""
    came = [face.face_id for face in plan.faces(person_ids=[person_id]) if face.face_id not in after.faces]
    changed = [f"the faces {', '.join(map(str, came))} came to the person {person_id}"] if came else []
    if plan.directory.children(person_id):
        changed.append(f"others were merged with the person {person_id}")
    if any(fact not in after.facts for fact in plan.facts([person_id])):
        changed.append(f"more was stated of the person {person_id}")
    return changed
