"""Browsing: the grid of people, faces with and without a person, and pictures."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from starlette.responses import Response

from pipeline.errors import PersonUnknown, PictureUnavailable
from pipeline.extraction.stored_picture import MEDIA_TYPE
from pipeline.jobs.people import why_unassigned
from pipeline.people.drawn_faces import MIN_SIDE_PX
from pipeline.serve.context import Json
from pipeline.serve.cursors import cursor, place_after
from pipeline.serve.request_parsing import person_id
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
_BY_SCORE: Final = "score"
_FACE_SORTS: Final = ("added", _BY_SCORE)
_UNASSIGNED: Final = {"open": False, "nobody": True}  # whether a user said that they are nobody's
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
    rows = visit.context.store.faces_page(members, after, count + 1, by_score=sort == _BY_SCORE).to_pylist()
    last = rows[count - 1] if len(rows) > count else None
    return {
        "faces": [face_json(visit, row) for row in rows[:count]],
        **({} if last is None else {"next": cursor([sort], (last["place"], last["face_id"]))}),
        "asOf": as_of,
    }


def unassigned(visit: Visit) -> Json:
    """Faces without a person. Raises FaceUnknown if the last face of the page before was deleted."""
    show, count = visit.choice("show", tuple(_UNASSIGNED)), visit.count(_FACE_COUNT)
    after, as_of = visit.query.whole("after", 0, 0), stamp(utc_now())
    rows = visit.context.store.unassigned_faces(*visit.place, after, count + 1, nobodys=_UNASSIGNED[show]).to_pylist()
    more = {"next": rows[count - 1]["face_id"]} if len(rows) > count else {}
    return {
        "faces": [
            {**face_json(visit, row), "size": row["size"], "reason": why_unassigned(row)} for row in rows[:count]
        ],
        **more,
        "total": rows[0]["total"] if rows else 0,
        "asOf": as_of,
    }


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
