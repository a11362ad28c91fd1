"""The handlers: a method for each route. Most check the credentials, then the request, call the service on a thread,
and answer in JSON."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import Response

from pipeline.errors import NotReady, ObjectUnknown, PersonUnknown, RouteUnknown
from pipeline.people.batcher import RETRY_AFTER_S
from pipeline.people.service import IdentityService
from pipeline.people.types import PersonView, StoredImage
from pipeline.serve.auth import Authenticator
from pipeline.serve.client_parameters import REFUSED_IN_POSTS, check_refused
from pipeline.serve.listing import PEOPLE_COUNT, ROOTS_COUNT, Listing
from pipeline.serve.metrics import Metrics
from pipeline.serve.middleware import access_log
from pipeline.serve.person_parsing import person_change, person_headers
from pipeline.serve.request_body import MAX_JSON_BYTES, BodyReader
from pipeline.serve.request_parsing import (
    Query,
    directory_name,
    json_object,
    person_id,
    person_ids,
    post_request,
    rest_of_path,
)
from pipeline.serve.responses import encoded_response, json_bytes, json_response, request_id, tagged_response
from pipeline.serve.serializer import MAX_CHANGES, Serializer, changes_json
from pipeline.serve.thread_pool import BoundedThreadPool

EXTERNAL_PREFIX: Final = "/people/external/"
_MAY_CHANGE: Final = "private, no-cache"  # the face of a person can be replaced: ask each time
_NEVER_CHANGES: Final = "private, max-age=31536000, immutable"


class Caller(NamedTuple):
    """The account that a request comes from, and the directory it names."""

    account_id: int
    directory: str


@dataclass(frozen=True)
class Handlers:
    """A method for each route, over what they share."""

    service: IdentityService
    auth: Authenticator
    bodies: BodyReader
    posts: BoundedThreadPool  # for images: their threads wait for the models
    calls: BoundedThreadPool  # for everything else, so that nothing quick waits behind an image
    serializer: Serializer
    metrics: Metrics
    warning: str | None  # what to know of the store's calibration
    is_ready: Callable[[], bool]  # whether requests can be answered now; it may block
    at_rest: bool  # objects go out as they lie on the disk, encrypted, as in cloud hosting
    tells_changes: bool  # the setting `serve.changes`

    # People

    async def post(self, request: Request) -> Response:
        caller = await self._caller(request)
        query = Query(request)
        options = post_request(request, person_headers(request))
        if options.insert or options.update:
            check_refused(REFUSED_IN_POSTS, query, request.scope["headers"])
        with_ids = query.flag("provide-face-id", True)
        async with self.bodies.image(request, caller.account_id) as data:
            result = await self.posts.run(lambda: self.service.post(*caller, data, options))
        self.metrics.posted(result)
        for conflict in filter(None, (face.conflict for face in result.faces)):
            access_log.warning("id=%s conflict=%s", request_id(request.scope), conflict)
        return json_response(self.serializer.post(result, with_ids=with_ids), 201)

    async def people(self, request: Request) -> Response:
        return await self._listed(request, self.service.people, PEOPLE_COUNT)

    async def roots(self, request: Request) -> Response:
        return await self._listed(request, self.service.roots, ROOTS_COUNT)

    async def person(self, request: Request) -> Response:
        caller = await self._caller(request)
        person = person_id(request)
        return await self._json(lambda: self.serializer.people([self.service.person(*caller, person)]))

    async def by_external_id(self, request: Request) -> Response:
        caller = await self._caller(request)
        external_id = rest_of_path(request, EXTERNAL_PREFIX)

        def work() -> dict[str, Any]:
            people = self.service.people_by_external_id(*caller, external_id)
            if not people:
                raise PersonUnknown()
            return self.serializer.people(people)

        return await self._json(work)

    async def put(self, request: Request) -> Response:
        caller = await self._caller(request)
        person = person_id(request)
        async with self.bodies.body(request, caller.account_id, MAX_JSON_BYTES) as data:
            change = person_change(json_object(data)) if data else person_headers(request)
        return await self._accepted(lambda: self.service.update_person(*caller, person, change))

    async def delete(self, request: Request) -> Response:
        caller = await self._caller(request)
        recursive = Query(request).flag("recursive", False)
        person = person_id(request)
        await self.calls.run(lambda: self.service.delete_person(*caller, person, recursive=recursive))
        return Response(status_code=204)

    async def merge(self, request: Request) -> Response:
        caller = await self._caller(request)
        body = await self.bodies.object(request, caller.account_id)
        ids, change = person_ids(body), person_change(body, ("personIds",))
        override = Query(request).flag("override", False)
        return await self._accepted(lambda: self.service.merge(*caller, ids, change, override=override))

    async def unmerge(self, request: Request) -> Response:
        caller = await self._caller(request)
        ids = person_ids(await self.bodies.object(request, caller.account_id))
        return await self._accepted(lambda: self.service.unmerge(*caller, ids))

    async def changes(self, request: Request) -> Response:
        caller = await self._caller(request)
        if not self.tells_changes:
            raise RouteUnknown
        query = Query(request)
        since, limit = query.whole("since", 0, 0), query.whole("limit", 1000, 1, MAX_CHANGES)
        return await self._json(lambda: changes_json(self.service.changes(caller.account_id, since, limit)))

    # Images

    async def face(self, request: Request) -> Response:
        caller = await self._caller(request)
        person = person_id(request)
        image = await self.calls.run(lambda: self.service.face_image(*caller, person))
        return _image_response(request, image, _MAY_CHANGE)

    async def object(self, request: Request) -> Response:
        caller = await self._caller(request)
        guid = request.path_params["guid"]
        image = await self.calls.run(lambda: self.service.stored_object(*caller, guid, at_rest=self.at_rest))
        return _image_response(request, image, _NEVER_CHANGES)

    async def image_key(self, request: Request) -> Response:
        caller = await self._caller(request)
        if not self.at_rest:
            raise ObjectUnknown()
        key = await self.calls.run(lambda: self.service.image_key(caller.account_id))
        return json_response({"key": base64.b64encode(key).decode()})

    # Health: these need no credentials

    async def healthz(self, _: Request) -> Response:
        return json_response({"status": "ok"})

    async def readyz(self, _: Request) -> Response:
        if not await self.calls.run(self.is_ready):
            raise NotReady(retry_after_s=RETRY_AFTER_S)
        if self.warning is None:
            return json_response({"status": "ready"})
        return json_response({"status": "ready", "calibration": "none", "warning": self.warning})

    async def scrape(self, _: Request) -> Response:
        text = await self.calls.run(self.metrics.text)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4, "Cache-Control": "no-store"})

    async def _caller(self, request: Request) -> Caller:
        """Raises Unauthorized, TooManyAttempts, and only then DirectoryRequired, DirectoryInvalid."""
        account_id = await self.auth.account(request)
        request.state.place.hold()  # until the answer, its connection gives way to no other
        return Caller(account_id, directory_name(request))

    async def _accepted(self, work: Callable[[], None]) -> Response:
        await self.calls.run(work)
        return json_response({}, 202)

    async def _listed(
        self, request: Request, listed: Callable[[int, str], Sequence[PersonView]], default_count: int
    ) -> Response:
        caller = await self._caller(request)
        listing = Listing.from_query(Query(request), default_count)

        def work() -> dict[str, Any]:
            page = listing.page(listed(*caller))
            position: dict[str, Any] = {"startIndex": page.start_index}
            if page.next_state is not None:
                position["nextIndexState"] = page.next_state
            position |= {"countReturned": len(page.views), "totalCount": page.total}
            return {**self.serializer.people(page.views), "personCollectionResponse": position}

        return await self._json(work)

    async def _json(self, work: Callable[[], dict[str, Any]]) -> Response:
        """What `work` returns, encoded on the same thread: a large directory must not hold up other requests."""
        return encoded_response(await self.calls.run(lambda: json_bytes(work())))


def _image_response(request: Request, image: StoredImage, caching: str) -> Response:
    """The image behind a guid never changes, so the guid is its ETag."""
    return tagged_response(request, image.data, image.media_type, image.guid, caching)
