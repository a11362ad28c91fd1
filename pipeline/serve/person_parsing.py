"""Parses headers and JSON bodies about a person into a PersonChange."""

from __future__ import annotations

import base64
from collections.abc import Collection
from typing import Any, Final

from starlette.requests import Request

from pipeline.errors import BodyInvalid, HeaderInvalid
from pipeline.people.rules import joined_name
from pipeline.serve.request_parsing import header_text, text_of
from pipeline.serve.responses import json_bytes
from pipeline.store import PersonChange
from pipeline.texts import MAX_TEXT, TEXT_RULE, is_text

NAME: Final = "X-RPC-PERSON-NAME"
FIRST_NAME: Final = "X-RPC-PERSON-FIRST-NAME"
LAST_NAME: Final = "X-RPC-PERSON-LAST-NAME"
EXTERNAL_ID: Final = "X-RPC-EXTERNAL-ID"
TAGS: Final = "X-RPC-PERSON-TAGS"
GROUPS: Final = "X-RPC-GROUPS"
# Headers stored unchanged -> their field in the record.
FURTHER_HEADERS: Final = {
    "X-RPC-PERSON-TYPE": "personType",
    "X-RPC-GENDER": "gender",
    "X-RPC-AGE": "age",
    "X-RPC-DATE-OF-BIRTH": "dateOfBirth",
}
MAX_TAGS: Final = 100
_MAX_DEPTH: Final = 50  # of a field stored as sent

# Fields computed by the server: clients may send a whole record back.
COMPUTED_FIELDS: Final = frozenset(
    {
        "personId",
        "rootPersonId",
        "imageURI",
        "unmergedImageURIs",
        "unmergedImageURI",
        "occurrence",
        "lastOccurrenceDate",
        "rootPersonAddDate",
        "addDate",
        "modDate",
    }
)
_STORED_FIELDS: Final = frozenset({"name", "firstName", "lastName", "externalId", "personExternalId", "tags", "ignore"})


def person_headers(request: Request) -> PersonChange:
    """Parses the headers; without a name it is joined from first and last name. Raises HeaderInvalid."""
    first, last = _encodable_text(request, FIRST_NAME), _encodable_text(request, LAST_NAME)
    name = _encodable_text(request, NAME)
    tags, groups = _parts(_plain_text(request, TAGS)), _parts(_encodable_text(request, GROUPS))
    if len(tags) > MAX_TAGS:
        raise HeaderInvalid(name=TAGS, expected=f"at most {MAX_TAGS} texts")
    further = {field: _plain_text(request, name) for name, field in FURTHER_HEADERS.items()}
    return PersonChange(
        name=name or joined_name(first, last),
        first_name=first,
        last_name=last,
        external_id=_encodable_text(request, EXTERNAL_ID),
        tags=tuple(tags) or None,
        metadata={key: value for key, value in {**further, "groups": groups}.items() if value},
        joined=name is None and bool(first or last),
    )


def _encodable_text(request: Request, name: str) -> str | None:
    """The text of a header, or of its base64 variant, which takes precedence."""
    encoded = f"{name}-BASE64"
    base64_text = header_text(request, encoded)
    if base64_text is None:
        return _plain_text(request, name)
    try:
        text = text_of(base64.b64decode(base64_text, validate=True))
    except ValueError:
        raise HeaderInvalid(name=encoded, expected="base64") from None
    return _checked_text(text, encoded)


def _plain_text(request: Request, name: str) -> str | None:
    return _checked_text(header_text(request, name) or "", name)


def _checked_text(text: str, header: str) -> str | None:
    if not is_text(text):
        raise HeaderInvalid(name=header, expected=TEXT_RULE)
    return text or None


def _parts(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def person_change(body: dict[str, Any], not_of_a_person: Collection[str] = ()) -> PersonChange:
    """Parses the changes of a `PUT`: omitted is unchanged, blank or empty is removed, computed fields are ignored.
    `null` removes a further field; for others it means omitted, as clients send it for unknown values. Raises
    BodyInvalid."""
    known = _STORED_FIELDS | COMPUTED_FIELDS | set(not_of_a_person)
    further = {key: None if _is_empty(value) else value for key, value in body.items() if key not in known}
    _check_further(further)
    body = {key: value for key, value in body.items() if value is not None}
    return PersonChange(
        name=_text_field(body, "name"),
        first_name=_text_field(body, "firstName"),
        last_name=_text_field(body, "lastName"),
        external_id=_text_field(body, "externalId" if "externalId" in body else "personExternalId"),
        tags=_tags(body["tags"]) if "tags" in body else None,
        ignored=_ignored(body["ignore"]) if "ignore" in body else None,
        metadata=further,
    )


def _is_empty(value: Any) -> bool:
    return value in (None, [], {}) or (isinstance(value, str) and not value.strip())


def _check_further(fields: dict[str, Any]) -> None:
    """Refuses JSON that cannot be written again: infinite numbers, lone surrogates, deep nesting."""
    if not _is_shallow(fields, _MAX_DEPTH):
        raise BodyInvalid(detail=f"it is nested more than {_MAX_DEPTH} deep")
    try:
        json_bytes(fields)
    except ValueError:
        raise BodyInvalid(detail="it holds a number or a text that cannot be stored") from None


def _is_shallow(value: Any, levels: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_shallow(part, levels - 1) for part in parts)


def _text_field(body: dict[str, Any], key: str) -> str | None:
    return _text(key, body[key]) if key in body else None


def _text(key: str, value: object) -> str:
    if not isinstance(value, str) or not is_text(value):
        raise BodyInvalid(detail=f"{key} must be text of at most {MAX_TEXT:,} characters")
    return value.strip()


def _tags(value: object) -> tuple[str, ...]:
    if value == "":
        return ()
    if not isinstance(value, list) or len(value) > MAX_TAGS:
        raise BodyInvalid(detail=f"tags must be a list of at most {MAX_TAGS} texts")
    return tuple(_text("tags", tag) for tag in value)


def _ignored(value: object) -> bool:
    if value == "":
        return False
    if not isinstance(value, bool):
        raise BodyInvalid(detail="ignore must be true or false")
    return value
