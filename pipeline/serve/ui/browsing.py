"""Browsing: the grid of people, faces with and without a person, who is twice on a photo, and pictures."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from starlette.responses import Response

from pipeline.errors import PersonUnknown, PictureUnavailable
from pipeline.extraction.stored_picture import MEDIA_TYPE
from pipeline.jobs.people import WHY_TWICE
from pipeline.people.drawn_faces import MIN_SIDE_PX
from pipeline.serve.context import Json
from pipeline.serve.cursors import Key, cursor, place_after
from pipeline.serve.request_parsing import checked_person_id, person_id
from pipeline.serve.responses import tagged_response
from pipeline.serve.ui.answers import face_json, people_json
from pipeline.serve.ui.context import Visit, stamp
from pipeline.serve.ui.people_list import SHOWS, SORTS
from pipeline.store import StoredFace
from pipeline.store import people as store_people
from pipeline.types import utc_now

_PEOPLE_COUNT: Final = 100
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_FACE_COUNT: Final = 60
_FACE_SORTS: Final = (store_people.ADDED, store_people.SCORE, store_people.TAKEN)
_WITH: Final = 12  # people listed of those on the same photos
_UNASSIGNED: Final = {"open": False, "nobody": True}  # whether a user said that they are nobody's
_TWICE_COUNT: Final = 20
_TWICE_ORDER: Final = ("twice",)
_CACHING: Final = "private, max-age=3600"  # forgotten ones must not be shown for long


def people(visit: Visit) -> Json:
    sort, show = visit.choice("sort", SORTS), visit.choice("show", SHOWS)
    count, text, after = visit.count(_PEOPLE_COUNT), visit.query.text("q") or "", visit.query.text("after")
    listed = visit.listed
    page = listed.page(sort, show, text, after, count)
    return {
        "people": people_json(visit, page.rows),
        **({} if page.next is None else {"next": page.next}),
        "total": page.total,
        "asOf": stamp(listed.as_of),
    }


def person(visit: Visit) -> Json:
    """Raises PersonUnknown."""
    root, *_ = visit.service.merged_set(*visit.place, person_id(visit.request))
    listed = visit.listed
    row = listed.rows.get(root)
    if row is None:  # it was deleted, or added less than two seconds ago
        raise PersonUnknown()
    return {"person": people_json(visit, [row])[0], "asOf": stamp(listed.as_of)}


def faces(visit: Visit) -> Json:
    """Raises PersonUnknown."""
    wanted, sort, count = person_id(visit.request), visit.choice("sort", _FACE_SORTS), visit.count(_FACE_COUNT)
    place = place_after(visit.query.text("after"), [sort], (0.0, 0))
    after = None if place is None else (float(place[0]), int(place[1]))
    as_of = stamp(utc_now())
    members = visit.service.merged_set(*visit.place, wanted)
    year, other = visit.query.whole("year", 0, 0, 9999) or None, visit.query.text("with")
    others = visit.service.merged_set(*visit.place, checked_person_id(other)) if other else None
    rows = visit.context.store.faces_page(
        members, after, count + 1, by=sort, year=year, on_photos_with=others
    ).to_pylist()
    last = rows[count - 1] if len(rows) > count else None
    return {
        "faces": [face_json(visit, row) for row in rows[:count]],
        **({} if last is None else {"next": cursor([sort], (last["place"], last["face_id"]))}),
        "asOf": as_of,
    }


def around(visit: Visit) -> Json:
    """Whom a person is on most photos with, and how many of the faces are of which year. Raises PersonUnknown."""
    root, *members = visit.service.merged_set(*visit.place, person_id(visit.request))
    photos = dict(visit.context.store.ask(store_people.seen_with, [root, *members], _WITH))
    listed = visit.listed.rows
    people = people_json(visit, [listed[one] for one in photos if one in listed])
    years = visit.context.store.ask(store_people.years_of, [root, *members])
    return {
        "with": [{"person": each, "photos": photos[each["id"]]} for each in people],
        "years": [{"year": year, "faces": faces} for year, faces in years.items() if year is not None],
        "undated": years.get(None, 0),
    }


def unassigned(visit: Visit) -> Json:
    """Faces without a person. Raises FaceUnknown if the last face of the page before was deleted."""
    show, count = visit.choice("show", tuple(_UNASSIGNED)), visit.count(_FACE_COUNT)
    after, as_of = visit.query.whole("after", 0, 0), stamp(utc_now())
    rows = visit.context.store.unassigned_faces(*visit.place, after, count + 1, nobodys=_UNASSIGNED[show]).to_pylist()
    more = {"next": rows[count - 1]["face_id"]} if len(rows) > count else {}
    return {
        "faces": [{**face_json(visit, row), "size": row["size"], "why": _why(row)} for row in rows[:count]],
        **more,
        "total": rows[0]["total"] if rows else 0,
        "asOf": as_of,
    }


def _why(face: Mapping[str, Any]) -> list[str]:
    """Why a face has no person: the measures by which it was rejected, or another word of `unassigned_faces`."""
    return (face["rejection_reasons"] or "rejected").split(",") if face["why"] == "rejected" else [face["why"]]


def twice(visit: Visit) -> Json:
    """People who are twice on a photo: `entries` as `twice_on_photos` has them, of people that the list has."""
    count, as_of = visit.count(_TWICE_COUNT), stamp(utc_now())
    place = place_after(visit.query.text("after"), _TWICE_ORDER, (False, 0, ""))
    table = visit.context.store.twice_on_photos(*visit.place)
    entries = [[*rows] for _, rows in groupby(table.to_pylist(), itemgetter("entry"))]
    rest = entries[0 if place is None else bisect.bisect_right(entries, place, key=_place_of) :]
    listed = visit.listed.rows
    page = [rows for rows in rest[:count] if rows[0]["person_id"] in listed]  # else it came less than two seconds ago
    people = people_json(visit, [listed[rows[0]["person_id"]] for rows in page])
    found = visit.context.store.faces_by_id([row["face_id"] for rows in page for row in rows]).to_pylist()
    faces_of = {row["face_id"]: face_json(visit, row) for row in found}
    shown = []
    for person, rows in zip(people, page, strict=True):
        faces = [faces_of[row["face_id"]] for row in rows if row["face_id"] in faces_of]
        if len(faces) > 1:  # else one was deleted meanwhile
            why = WHY_TWICE.get(rows[0]["said"])
            shown.append({"person": person, "faces": faces, **({} if why is None else {"said": why})})
    return {
        "entries": shown,
        **({"next": cursor(_TWICE_ORDER, _place_of(rest[count - 1]))} if len(rest) > count else {}),
        "total": len(entries),
        "asOf": as_of,
    }


def _place_of(entry: Sequence[Mapping[str, Any]]) -> Key:
    """The position of an entry of `twice_on_photos` among them."""
    return entry[0]["said"] is not None, entry[0]["media_id"], entry[0]["person_id"]


def picture(visit: Visit) -> Response:
    """The stored picture of a person's reference. Raises ObjectUnknown, ObjectReplaced."""
    guid = visit.request.path_params["guid"]
    image = visit.service.stored_object(*visit.place, guid, at_rest=False)
    return tagged_response(visit.request, image.data, image.media_type, _CACHING, image.guid)


def face_picture(visit: Visit) -> Response:
    """A face cut from its photo. Raises PictureUnavailable."""
    found = visit.context.store.stored_faces(*visit.place, [number(visit)], (), ())
    return tagged_response(visit.request, visit.context.photos.face(_first(found)), MEDIA_TYPE, _CACHING)


def photo_picture(visit: Visit) -> Response:
    """A whole photo. Raises PictureUnavailable."""
    found = visit.context.store.stored_faces(*visit.place, (), (), [number(visit)])
    return tagged_response(visit.request, visit.context.photos.whole(_first(found)), MEDIA_TYPE, _CACHING)


def photo_faces(visit: Visit) -> Json:
    """All faces of a photo that may be shown, and the least side of a drawn box. Raises PictureUnavailable."""
    found = visit.context.store.stored_faces(*visit.place, (), (), [number(visit)])
    if not visit.context.photos.may_show(_first(found).path):
        raise PictureUnavailable()
    rows = visit.context.store.ask(store_people.faces_by_id, [face.face_id for face in found]).to_pylist()
    people = visit.service.people(*visit.place, sorted({row["person_id"] for row in rows if row["person_id"]}))
    names = {view.record.person_id: view.root.name for view in people}
    faces = [face_json(visit, row) | _name(names.get(row["person_id"])) for row in rows]
    return {"faces": faces, "minSidePx": MIN_SIDE_PX}


def _name(name: str | None) -> Json:
    return {} if name is None else {"name": name}


def _first(faces: Iterable[StoredFace]) -> StoredFace:
    for face in faces:
        return face
    raise PictureUnavailable()


def number(visit: Visit) -> int:
    """The number of a face or a photo; -1, which none has, for anything else."""
    text = visit.request.path_params["number"]
    return int(text) if _NUMBER.fullmatch(text) else -1
