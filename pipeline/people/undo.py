"""Undoes a correction if all of its rows are as it left them, and nothing later depends on them.

It is decided without the directory's lock, as `regroup` is, because it may change thousands of faces.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.errors import CorrectionImpossible, UndoBlocked
from pipeline.people.correction_plan import Plan, contradicts
from pipeline.people.directory import Directory
from pipeline.people.reference_pictures import Pictures
from pipeline.store import FACE_COLUMNS, NEVER_UNDONE, USER, Correction, CorrectionRequest, LocalStore, Rows


def undone(client: LocalStore, directory: Directory, request: CorrectionRequest, pictures: Pictures) -> Plan:
    """The way back from the correction that is asked for, or from the last one of the origin. Raises
    CorrectionImpossible, UndoBlocked, PictureMissing."""
    plan = Plan(client, directory, pictures)
    last = plan.undoes = _wanted(client, directory, request)
    known = {person_id: directory.get(person_id) for person_id in (*last.after.persons, *last.after.references)}
    for what in (*_changed_since(plan, last.before, last.after), *_lost_vectors(last)):
        raise UndoBlocked(correction_id=last.correction_id, kind=last.kind, detail=what)
    wanted = [face_id for face_id in last.before.references.values() if face_id is not None]
    by_id = {face.face_id: face for face in plan.faces(wanted)}
    for person_id, face_id in last.before.references.items():
        if face_id is not None:
            pictures.pick(person_id, [by_id[face_id]])
    plan.known = {person_id: record for person_id, record in known.items() if record is not None}
    return plan


def _wanted(client: LocalStore, directory: Directory, request: CorrectionRequest) -> Correction:
    """The correction to undo. Raises CorrectionImpossible."""
    number, origin = request.correction_id, request.undo_origin
    wanted = client.correction_to_undo(directory.account_id, directory.name, number, origin)
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


def _changed_since(plan: Plan, before: Rows, after: Rows) -> list[str]:
    """What was changed since the correction, or is missing and needed to undo it; in words."""
    changed = []
    not_needed = {p for rows in (before, after) for p, columns in rows.persons.items() if columns is None}
    for person_id in sorted(before.person_ids - not_needed):
        if plan.directory.get(person_id) is None:
            changed.append(f"the person {person_id} was deleted")
    for person_id, columns in after.persons.items():
        record = plan.directory.get(person_id)
        made = before.persons[person_id] is None
        for name, value in (columns or {}).items():
            own = made and name in ("occurrence", "last_occurrence_at", "modified_at", "seq")
            if record is None or (not own and getattr(record, name) != value):
                changed.append(f"the {name} of the person {person_id} was changed")
    changed += _came_to(plan, [p for p, columns in before.persons.items() if columns is None], after)
    facts = {fact.face_id for fact in (*before.facts, *after.facts)}
    shown = {face_id for face_id in (*after.faces, *before.references.values(), *facts) if face_id is not None}
    there = plan.faces(sorted(shown))
    changed += [f"the face {face_id} is gone" for face_id in sorted(shown - {face.face_id for face in there})]
    for face in there:
        is_now = {name: getattr(face, name) for name in FACE_COLUMNS}
        if is_now != after.faces.get(face.face_id, is_now):
            changed.append(f"the face {face.face_id} was moved")
    owners = {face_id: (before.faces[face_id]["person_id"], now["person_id"]) for face_id, now in after.faces.items()}
    people = {person_id for pair in owners.values() for person_id in pair if person_id is not None}
    references = plan.client.reference_faces(sorted(people | after.references.keys()))
    for person_id, face_id in after.references.items():
        if references.get(person_id) != face_id:
            changed.append(f"the person {person_id} got another reference")
    for face in there:
        old, new = owners.get(face.face_id, (None, None))
        if new not in after.references and references.get(str(new)) == face.face_id:
            changed.append(f"the face {face.face_id} became the reference of the person {new}")
        if old and face.has_embedding and old not in before.references and old not in references:
            changed.append(f"the person {old} lost its reference")
    both = (*before.facts, *after.facts)
    people = {fact.person_id for fact in both if fact.person_id is not None}
    shown_faces = {fact.face_id for fact in both if fact.face_id is not None}
    known = plan.client.facts_about(sorted(shown_faces), sorted(people))
    changed += [f'the constraint "{fact.kind}" of it was replaced' for fact in after.facts if fact not in known]
    others = [fact for fact in known if fact not in after.facts]
    changed += [
        f'the constraint "{old.kind}" (correction {old.correction_id}) was stated'
        for old in others
        if any(old.face_id == fact.face_id and contradicts(old, fact) for fact in before.facts)
    ]
    return changed


def _lost_vectors(last: Correction) -> list[str]:
    """Why a regroup cannot be made again: its undo deleted the vectors of faces that it had admitted; in words."""
    if last.what != "regroup" or last.kind == "regroup":
        return []
    rejected = [face_id for face_id, now in last.after.faces.items() if now["outcome"] == "rejected"]
    admitted = [face_id for face_id in rejected if last.before.faces[face_id]["outcome"] != "rejected"]
    return [f"the vectors of {len(admitted)} faces were deleted: run `regroup --decode` again"] if admitted else []


def _came_to(plan: Plan, person_ids: Sequence[str], after: Rows) -> list[str]:
    """What was added since to persons whom the correction made; in words."""
    if not person_ids:
        return []
    came: dict[str, list[int]] = {}
    for face in plan.faces(person_ids=person_ids):
        if face.face_id not in after.faces:
            came.setdefault(str(face.person_id), []).append(face.face_id)
    changed = [f"the faces {', '.join(map(str, faces))} came to the person {who}" for who, faces in came.items()]
    changed += [f"others were merged with the person {who}" for who in person_ids if plan.directory.children(who)]
    stated = {
        who
        for f in plan.client.facts_about([], person_ids)
        if f not in after.facts
        for who in (f.person_id, f.other_id)
    }
    return changed + [f"more was stated of the person {who}" for who in person_ids if who in stated]
