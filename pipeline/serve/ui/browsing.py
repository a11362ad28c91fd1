"""Looking: the grid of people, and their pictures."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from pipeline.errors import PersonUnknown, PictureUnavailable
from pipeline.extraction.stored_picture import MEDIA_TYPE
from pipeline.serve.request_parsing import Query, person_id
from pipeline.serve.responses import tagged_response
from pipeline.serve.ui.answers import face_json, people_json
from pipeline.serve.ui.context import Context, choice_of, count_of, stamp
from pipeline.serve.ui.people_list import SHOWS, SORTS, cursor, cursor_key
from pipeline.store import StoredFace, utc_now

_PEOPLE_COUNT: Final = 100
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_FACE_COUNT: Final = 60
_BY_SCORE: Final = "score"
_FACE_SORTS: Final = ("added", _BY_SCORE)
_CACHING: Final = "private, max-age=3600"  # one that is forgotten is not shown for long


@dataclass(frozen=True)
class Browsing:
    context: Context

    async def people(self, request: Request) -> Response:
        visitor, query = self.context.visitor(request), Query(request)
        sort, show = choice_of(query, "sort", SORTS), choice_of(query, "show", SHOWS)
        count, text, after = count_of(query, _PEOPLE_COUNT), query.text("q") or "", query.text("after")

        def work() -> dict[str, Any]:
            listed = self.context.listed(visitor)
            page = listed.page(sort, show, text, after, count)
            return {
                "people": people_json(self.context, visitor, page.rows),
                **({} if page.next is None else {"next": page.next}),
                "total": page.total,
                "asOf": stamp(listed.as_of),
            }

        return await self.context.answer(work)

    async def person(self, request: Request) -> Response:
        """Raises PersonUnknown."""
        visitor, wanted = self.context.visitor(request), person_id(request)

        def work() -> dict[str, Any]:
            root, *_ = self.context.service.merged_set(*visitor.place, wanted)
            listed = self.context.listed(visitor)
            row = listed.rows.get(root)
            if row is None:  # it went, or came less than two seconds ago
                raise PersonUnknown()
            (person,) = people_json(self.context, visitor, [row])
            return {"person": person, "asOf": stamp(listed.as_of)}

        return await self.context.answer(work)

    async def faces(self, request: Request) -> Response:
        """Raises PersonUnknown."""
        visitor, wanted, query = self.context.visitor(request), person_id(request), Query(request)
        sort, count = choice_of(query, "sort", _FACE_SORTS), count_of(query, _FACE_COUNT)
        text = query.text("after")
        after = None if text is None else cursor_key(text, sort, [[0.0, 0]])

        def work() -> dict[str, Any]:
            as_of = stamp(utc_now())
            members = self.context.service.merged_set(*visitor.place, wanted)
            place = None if after is None else (float(after[0]), int(after[1]))
            table = self.context.store.faces_page(members, place, count + 1, by_score=sort == _BY_SCORE)
            rows = table.to_pylist()
            last = rows[count - 1] if len(rows) > count else None
            return {
                "faces": [face_json(self.context, visitor, row) for row in rows[:count]],
                **({} if last is None else {"next": cursor(sort, [last["place"], last["face_id"]])}),
                "asOf": as_of,
            }

        return await self.context.answer(work)

    async def picture(self, request: Request) -> Response:
        """A stored picture, which is that of a person's reference. Raises ObjectUnknown, ObjectReplaced."""
        visitor, guid = self.context.visitor(request), request.path_params["guid"]
        image = await self.context.calls.run(
            lambda: self.context.service.stored_object(*visitor.place, guid, at_rest=False)
        )
        return tagged_response(request, image.data, image.media_type, image.guid, _CACHING)

    async def face_picture(self, request: Request) -> Response:
        """A face cut from its photo. Raises PictureUnavailable."""
        return await self._original(request, self.context.photos.face, face_ids=[_number(request)])

    async def photo_picture(self, request: Request) -> Response:
        """A whole photo. Raises PictureUnavailable."""
        return await self._original(request, self.context.photos.whole, media_ids=[_number(request)])

    async def _original(
        self,
        request: Request,
        read: Callable[[StoredFace], bytes],
        *,
        face_ids: Sequence[int] = (),
        media_ids: Sequence[int] = (),
    ) -> Response:
        visitor = self.context.visitor(request)

        def work() -> bytes:
            for face in self.context.store.stored_faces(*visitor.place, face_ids, (), media_ids):
                return read(face)
            raise PictureUnavailable()

        data = await self.context.originals.run(work)
        return tagged_response(request, data, MEDIA_TYPE, hashlib.sha256(data).hexdigest()[:32], _CACHING)


def _number(request: Request) -> int:
    """Of a face or a photo. -1, which none has, for anything else."""
    text = request.path_params["number"]
    return int(text) if _NUMBER.fullmatch(text) else -1
