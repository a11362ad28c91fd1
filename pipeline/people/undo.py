"""Undoes a correction if its rows are unchanged since and nothing later depends on them.

Decided without the directory's lock, because it may change thousands of faces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pipeline.errors import CorrectionImpossible, UndoBlocked
from pipeline.people.correction_plan import Plan, contradicts
from pipeline.store import NEVER_UNDONE, USER, Correction, CorrectionRequest, Rows, StoredFace


def undo(plan: Plan, request: CorrectionRequest) -> None:
    """Plans the undo of the requested correction, or of the origin's last one. Raises CorrectionImpossible,
    UndoBlocked, PictureMissing."""
    last = _wanted(plan, request)
    known = plan.directory.of({*last.after.persons, *last.after.references, *_owners(last)})
    last = plan.undoes = _by_this_model(plan, last, request) if last.by_other_model else last
    for what in (*_lost_faces(last), *_changed_since(plan, last), *_lost_vectors(last)):
        raise UndoBlocked(correction_id=last.correction_id, kind=last.kind, detail=what)
    wanted = [face_id for face_id in last.before.references.values() if face_id is not None]
    by_id = {face.face_id: face for face in plan.faces(wanted)}
    for person_id, face_id in last.before.references.items():
        if face_id is not None:
            plan.pictures.pick(person_id, [by_id[face_id]])
    plan.known = known


def _wanted(plan: Plan, request: CorrectionRequest) -> Correction:
    """The correction to undo. Raises CorrectionImpossible."""
    number, origin = request.correction_id, request.undo_origin
    wanted = plan.client.correction_to_undo(request.account_id, request.directory, number, origin)
    if wanted is None and number is None:
        by = "" if origin == USER else f" of the origin {origin}"
        raise CorrectionImpossible(detail=f"There is no correction to undo{by}.")
    if wanted is None:
        raise CorrectionImpossible(detail=f"There is no correction {number}. (What is deleted can't be undone.)")
    if wanted.undone_at is not None:
        raise CorrectionImpossible(detail=f"The correction {number} was undone at {wanted.undone_at:%F %T} UTC.")
    if wanted.kind in NEVER_UNDONE:
        raise CorrectionImpossible(detail=f"The correction {number} deleted something: that can't be undone.")
    if wanted.merges_only:
        raise CorrectionImpossible(detail=f"Somebody whom the correction {number} changed was deleted since.")
    return wanted


def _owners(last: Correction) -> set[str]:
    """The persons that it moved faces from and to."""
    moved = (*last.before.owners.values(), *last.after.owners.values())
    return {person_id for person_id in moved if person_id is not None}


def _by_this_model(plan: Plan, last: Correction, request: CorrectionRequest) -> Correction:
    """The correction as if made with the current model and references. The undo restores each person's former
    reference. If that has no vector by this model, or a posted face replaced it, the current one stays; if that is no
    longer the person's, the best face follows."""
    owners = dict.fromkeys(last.before.faces) | last.before.owners  # after the undo
    persons = sorted(last.after.references.keys() | _owners(last))
    references = plan.client.reference_faces(persons)
    own: dict[str | None, dict[int, StoredFace]] = {person_id: {} for person_id in persons}
    for face in plan.faces(list(owners), persons):
        owner = owners.get(face.face_id, face.person_id)
        if face.has_embedding and owner in own:
            own[owner][face.face_id] = face
    before, after = dict[str, int | None](), dict[str, int | None]()

    def able(face: StoredFace) -> bool:
        """Whether the face is or can become a reference, which needs a picture."""
        is_one = references.get(str(face.person_id)) == face.face_id
        return is_one or request.dry_run or plan.pictures.find([face])

    for person_id in persons:
        now, theirs = references.get(person_id), own[person_id]
        if last.before.persons.get(person_id, {}) is None:  # the correction made this person
            new = None
        elif now in theirs and theirs[now].path is None:
            new = now
        else:
            wanted = last.before.references.get(person_id), now
            new = next((face_id for face_id in wanted if face_id in theirs and able(theirs[face_id])), None)
            if new is None and theirs:
                new = plan.pictures.pick(person_id, [*theirs.values()])
        if new != now:
            before[person_id], after[person_id] = new, now
    return replace(last, before=replace(last.before, references=before), after=replace(last.after, references=after))


def _changed_since(plan: Plan, last: Correction) -> Iterator[str]:
    """Texts about what has changed since the correction, or is missing for the undo."""
    before, after = last.before, last.after
    not_needed = {p for rows in (before, after) for p, columns in rows.persons.items() if columns is None}
    stored = plan.directory.of(before.person_ids | after.person_ids)
    for person_id in sorted(before.person_ids - not_needed):
        if person_id not in stored:
            yield f"the person {person_id} was deleted"
    for person_id, columns in after.persons.items():
        record = stored.get(person_id)
        made = before.persons[person_id] is None
        for name, value in (columns or {}).items():
            own = made and name in ("occurrence", "last_occurrence_at", "modified_at", "seq")
            if record is None or (not own and getattr(record, name) != value):
                yield f"the {name} of the person {person_id} was changed"
    made_persons = [p for p, columns in before.persons.items() if columns is None]
    if made_persons:
        yield from _came_to(plan, made_persons, after)
    if after.remembered is not None and after.remembered != plan.directory.remembered:
        yield "the directory's threshold or method was set again"
    facts = [*before.facts, *after.facts]
    of_facts = {fact.face_id for fact in facts if fact.face_id is not None}
    shown = {f for f in (*after.faces, *before.references.values()) if f is not None} | of_facts
    there = plan.faces(sorted(shown))
    for face_id in sorted(shown - {face.face_id for face in there}):
        yield f"the face {face_id} is gone"
    for face in there:
        columns = after.faces.get(face.face_id) or {}
        if any(getattr(face, name) != value for name, value in columns.items()):
            yield f"the face {face.face_id} was moved"
    owners = {face_id: (before.owners.get(face_id), person_id) for face_id, person_id in after.owners.items()}
    people = {person_id for pair in owners.values() for person_id in pair if person_id is not None}
    references = plan.client.reference_faces(sorted(people | after.references.keys()))
    for person_id, reference in after.references.items():
        if references.get(person_id) != reference and not last.by_other_model:
            yield f"the person {person_id} got another reference"
    unmoved = {face_id: person_id for person_id, face_id in before.references.items() if face_id not in owners}
    for face in there:
        if unmoved.get(face.face_id, face.person_id) != face.person_id:
            yield f"the face {face.face_id} was moved"
        old, new = owners.get(face.face_id, (None, None))
        if new not in after.references and references.get(str(new)) == face.face_id:
            yield f"the face {face.face_id} became the reference of the person {new}"
        if old and face.has_embedding and old not in before.references and old not in references:
            yield f"the person {old} lost its reference"
    stated = {fact.person_id for fact in facts if fact.person_id is not None}
    known = plan.client.facts_about(sorted(of_facts), sorted(stated))
    for fact in after.facts:
        if fact not in known:
            yield f'the constraint "{fact.kind}" of it was replaced'
    for other in known:
        if other not in after.facts and any(
            other.face_id == fact.face_id and contradicts(other, fact) for fact in before.facts
        ):
            yield f'the constraint "{other.kind}" (correction {other.correction_id}) was stated'


def _lost_faces(last: Correction) -> list[str]:
    """Text if a drawn or posted face cannot be added again: its undo deleted it, with its vector."""
    return ["the face was deleted: add it again"] if None in last.after.faces.values() else []


def _lost_vectors(last: Correction) -> list[str]:
    """Text if a regroup cannot be redone: its undo deleted the vectors of faces that it had admitted."""
    if last.what != "regroup" or last.kind == "regroup":
        return []
    before, after = last.before.faces, last.after.faces
    rejected = [face_id for face_id, now in after.items() if now and now["outcome"] == "rejected"]
    admitted = [face_id for face_id in rejected if (was := before[face_id]) and was["outcome"] != "rejected"]
    return [f"the vectors of {len(admitted)} faces were deleted: run `regroup --decode` again"] if admitted else []


def _came_to(plan: Plan, person_ids: Sequence[str], after: Rows) -> Iterator[str]:
    """Texts about what was added to persons that the correction made."""
    came: dict[str, list[int]] = {}
    for face in plan.faces(person_ids=person_ids):
        if face.face_id not in after.faces:
            came.setdefault(str(face.person_id), []).append(face.face_id)
    for who, faces in came.items():
        yield f"the faces {', '.join(map(str, faces))} came to the person {who}"
    known = plan.client.facts_about([], person_ids)
    stated = {who for fact in known if fact not in after.facts for who in (fact.person_id, fact.other_id)}
    for who in person_ids:
        if plan.directory.children(who):
            yield f"others were merged with the person {who}"
    for who in person_ids:
        if who in stated:
            yield f"more was stated of the person {who}"
