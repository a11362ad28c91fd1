"""The OpenAPI description. It is written by hand, because it cannot be derived from handlers that parse by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

from pipeline.config import EVERYBODY
from pipeline.serve.docs import examples, schemas
from pipeline.serve.listing import EQUALITIES, MAX_PATTERN, PEOPLE_COUNT, ROOTS_COUNT, SORT_ORDERS
from pipeline.serve.person_parsing import FURTHER_HEADERS, MAX_TAGS
from pipeline.serve.request_parsing import MAX_DAYS, MAX_SIMILAR, MAX_SIZE_PX, MAX_WHOLE
from pipeline.texts import MAX_TEXT

Json = dict[str, Any]

# The last part of an address -> its group; all others are people.
_TAGS: Final = {
    **dict.fromkeys(("face", "{guid}", "imagekey"), "images"),
    **dict.fromkeys(("healthz", "readyz", "metrics"), "server"),
}
_AUTHORIZATION: Final = "authorization"
_OCTETS: Final = "application/octet-stream"
_BINARY: Final[Json] = {"type": "string", "format": "binary"}
# The errors of every route that needs credentials. 421, 431, and 408 for headers, come before any route.
_COMMON_ERRORS: Final = {
    400: "A header or a parameter is missing or wrong.",
    401: "The credentials are missing or wrong.",
    429: "Too many failed attempts by this user from this address. `Retry-After` says how long to wait.",
    421: "The server does not answer to the name in `Host`.",
    431: "The headers are larger than 64 KiB.",
    500: "The server failed; its log has the details under the id in the message.",
    503: "The server has as much to do as it can queue. `Retry-After` says how long to wait.",
}
_BODY_ERRORS: Final = {
    408: "The body did not arrive in time.",
    413: "The body, or the image in it, is larger than the server takes.",
}
_STORE_ERRORS: Final = {507: "The server's disk is full; nothing was stored."}
_NO_PERSON: Final = {404: "There is no such person in this directory."}
_ID_IN_USE: Final = {409: "The external id is in use (only where the server keeps them unique); nothing was stored."}
_NOBODY_LEFT: Final = "Or the person has no face and would have no name."
_TWO_PEOPLE: Final = "Or a user stated that two of them are two people, and `override` is not true; nothing was merged."
_CHANGE_ERRORS: Final = _COMMON_ERRORS | _BODY_ERRORS | _STORE_ERRORS | _NO_PERSON


def description() -> Json:
    """The whole document (OpenAPI 3.1)."""
    document: Json = {
        "openapi": "3.1.0",
        "info": {"title": "facepipe", "version": version("facepipe"), "description": _ABOUT},
        "paths": {
            "/people": {"get": _list_people(), "post": _post_people()},
            "/rootpeople": {"get": _list_roots()},
            "/people/{personId}": {"get": _get_person(), "put": _put_person(), "delete": _delete_person()},
            "/people/external/{externalId}": {"get": _by_external_id()},
            "/merge": {"put": _merge()},
            "/unmerge": {"put": _unmerge()},
            "/person/{personId}/face": {"get": _face()},
            "/obj/{guid}": {"get": _object()},
            "/obj/imagekey": {"get": _image_key()},
            "/imagekey": {"get": _image_key() | {"operationId": "get-the-image-key-at-its-other-address"}},
            "/healthz": {"get": _open_route("Health", "The process answers.", {"status": "ok"})},
            "/readyz": {"get": _readiness()},
            "/metrics": {"get": _metrics()},
        },
        "components": {
            "schemas": schemas.SCHEMAS,
            "securitySchemes": {
                _AUTHORIZATION: {
                    "type": "apiKey",
                    "in": "header",
                    "name": "X-RPC-AUTHORIZATION",
                    "description": "The user id, a colon, and the password or its base64: `alice:secret` or "
                    "`alice:c2VjcmV0`, without a word such as `Bearer` before it.",
                }
            },
        },
    }
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["tags"] = [_tag(path)]
    return document


def _tag(path: str) -> str:
    """The group of an address: generated clients make a module of each."""
    return _TAGS.get(path.rsplit("/", 1)[-1], "people")


_ABOUT: Final = """\
Identities in directories: post an image to recognise its faces, or to insert them.

Every request carries `X-RPC-AUTHORIZATION` and `X-RPC-DIRECTORY`. A key without a value is absent from an answer.
Every error has the same shape. GET routes answer HEAD too; a slash at the end of a path makes no difference.
"""


def _route(
    summary: str,
    text: str,
    answers: dict[str, Json],
    errors: dict[int, str],
    parameters: Sequence[Json] = (),
    body: Json | None = None,
) -> Json:
    """One operation of the contract."""
    route: Json = {
        "summary": summary,
        "operationId": re.sub(r"\W+", "-", summary.lower()),
        "description": text,
        "security": [{_AUTHORIZATION: []}],
        "parameters": [_DIRECTORY, *parameters],
        "responses": answers | {str(status): _error(status, text) for status, text in sorted(errors.items())},
    }
    return route | ({"requestBody": body} if body else {})


def _post_people() -> Json:
    body = {
        "description": "The image file. JPEG, PNG, WebP, BMP, TIFF, GIF, AVIF, HEIC and ICO are read.",
        "required": True,
        "content": {_OCTETS: {"schema": _BINARY}},
    }
    errors = {
        **_COMMON_ERRORS,
        **_BODY_ERRORS,
        **_STORE_ERRORS,
        403: "The account has as many directories as it may; nothing was stored.",
        404: "`update-person-id` or `merge-with` names nobody of this directory; nothing was stored.",
        **_ID_IN_USE,
        415: "The Content-Type is neither application/octet-stream nor image/*, or there is a Content-Encoding.",
    }
    text = (
        "Every face found is matched against the directory. With `insert=false&update=false` nothing is stored. "
        "Else the largest face becomes a new identity if it matches nobody and its quality suffices, or, with "
        "`update`, the reference of the identity it matches, unless the headers give it another external id or name."
    )
    answer = _json_answer("What was found, the largest face first.", "PostAnswer", examples.POSTS)
    return _route("Insert or recognise", text, {"201": answer}, errors, _POST_PARAMETERS, body)


def _list_people() -> Json:
    text = "All records of the directory, in pages."
    return _listing("List people", text, PEOPLE_COUNT)


def _list_roots() -> Json:
    text = "The persons of the directory, without the records merged into them, in pages."
    return _listing("List persons", text, ROOTS_COUNT)


def _listing(summary: str, text: str, default_count: int) -> Json:
    answer = _json_answer("A page.", "PeoplePage", {"page": examples.PEOPLE_PAGE})
    count = _query("count", {**_INDEX, "default": default_count}, "So many at most; 0: all.", 100)
    text += (
        " A record passes a filter if its field is equal to the value, or is a list that has it; it must pass all of "
        "them. An empty filter is none. A filter that other servers have and this one has not is refused."
    )
    return _route(summary, text, {"200": answer}, _COMMON_ERRORS, [count, *_LISTING_PARAMETERS])


def _get_person() -> Json:
    return _route("Get a record", "", {"200": _people_answer()}, _COMMON_ERRORS | _NO_PERSON, [_PERSON_ID])


def _by_external_id() -> Json:
    parameter = _path("externalId", "The external id; a slash in it is sent as `%2F`.", "employee-1815")
    text = "All records with an external id: ids need not be unique."
    return _route("Find by external id", text, {"200": _people_answer()}, _COMMON_ERRORS | _NO_PERSON, [parameter])


def _put_person() -> Json:
    text = (
        "Changes what the body names: omitted is unchanged; blank or empty is removed. `null` removes a field that the "
        "server only keeps, and means omitted for the others. Fields that the server computes are ignored, so that a "
        "record can be sent back; any other field is kept as it was sent, of all together at most 8 KB. Without a body "
        "the headers serve."
    )
    errors = _CHANGE_ERRORS | {409: f"{_ID_IN_USE[409]} {_NOBODY_LEFT}"}
    body = _json_body("PersonChange", examples.PERSON_CHANGE, required=False)
    parameters = [_PERSON_ID, *_PERSON_HEADERS]
    return _route("Change a record", text, {"202": _accepted()}, errors, parameters, body)


def _delete_person() -> Json:
    text = "Everything of the record goes: its reference, its embedding, its image. Its oldest child becomes root."
    recursive = _query("recursive", {"type": "boolean", "default": False}, "Deletes the whole merged person.", True)
    asynchronous = _query("async", {"type": "boolean"}, "Accepted; the record is gone when the answer comes.", True)
    answers = {"204": {"description": "It is gone."}}
    errors = _COMMON_ERRORS | _STORE_ERRORS | _NO_PERSON
    return _route("Delete a record", text, answers, errors, [_PERSON_ID, recursive, asynchronous])


def _merge() -> Json:
    text = (
        "Makes one person of several records: the one that is a root already is the root, else the oldest. All data "
        "stay with their records. Other fields of the body change the root, as in `PUT /people/{personId}`."
    )
    override = _query("override", {"type": "boolean", "default": False}, "Also if they were stated to be two.", True)
    body = _json_body("Merge", examples.PERSON_IDS)
    errors = _CHANGE_ERRORS | {409: f"{_ID_IN_USE[409]} {_TWO_PEOPLE}"}
    return _route("Merge", text, {"202": _accepted()}, errors, [override], body)


def _unmerge() -> Json:
    text = "Takes records out of their merged person, each as it was."
    body = _json_body("PersonIds", examples.PERSON_IDS)
    return _route("Unmerge", text, {"202": _accepted()}, _CHANGE_ERRORS, (), body)


def _face() -> Json:
    text = "The record's own current image, decrypted where images are stored encrypted. It may change: revalidate."
    # The second type is for generated clients, which know no image types.
    answers = _image_answers("image/jpeg", _OCTETS)
    return _route("Get a face", text, answers, _COMMON_ERRORS | _NO_PERSON, [_PERSON_ID, _IF_NONE_MATCH])


def _object() -> Json:
    text = (
        "The image at the end of an imageURI; it never changes. In cloud hosting the bytes as they are stored: 16 "
        "bytes of IV, then AES-256-CBC with PKCS#7 padding under the account's image key."
    )
    parameters = [_path("guid", "The last part of the imageURI.", examples.GUID), _IF_NONE_MATCH]
    errors = _COMMON_ERRORS | {
        404: "There is no such object in this directory.",
        410: "A newer image took the place of this one less than a day ago: look at the record again.",
    }
    return _route("Get an object", text, _image_answers("image/jpeg", _OCTETS), errors, parameters)


def _image_key() -> Json:
    answer = _json_answer("The key.", "ImageKey", {"key": examples.IMAGE_KEY})
    errors = _COMMON_ERRORS | {404: "The server is not in cloud hosting."}
    return _route("Get the image key", "The account's key to its objects, in cloud hosting.", {"200": answer}, errors)


def _open_route(summary: str, text: str, example: Json, schema: str = "Status") -> Json:
    """A route without credentials."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}, "example": example}}
    return {
        "summary": summary,
        "operationId": summary.lower(),
        "security": [],
        "responses": {
            "200": {"description": text, "content": content},
            "431": _error(431, _COMMON_ERRORS[431]),
            "500": _error(500, _COMMON_ERRORS[500]),
        },
    }


def _readiness() -> Json:
    route = _open_route("Readiness", "Requests are answered.", {"status": "ready"}, "Ready")
    route["responses"]["503"] = _error(503, "Not yet, or no longer.")
    return route


def _metrics() -> Json:
    route = _open_route("Metrics", "Prometheus' text format.", {})
    route["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    route["responses"]["503"] = _error(503, _COMMON_ERRORS[503])
    return route


# Parts


def _json_answer(text: str, schema: str, values: Json) -> Json:
    content = {
        "schema": {"$ref": f"#/components/schemas/{schema}"},
        "examples": {name: {"value": value} for name, value in values.items()},
    }
    return {"description": text, "content": {"application/json": content}}


def _people_answer() -> Json:
    return _json_answer("The records.", "People", {"records": examples.PEOPLE})


def _accepted() -> Json:
    content = {"schema": {"$ref": "#/components/schemas/Accepted"}, "example": {}}
    return {"description": "It is done.", "content": {"application/json": content}}


def _image_answers(*media_types: str) -> Json:
    content = {media_type: {"schema": _BINARY} for media_type in media_types}
    tag = {"ETag": {"description": "Names the image.", "schema": {"type": "string"}}}
    return {
        "200": {"description": "The image.", "content": content, "headers": tag},
        "304": {"description": "The client has it: `If-None-Match` names it."},
    }


def _error(status: int, text: str) -> Json:
    content = {"schema": {"$ref": "#/components/schemas/Error"}, "example": examples.error(status)}
    return {"description": text, "content": {"application/json": content}}


def _json_body(schema: str, example: Json, *, required: bool = True) -> Json:
    content = {"schema": {"$ref": f"#/components/schemas/{schema}"}, "example": example}
    return {"required": required, "content": {"application/json": content}}


def _header(name: str, text: str, schema: Json, example: str, *, required: bool = False) -> Json:
    return {
        "name": name,
        "in": "header",
        "required": required,
        "description": text,
        "schema": schema,
        "example": example,
    }


def _query(name: str, schema: Json, text: str, example: Any) -> Json:
    return {"name": name, "in": "query", "required": False, "description": text, "schema": schema, "example": example}


def _path(name: str, text: str, example: str, schema: Json | None = None) -> Json:
    schema = schema or {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "description": text, "schema": schema, "example": example}


_TEXT: Final[Json] = {"type": "string", "maxLength": MAX_TEXT}
# Every text that fits is accepted: no byte of it is NUL (or, to keep the pattern short, some other control characters),
# and its 999 bytes are at most 999 characters. There is no look-ahead, which not every library has.
_BASE64: Final[Json] = {
    "type": "string",
    "contentEncoding": "base64",
    "maxLength": MAX_TEXT // 3 * 4,
    "pattern": "^([B-Za-z0-9+/][B-PR-Za-fh-vx-z0-9+/]"
    "([A-Za-z0-9+/][B-Za-z0-9+/]|[B-DF-HJ-LN-PR-TV-XZabd-fh-jl-np-rt-vx-z1-35-79+/]A))*"
    "([B-Za-z0-9+/]([A-Za-z0-9+/]==|[B-PR-Za-fh-vx-z0-9+/][A-Za-z0-9+/]=))?$",
}
_TAG_LIST: Final[Json] = {**_TEXT, "pattern": f"^[^,]*(,[^,]*){{0,{MAX_TAGS - 1}}}$"}
_INDEX: Final[Json] = {"type": "integer", "minimum": 0, "maximum": MAX_WHOLE}
_QUALITY: Final[Json] = {"type": "number", "minimum": -1, "maximum": 1, "default": -1}  # nothing between -1 and 0
_FRACTION: Final[Json] = {"type": "number", "minimum": 0, "maximum": 1}
# No default: generated clients send defaults, and that of the query would win over a header that was set.
_PIXELS: Final[Json] = {"type": "number", "minimum": -1, "maximum": MAX_SIZE_PX}

_DIRECTORY: Final = _header(
    "X-RPC-DIRECTORY",
    "The directory. It comes into being with its first identity.",
    {"type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[^/\\\\]*$"},
    "main",
    required=True,
)
_PERSON_ID: Final = _path("personId", "", examples.PERSON_ID, {"type": "string", "format": "uuid"})
_IF_NONE_MATCH: Final = _header("If-None-Match", "The ETag of a copy.", {"type": "string"}, f'"{examples.GUID}"')
_PERSON_HEADERS: Final = (
    _header("X-RPC-PERSON-NAME", "The name. UTF-8, else latin-1. An insertion needs one.", _TEXT, "Grace Hopper"),
    _header("X-RPC-PERSON-NAME-BASE64", "The name as base64; wins over the plain one.", _BASE64, "R3JhY2UgSG9wcGVy"),
    _header("X-RPC-EXTERNAL-ID", "The external id. An insertion needs one.", _TEXT, "employee-1815"),
    _header("X-RPC-EXTERNAL-ID-BASE64", "The same as base64.", _BASE64, "ZW1wbG95ZWUtMTgxNQ=="),
    _header("X-RPC-PERSON-FIRST-NAME", "The first name. Without a name, first and last are it.", _TEXT, "Grace"),
    _header("X-RPC-PERSON-FIRST-NAME-BASE64", "The same as base64.", _BASE64, "R3JhY2U="),
    _header("X-RPC-PERSON-LAST-NAME", "The last name.", _TEXT, "Hopper"),
    _header("X-RPC-PERSON-LAST-NAME-BASE64", "The same as base64.", _BASE64, "SG9wcGVy"),
    _header("X-RPC-PERSON-TAGS", "Tags, separated by commas.", _TAG_LIST, "navy,pioneer"),
    _header("X-RPC-GROUPS", "Kept as `groups`; separated by commas.", _TEXT, "staff,visitors"),
    _header("X-RPC-GROUPS-BASE64", "The same as base64.", _BASE64, "c3RhZmYsdmlzaXRvcnM="),
    *(_header(name, f"Kept as `{field}`.", _TEXT, "") for name, field in FURTHER_HEADERS.items()),
)
_POST_PARAMETERS: Final = (
    *_PERSON_HEADERS,
    _header(
        "X-RPC-FACES-GROUPING-THRESHOLD",
        "The matching threshold T, at most 3.99 or exactly 4; without it the server's, which is 0.54 unless set. "
        "0 matches nothing but the identical image, 4 everybody.",
        {"type": "number", "minimum": 0, "maximum": EVERYBODY},
        "0.54",
    ),
    _query("insert", {"type": "boolean", "default": True}, "false: nothing is inserted.", False),
    _query("update", {"type": "boolean", "default": True}, "false: no matching identity is changed.", False),
    _query(
        "similar_limit",
        {"type": "integer", "minimum": 0, "maximum": MAX_SIMILAR, "default": 0},
        "So many most similar identities for each face.",
        5,
    ),
    _query("min-cpq", _QUALITY, "Least centre-pose quality of a reference; 0 is off, -1 the server's.", 0.59),
    _query("min-fsq", _QUALITY, "Least sharpness quality, likewise.", 0.4),
    _query("min-fcq", _QUALITY, "Least contrast quality, likewise.", 0.45),
    _query(
        "insert_all", {"type": "boolean", "default": False}, "Inserts every unmatched face that is good enough.", False
    ),
    _query("closest-only-x", _FRACTION, "Only the face whose centre is nearest to this fraction of the width.", 0.5),
    _query("closest-only-y", _FRACTION, "Only the face nearest to this fraction of the height; either or both.", 0.5),
    _query("largest-only", {"type": "boolean", "default": False}, "Only the largest face.", False),
    _query("larger-than", _FRACTION, "Only faces of at least this fraction of the image's height.", 0.1),
    _query("min-size", _PIXELS, "Least size of a reference's face in pixels, the longer side; -1 is none.", 0),
    _header("X-RPC-MIN-SIZE", "The same; the query wins, unless it is -1.", _PIXELS, "0"),
    _query(
        "update-person-id",
        {"type": "string", "format": "uuid"},
        "Only this record may be updated, by the one face of the photo or the selected one. Nothing is inserted.",
        examples.PERSON_ID,
    ),
    _query(
        "merge-with",
        {"type": "string", "format": "uuid"},
        "This person and that of the one face of the photo, or of the selected one, become one, as by `PUT /merge`.",
        examples.PERSON_ID,
    ),
    _header("X-RPC-ROOT-PERSON-ID", "As merge-with, which wins.", {"type": "string"}, examples.PERSON_ID),
    _query(
        "update-if-lower-quality",
        {"type": "boolean", "default": False},
        "Only a reference that is lower in all three qualities is replaced.",
        True,
    ),
    _query(
        "update-if-older-than",
        {"type": "number", "minimum": 0, "maximum": MAX_DAYS, "default": 0},
        "Only a reference that is older than so many days is replaced; 0: any.",
        30,
    ),
    _query("provide-face-id", {"type": "boolean", "default": True}, "false: the answer names no person by id.", True),
)
_LISTING_PARAMETERS: Final = (
    _query("startIndexState", {"type": "string"}, "The nextIndexState of the page before.", ""),
    _query("start-index", {**_INDEX, "default": 0}, "Where to start.", 0),
    _query("sort", {"type": "string"}, "name, create-date or update-date; else the order of insertion.", "name"),
    _query("sort-order", {"type": "string", "enum": list(SORT_ORDERS)}, "In any case.", "ascending"),
    _query(
        "name-pattern",
        {"type": "string", "maxLength": MAX_PATTERN},
        "A regular expression (RE2) found in the name.",
        "^G",
    ),
    _query("external-id", {"type": "array", "items": {"type": "string"}}, "Any of these.", ["employee-1815"]),
    _query("short-id", _TEXT, "The first letters of the id.", "8a1f0a5e"),
    *(_query(name, _TEXT, f"`{field}` has this value.", "") for name, field in EQUALITIES.items()),
    _query("include-expired", {"type": "boolean"}, "Accepted; nothing expires.", True),
)
