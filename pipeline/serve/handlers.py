"""The handlers of the contract, a function for each route of `app`."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

import yaml
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import Response

from pipeline.errors import NotReady, ObjectUnknown, PersonUnknown, RouteUnknown
from pipeline.jobs.expectation import calibration_warning
from pipeline.people.batcher import RETRY_AFTER_S
from pipeline.people.types import StoredImage
from pipeline.serve.client_parameters import REFUSED_IN_POSTS, check_refused
from pipeline.serve.context import Call, Context, Json
from pipeline.serve.listing import PEOPLE_COUNT, ROOTS_COUNT, page
from pipeline.serve.middleware import access_log
from pipeline.serve.person_parsing import person_change, person_headers
from pipeline.serve.request_body import MAX_JSON_BYTES
from pipeline.serve.request_parsing import json_object, person_id, person_ids, post_request, rest_of_path
from pipeline.serve.responses import encoded_response, json_bytes, json_response, request_id, tagged_response
from pipeline.serve.serializer import CLOUD, MAX_CHANGES, changes_json
from pipeline.store import API, NO_CHANGE, CorrectionRequest, PersonChange, PersonRecord

EXTERNAL_PREFIX: Final = "/people/external/"
_MAY_CHANGE: Final = "private, no-cache"  # a person's face can be replaced: revalidate each time
_FILES: Final = Path(__file__).parent
_NEEDED_HEADERS: Final = ("X-RPC-PERSON-NAME", "X-RPC-EXTERNAL-ID")  # by an insertion
_NEVER_CHANGES: Final = "private, max-age=31536000, immutable"


# People


async def post(context: Context, request: Request) -> Response:
    call = await context.call(request)
    options = post_request(request, person_headers(request))
    if options.insert or options.update:
        check_refused(REFUSED_IN_POSTS, call.query, request.scope["headers"])
    with_ids = call.query.flag("provide-face-id", True)
    async with context.bodies.image(request, call.account_id) as data:
        result = await context.posts.run(lambda: context.service.post(*call.place, data, options))
    context.metrics.posted(result)
    for conflict in filter(None, (face.conflict for face in result.faces)):
        access_log.warning("id=%s conflict=%s", request_id(request.scope), conflict)
    return json_response(context.serializer.post(result, with_ids=with_ids), 201)


def people(call: Call) -> Json:
    return _listed(call, call.service.records(*call.place), PEOPLE_COUNT)


def roots(call: Call) -> Json:
    records = call.service.records(*call.place)
    return _listed(call, (record for record in records if record.parent_id is None), ROOTS_COUNT)


def _listed(call: Call, records: Iterable[PersonRecord], default_count: int) -> Json:
    person_ids, position = page(call.query, records, default_count)
    listed = call.service.people(*call.place, person_ids)
    return {**call.context.serializer.people(listed), "personCollectionResponse": position}


def person(call: Call) -> Json:
    return call.context.serializer.people([call.service.person(*call.place, person_id(call.request))])


def by_external_id(call: Call) -> Json:
    found = call.service.people_by_external_id(*call.place, rest_of_path(call.request, EXTERNAL_PREFIX))
    if not found:
        raise PersonUnknown()
    return call.context.serializer.people(found)


async def put(context: Context, request: Request) -> Response:
    call = await context.call(request)
    who = person_id(request)
    async with context.bodies.body(request, call.account_id, MAX_JSON_BYTES) as data:
        change = person_change(json_object(data)) if data else person_headers(request)
    await context.calls.run(lambda: _correct(call, "update", [who], change))
    return json_response({}, 202)


def delete(call: Call) -> Response:
    _correct(call, "delete_merged" if call.query.flag("recursive", False) else "delete", [person_id(call.request)])
    return Response(status_code=204)


def merge(call: Call) -> Response:
    ids, change = person_ids(call.body), person_change(call.body, ("personIds",))
    _correct(call, "merge", ids, change, anyway=call.query.flag("override", False))
    return json_response({}, 202)


def unmerge(call: Call) -> Response:
    _correct(call, "unmerge", person_ids(call.body))
    return json_response({}, 202)


def _correct(
    call: Call, kind: str, ids: Sequence[str], change: PersonChange = NO_CHANGE, *, anyway: bool = False
) -> None:
    call.service.correct(CorrectionRequest(*call.place, kind, ids, change=change, anyway=anyway, origin=API))


def changes(call: Call) -> Json:
    if not call.context.settings.serve.changes:
        raise RouteUnknown
    since, limit = call.query.whole("since", 0, 0), call.query.whole("limit", 1000, 1, MAX_CHANGES)
    return changes_json(call.context.store.changes(since, call.account_id, limit))


# Images


def face(call: Call) -> Response:
    return _image_response(call, call.service.face_image(*call.place, person_id(call.request)), _MAY_CHANGE)


def stored_object(call: Call) -> Response:
    guid = call.request.path_params["guid"]
    image = call.service.stored_object(*call.place, guid, at_rest=_at_rest(call))
    return _image_response(call, image, _NEVER_CHANGES)


def image_key(call: Call) -> Json:
    key = call.context.store.image_key(call.account_id) if _at_rest(call) else None
    if key is None:
        raise ObjectUnknown()
    return {"key": base64.b64encode(key).decode()}


def _at_rest(call: Call) -> bool:
    """Whether objects are sent encrypted, as stored."""
    return call.context.settings.serve.hosting == CLOUD


def _image_response(call: Call, image: StoredImage, caching: str) -> Response:
    """Uses the guid as ETag: its image never changes."""
    return tagged_response(call.request, image.data, image.media_type, caching, image.guid)


# Health: these need no credentials


async def healthz(_: Request) -> Response:
    return json_response({"status": "ok"})


async def readyz(context: Context, _: Request) -> Response:
    if not await context.calls.run(context.is_ready):
        raise NotReady(retry_after_s=RETRY_AFTER_S)
    warning = calibration_warning(context.store.identity)
    if warning is None:
        return json_response({"status": "ready"})
    return json_response({"status": "ready", "calibration": "none", "warning": warning})


async def metrics(context: Context, _: Request) -> Response:
    text = await context.calls.run(context.metrics.text)
    return Response(text, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4, "Cache-Control": "no-store"})


# The description of the contract


@cache
def _description_bytes() -> bytes:
    return json_bytes(description())


async def openapi(_: Request) -> Response:
    return encoded_response(_description_bytes())


async def docs(_: Request) -> Response:
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return Response(docs_page(), headers={"Content-Security-Policy": policy}, media_type="text/html")


def description() -> Json:
    """The whole document (OpenAPI 3.1), from `openapi.yaml`."""
    document: Json = yaml.safe_load((_FILES / "openapi.yaml").read_bytes())
    del document["x-parts"]
    document["info"]["version"] = version("facepipe")
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"] = dict(sorted(operation["responses"].items()))
    return document


@cache
def docs_page() -> str:
    """The same as one page without scripts or external resources, made at the first request."""
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(loader=FileSystemLoader(_FILES), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("docs.html").render(document=description(), curl=_curl, dumps=json.dumps)


def _curl(verb: str, path: str, route: Json) -> str:
    """The request as a curl command with examples. `$url` is the server's address."""
    headers = {"X-RPC-AUTHORIZATION": "alice:secret"} if route["security"] else {}
    for parameter in route.get("parameters", ()):
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", parameter["example"])
        elif parameter["required"] or (verb == "post" and parameter["name"] in _NEEDED_HEADERS):
            headers[parameter["name"]] = parameter["example"]
    data = ""
    for kind, content in route.get("requestBody", {}).get("content", {}).items():
        headers["Content-Type"] = kind
        body = json.dumps(content["example"]) if "example" in content else "@photo.jpg"
        data = f" --data-binary {shlex.quote(body)}"
    sent = "".join(f" \\\n    -H {shlex.quote(f'{name}: {value}')}" for name, value in headers.items())
    return f'curl -X {verb.upper()} "$url{path}"{sent}{data}'
