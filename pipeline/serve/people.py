"""Handlers of /people, /rootpeople, /merge and /unmerge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from pipeline.errors import BodyInvalid, PersonUnknown
from pipeline.identities.types import PersonChange
from pipeline.serve.context import Context
from pipeline.serve.encoding import encoded_response, json_bytes, json_response
from pipeline.serve.listing import Listing
from pipeline.serve.requests import (
    Caller,
    Query,
    check_media_type,
    json_object,
    person_change,
    person_headers,
    person_id,
    person_ids,
    post_request,
    rest_of_path,
)

MAX_PEOPLE: Final = 1_000  # of one `GET /people`
EXTERNAL_PREFIX: Final = "/people/external/"
_MAX_JSON_BYTES: Final = 1 << 20


class People:
    """Each method answers one route."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._service = context.service

    async def post(self, request: Request) -> Response:
        context = self._context
        caller = await context.caller(request)
        wanted = post_request(request)
        check_media_type(request)
        async with context.bodies.body(request) as data:
            if not data:
                raise BodyInvalid(detail="it is empty")
            result = await context.posts.run(
                lambda: self._service.post(caller.account_id, caller.directory, data, wanted)
            )
        context.metrics.posted(result)
        return json_response(context.answers.post(result), 201)

    async def all(self, request: Request) -> Response:
        caller = await self._context.caller(request)
        return await self._answer(
            lambda: self._context.answers.people(
                self._service.people(caller.account_id, caller.directory)[:MAX_PEOPLE],
            )
        )

    async def roots(self, request: Request) -> Response:
        caller = await self._context.caller(request)
        listing = Listing.from_query(Query(request))
        return await self._answer(lambda: self._page(caller, listing))

    def _page(self, caller: Caller, listing: Listing) -> dict[str, Any]:
        page = listing.page(self._service.roots(caller.account_id, caller.directory))
        about: dict[str, Any] = {"startIndex": page.start_index}
        if page.next_state is not None:
            about["nextIndexState"] = page.next_state
        about |= {"countReturned": len(page.views), "totalCount": page.total}
        return {**self._context.answers.people(page.views), "personCollectionResponse": about}

    async def one(self, request: Request) -> Response:
        caller = await self._context.caller(request)
        wanted = person_id(request)
        return await self._answer(
            lambda: self._context.answers.people([self._service.person(caller.account_id, caller.directory, wanted)])
        )

    async def by_external_id(self, request: Request) -> Response:
        caller = await self._context.caller(request)
        external_id = rest_of_path(request, EXTERNAL_PREFIX)

        def work() -> dict[str, Any]:
            found = self._service.people_by_external_id(caller.account_id, caller.directory, external_id)
            if not found:
                raise PersonUnknown()
            return self._context.answers.people(found)

        return await self._answer(work)

    async def put(self, request: Request) -> Response:
        caller = await self._context.caller(request)
        wanted = person_id(request)
        async with self._context.bodies.body(request, _MAX_JSON_BYTES) as data:
            change = person_change(json_object(data)) if data else PersonChange(*person_headers(request))
        return await self._accepted(
            lambda: self._service.update_person(caller.account_id, caller.directory, wanted, change)
        )

    async def delete(self, request: Request) -> Response:
        caller = await self._context.caller(request)
        recursive = Query(request).flag("recursive", False)
        wanted = person_id(request)
        await self._context.calls.run(
            lambda: self._service.delete_person(caller.account_id, caller.directory, wanted, recursive=recursive)
        )
        return Response(status_code=204)

    async def merge(self, request: Request) -> Response:
        caller, ids = await self._merged(request)
        return await self._accepted(lambda: self._service.merge(caller.account_id, caller.directory, ids))

    async def unmerge(self, request: Request) -> Response:
        caller, ids = await self._merged(request)
        return await self._accepted(lambda: self._service.unmerge(caller.account_id, caller.directory, ids))

    async def _merged(self, request: Request) -> tuple[Caller, list[str]]:
        caller = await self._context.caller(request)
        async with self._context.bodies.body(request, _MAX_JSON_BYTES) as data:
            return caller, person_ids(json_object(data))

    async def _accepted(self, work: Callable[[], None]) -> Response:
        await self._context.calls.run(work)
        return json_response({}, 202)

    async def _answer(self, work: Callable[[], dict[str, Any]]) -> Response:
        """What `work` answers, encoded on its thread: a large directory must not hold up the others."""
        return encoded_response(await self._context.calls.run(lambda: json_bytes(work())))
