"""Handlers of /person/{id}/face, /obj/{guid} and the image key."""

from __future__ import annotations

import base64
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from pipeline.errors import ObjectUnknown
from pipeline.identities.types import StoredImage
from pipeline.serve.context import Context
from pipeline.serve.encoding import json_response
from pipeline.serve.requests import header_text, person_id

_MAY_CHANGE: Final = "private, no-cache"  # a person's face can be replaced: ask each time
_NEVER_CHANGES: Final = "private, max-age=31536000, immutable"


class Images:
    """Each method answers one route. `at_rest`: objects go out as they lie on the disk, as in cloud hosting."""

    def __init__(self, context: Context, *, at_rest: bool) -> None:
        self._context = context
        self._at_rest = at_rest

    async def face(self, request: Request) -> Response:
        caller = await self._context.caller(request)
        wanted, service = person_id(request), self._context.service
        image = await self._context.calls.run(
            lambda: service.face_image(caller.account_id, caller.directory, wanted),
        )
        return _image_response(request, image, _MAY_CHANGE)

    async def object(self, request: Request) -> Response:
        caller = await self._context.caller(request)
        guid, service = request.path_params["guid"], self._context.service
        image = await self._context.calls.run(
            lambda: service.stored_object(caller.account_id, caller.directory, guid, at_rest=self._at_rest)
        )
        return _image_response(request, image, _NEVER_CHANGES)

    async def key(self, request: Request) -> Response:
        caller = await self._context.caller(request)
        if not self._at_rest:
            raise ObjectUnknown()
        key = await self._context.calls.run(lambda: self._context.service.image_key(caller.account_id))
        return json_response({"key": base64.b64encode(key).decode()})


def _image_response(request: Request, image: StoredImage, caching: str) -> Response:
    """The image, or 304 where the client has it. An image never changes under its guid, so that is its tag."""
    tag = f'"{image.guid}"'
    headers = {"ETag": tag, "Cache-Control": caching}
    if _names(header_text(request, "If-None-Match") or "", tag):
        return Response(status_code=304, headers=headers)
    return Response(image.data, headers=headers, media_type=image.media_type)


def _names(condition: str, tag: str) -> bool:
    """Whether an If-None-Match names `tag` (RFC 9110, 13.1.2: the weak comparison)."""
    tags = [each.strip().removeprefix("W/") for each in condition.split(",")]
    return condition == "*" or tag in tags
