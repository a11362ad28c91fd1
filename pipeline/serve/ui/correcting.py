"""Corrections in the web UI: the verbs of `facepipe people`, the list of changes, and undo."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, Final, cast

from pipeline.errors import (
    BodyInvalid,
    ChangedSince,
    ConfirmationNeeded,
    CorrectionImpossible,
    NameTaken,
    PhotoUnknown,
    PictureUnavailable,
    UndoBlocked,
)
from pipeline.jobs.people import LoggedCorrection, PersonRow
from pipeline.serve.context import Json
from pipeline.serve.request_parsing import MAX_MERGED, checked_person_id
from pipeline.serve.ui.answers import people_json
from pipeline.serve.ui.browsing import number
from pipeline.serve.ui.context import Visit, stamp
from pipeline.store import ADD_FACE, CorrectionAnswer, CorrectionRequest, PersonChange, Seen, media
from pipeline.texts import TEXT_RULE, is_text, isolated
from pipeline.types import utc_now

# Kind -> number of people (at least, at most), and whether it takes faces.
_KINDS: Final = {
    "name": (1, 1, False),
    "merge": (2, MAX_MERGED, False),
    "unmerge": (1, 1, False),
    "split": (1, 1, True),
    "move": (0, 1, True),
    "not_same": (2, 2, False),
    "hide": (1, MAX_MERGED, False),
    "unhide": (1, MAX_MERGED, False),
    "cover": (1, 1, True),
    "forget": (1, MAX_MERGED, False),
    "allow_twice": (0, 0, False),
    "disallow_twice": (0, 0, False),
}
_OF_PHOTOS: Final = frozenset({"allow_twice", "disallow_twice"})
# Apply to the root, which represents a merged set in the web UI.
_OF_ROOTS: Final = frozenset({"name", "hide", "unhide", "cover", "forget"})
# Kinds that take a name. A merge without one keeps all names; a move with one makes somebody new.
_NAMING: Final = ("name", "merge", "move")
# What a correction did, for people.
_TEXTS: Final = {
    "name": "the name of {who}",
    "update": "a program's change of {who}",
    "merge": "merging {who}",
    "unmerge": "taking {who} apart",
    "split": "splitting {faces} off, of {who}",
    "move": "moving {faces}, of {who}",
    "add_face": "adding a face of {who}",
    "not_same": "that {who} are two people",
    "hide": "hiding {who}",
    "unhide": "showing {who} again",
    "cover": "the cover picture of {who}",
    "forget": "forgetting {who}",
    "allow_twice": "that people may be twice on a photo",
    "disallow_twice": "that nobody may be twice on a photo",
    "regroup": "grouping all faces anew",
    "label": "following changed labels",
    "delete": "deleting {gone}",
    "delete_merged": "deleting {gone}",
    "forget_photos": "forgetting photos of {who}",
    "replace_photos": "changed photos of {who}",
    "undo": "the undo of a change of {who}",
    "redo": "a change of {who}, made again",
}
_LOG_COUNT: Final = 50
_CHANGES_TOLD: Final = 5  # of others, if a correction is refused because of them
_FARTHEST: Final = 10  # of a box, in sides of its photo; excludes NaN
_NEWEST: Final = 2**63 - 1  # no correction has this number
_NAMED: Final = 3  # people that a text names


def correct(visit: Visit) -> Json:
    """Raises RequestErrors, among them NameTaken, ConfirmationNeeded and ChangedSince; then nothing was done."""
    try:
        return _made(visit, _wish(visit))
    except ChangedSince as changed:
        raise _in_words(visit, changed) from None


def _in_words(visit: Visit, changed: ChangedSince) -> ChangedSince:
    """With what the others did, and present names."""
    changes = cast("list[dict[str, Any]]", changed.fields["changes"])
    rows = {row.correction_id: row for row in visit.people.log(_LOG_COUNT)}
    told_rows = [(rows[change["correction"]], change["undone"]) for change in changes if change["correction"] in rows]
    said = [f"{_told(visit, row)}{' (taken back)' * undone}" for row, undone in told_rows[-_CHANGES_TOLD:]]
    return ChangedSince(what=", ".join(said) or changed.fields["what"], changes=changes)


def add_face(visit: Visit) -> Json:
    """Adds a face that the detector missed, where the user drew it on a photo. Raises as `correct`, PhotoUnknown and
    PictureUnavailable."""
    body, person, name = visit.body, visit.body.get("person"), visit.body.get("name")
    named = isinstance(name, str) and is_text(name) and name != ""
    if (person is None) != named or not isinstance(person, (str, type(None))) or (name is not None and not named):
        raise BodyInvalid(detail=f"give either person, an id, or name, a text of {TEXT_RULE}")
    sides = body.get("box")
    if not isinstance(sides, list) or len(sides) != 4 or not all(map(_is_number, sides)):
        raise BodyInvalid(detail="box must be x, y, width and height, as fractions of the photo")
    photos = visit.context.store.ask(media.photos, *visit.place, [number(visit)])
    if not photos:
        raise PhotoUnknown(media_ids=visit.request.path_params["number"])
    (photo,) = photos
    if not visit.context.photos.may_read(photo.path):
        raise PictureUnavailable()
    x, y, width, height = sides
    box = x * photo.width, y * photo.height, (x + width) * photo.width, (y + height) * photo.height
    person_ids = [] if person is None else [checked_person_id(person)]
    change, anyway = PersonChange(name=name), body.get("anyway") is True
    wish = CorrectionRequest(*visit.place, ADD_FACE, person_ids, change=change, anyway=anyway)
    return _made(visit, replace(wish, media_ids=[photo.media_id], box=box))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _FARTHEST


def _made(visit: Visit, wish: CorrectionRequest) -> Json:
    if wish.kind in _OF_ROOTS:
        wish = replace(wish, person_ids=_roots(visit, wish.person_ids))
    if wish.kind == "forget" and visit.body.get("confirm") is not True:
        rows = visit.listed.rows
        faces = sum(rows[root].faces for root in wish.person_ids if root in rows)
        raise ConfirmationNeeded(persons=len(wish.person_ids), faces=faces)
    if wish.change.name and not wish.anyway and (taken := _others_named(visit, wish, wish.change.name)):
        visit.store.correct(replace(wish, dry_run=True))  # reports other obstacles first: `anyway` overrules them, too
        raise NameTaken(people=people_json(visit, taken))
    answer = visit.store.correct(wish)
    if wish.kind == "forget":
        visit.context.lists.forget(visit.place)  # an emptied directory counts its corrections from the start
    if answer.correction_id is not None:
        visit.session.note(visit.directory, answer.correction_id, undoable=True)
    return _answer(visit, answer)


def _roots(visit: Visit, person_ids: Sequence[str]) -> list[str]:
    """The distinct roots of these persons. Raises PersonUnknown."""
    return list(dict.fromkeys(visit.service.merged_set(*visit.place, one)[0] for one in person_ids))


def _others_named(visit: Visit, wish: CorrectionRequest, name: str) -> list[PersonRow]:
    """Who else has the name; nobody if one of the merged people has it."""
    own = _roots(visit, wish.person_ids)
    named = visit.listed.named(name)
    others = [row for row in named if row.person_id not in own]
    return [] if wish.kind == "merge" and len(others) < len(named) else others


def log(visit: Visit) -> Json:
    """All corrections, the last first."""
    count = visit.count(_LOG_COUNT)
    rows = visit.people.log(count + 1, visit.query.whole("after", _NEWEST, 1))
    corrections = [
        {
            "correction": row.correction_id,
            "kind": row.kind,
            "text": _told(visit, row),
            "at": stamp(row.made_at),
            "origin": row.origin,
            "own": row.correction_id in visit.session.own,
            "undone": row.undone,
            "canBeUndone": row.can_be_undone,
            "overrode": row.overrode,
            **({} if row.undoes is None else {"undoes": row.undoes}),
        }
        for row in rows[:count]
    ]
    more = {"next": rows[count - 1].correction_id} if len(rows) > count else {}
    return {"corrections": corrections, **more}


def last(visit: Visit) -> Json:
    """What an undo would undo, whether this session made it, and what prevents it: this session's last correction not
    undone, else any user's."""
    made = visit.session.undoable.setdefault(visit.directory, [])
    while True:
        wanted = next(reversed(made), None)
        try:
            found = _answer(visit, visit.people.undo(wanted, dry_run=True))
        except UndoBlocked as blocked:
            number, kind = blocked.fields["correction_id"], str(blocked.fields["kind"])
            found = {"correction": number, "kind": kind, "text": told(kind, [], []), "blocked": str(blocked)}
        except CorrectionImpossible:  # undone already, or there is none
            if wanted is None:
                return {"correction": None}
            with suppress(ValueError):
                made.remove(wanted)
            continue
        return {**found, "own": wanted is not None}


def undo(visit: Visit) -> Json:
    """Raises CorrectionImpossible if there is no such correction or it is undone, UndoBlocked, PictureMissing."""
    number = _whole(visit.body.get("correction"), "correction")
    answer = visit.people.undo(number)
    visit.session.corrections.add(number)
    if answer.undone_by is not None:
        visit.session.note(visit.directory, answer.undone_by, undoable=answer.kind == "undo")
    return _answer(visit, answer)


def _wish(visit: Visit) -> CorrectionRequest:
    """Parses a correction's body. Raises BodyInvalid, PersonUnknown."""
    body = visit.body
    kind = body.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise BodyInvalid(detail=f"kind must be one of {', '.join(_KINDS)}")
    least, most, takes_faces = _KINDS[kind]
    persons, faces, name = body.get("persons", []), body.get("faces", []), body.get("name")
    if not isinstance(persons, list) or not all(isinstance(one, str) for one in persons):
        raise BodyInvalid(detail="persons must be a list of ids")
    if not least <= len(persons) <= most:
        raise BodyInvalid(detail=f"{kind} is about {least} to {most:,} persons")
    if not isinstance(faces, list) or bool(faces) != takes_faces:
        raise BodyInvalid(detail=f"{kind} takes {'a list of' if takes_faces else 'no'} faces")
    photos = body.get("photos", [])
    if not isinstance(photos, list) or bool(photos) != (kind in _OF_PHOTOS):
        raise BodyInvalid(detail=f"{kind} takes {'a list of' if kind in _OF_PHOTOS else 'no'} photos")
    if isinstance(name, str) and is_text(name):
        fits = kind in _NAMING and not (kind == "move" and (persons or not name))
    else:
        fits = name is None and kind != "name"
    if not fits:
        raise BodyInvalid(detail=f"name must be a text of {TEXT_RULE}, of a name, a merge, or a move without persons")
    shown_under = body.get("from")
    if not isinstance(shown_under, (str, type(None))):
        raise BodyInvalid(detail="from must be an id")
    person_ids = [checked_person_id(one) for one in persons]
    face_ids, media_ids = [_whole(face, "faces") for face in faces], [_whole(photo, "photos") for photo in photos]
    as_of, seen = _moment(body.get("asOf")), None
    shown = person_ids if shown_under is None else [*person_ids, checked_person_id(shown_under)]
    if as_of is not None:
        seen = Seen(as_of, shown, sorted(visit.session.corrections))
    change, anyway = PersonChange(name=name), body.get("anyway") is True
    return CorrectionRequest(*visit.place, kind, person_ids, face_ids, change, anyway, media_ids=media_ids, seen=seen)


def _whole(value: object, name: str) -> int:
    """Raises BodyInvalid."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise BodyInvalid(detail=f"{name} must be whole numbers")
    return value


def _moment(text: object) -> datetime | None:
    """Parses a time of `stamp`. Raises BodyInvalid."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(str(text).removesuffix("Z"))
        return moment.astimezone(timezone.utc).replace(tzinfo=None) if moment.tzinfo else moment
    except (ValueError, OverflowError):
        raise BodyInvalid(detail="asOf must be the asOf of an answer") from None


def _answer(visit: Visit, answer: CorrectionAnswer) -> Json:
    names = [_shown(visit, answer.names.get(person_id, "")) for person_id in (*answer.persons, *answer.gone)]
    return {
        "correction": answer.correction_id,
        "kind": answer.kind,
        "text": told(answer.kind, names, answer.faces),
        **({} if answer.made_at is None else {"at": stamp(answer.made_at)}),
        "persons": list(answer.persons),
        "gone": list(answer.gone),
        "faces": list(answer.faces),
        **({} if answer.tag is None else {"tag": answer.tag}),
        "asOf": stamp(utc_now()),
    }


def _told(visit: Visit, row: LoggedCorrection) -> str:
    return told(row.kind, [_shown(visit, name) for name in row.names.values()], range(row.faces), row.gone)


def _shown(visit: Visit, name: str) -> str:
    """As the page shows it."""
    return name.replace("_", " ") if visit.context.settings.ui.label_spaces else name


def told(kind: str, names: Sequence[str], faces: Sequence[int], gone: int = 0) -> str:
    """A correction in a few words; `names`: of the people involved, empty if unnamed. `gone`: how many people were
    deleted, whose names are unknown."""
    if kind == ADD_FACE:  # somebody may have got a record without a name for it
        names = [name for name in names if name] or names[:1]
    known = [f"“{isolated(name)}”" for name in names[:_NAMED] if name]
    others = len(names) - len(known)
    if others or not known:
        known.append(f"{others} others" if known and others > 1 else "another" if known else _people(others))
    who = " and ".join([", ".join(known[:-1]), known[-1]] if len(known) > 1 else known)
    deleted = "1 person" if gone == 1 else f"{gone:,} people"
    text = _TEXTS[kind] if names or kind != "forget" else "forgetting {gone}"
    return text.format(who=who, faces=f"{len(faces):,} face{'s' * (len(faces) != 1)}", gone=deleted)


def _people(count: int) -> str:
    return {0: "people", 1: "somebody without a name"}.get(count, f"{count:,} people without names")
