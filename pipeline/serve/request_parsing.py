"""Turns headers, parameters and JSON bodies into the service's types. Requests are checked here and in
`person_parsing`, by hand: the order and the errors are part of the contract."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.requests import Request

from pipeline.config import THRESHOLD_RULE, is_threshold
from pipeline.errors import (
    BodyInvalid,
    ContentEncodingUnsupported,
    DirectoryInvalid,
    DirectoryRequired,
    HeaderInvalid,
    MediaTypeUnsupported,
    ParameterInvalid,
    PersonUnknown,
    RequestError,
)
from pipeline.extraction.images.files import SNIFF_BYTES, sniff
from pipeline.people.types import PostRequest
from pipeline.serve.responses import sent_path
from pipeline.store import PersonChange
from pipeline.texts import directory_name as checked_name

DIRECTORY: Final = "X-RPC-DIRECTORY"
THRESHOLD: Final = "X-RPC-FACES-GROUPING-THRESHOLD"
MIN_SIZE: Final = "X-RPC-MIN-SIZE"
ROOT_PERSON: Final = "X-RPC-ROOT-PERSON-ID"
MAX_SIMILAR: Final = 1_000
MAX_WHOLE: Final = 2**53 - 1  # the largest whole number that every JSON reader represents exactly
MAX_SIZE_PX: Final = 1e6
MAX_DAYS: Final = 36_500
MAX_MERGED: Final = 1_000

# Stricter than float(), which accepts "nan", "1_0" and the digits of other scripts.
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_IMAGE: Final = re.compile(r"image/[^/\s]+")
_OCTETS: Final = "application/octet-stream"
_FORM: Final = "application/x-www-form-urlencoded"  # curl's default for every body
_EXPECTED_TYPE: Final = f"{_OCTETS} or image/*"
_BOOLEANS: Final = {"true": True, "false": False}
_DEFAULT: Final = -1.0  # stands for the server's setting


def text_of(data: bytes) -> str:
    """UTF-8 if it is valid, else latin-1."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def header_text(request: Request, name: str) -> str | None:
    """A header's text; None if missing or empty."""
    key = name.lower().encode()
    value = next((value for header, value in request.scope["headers"] if header == key), b"")
    return text_of(value).strip(" \t") or None


def directory_name(request: Request) -> str:
    """Raises DirectoryRequired, DirectoryInvalid."""
    name = header_text(request, DIRECTORY)
    if name is None:
        sent = header_text(request, "Authorization") is not None
        raise DirectoryRequired(instead="; Authorization was sent, which does not name the directory" if sent else "")
    try:
        return checked_name(name)
    except ValueError:
        raise DirectoryInvalid() from None


def check_media_type(request: Request) -> None:
    """Raises MediaTypeUnsupported unless Content-Type is an image, plain bytes, a form, or missing, and
    ContentEncodingUnsupported. `check_form` checks a form's body."""
    if (header_text(request, "Content-Encoding") or "identity").lower() != "identity":
        raise ContentEncodingUnsupported()
    media_type = _media_type(request)
    if media_type not in (_OCTETS, _FORM) and not _IMAGE.fullmatch(media_type):
        raise MediaTypeUnsupported(expected=_EXPECTED_TYPE)


def check_form(request: Request, body: bytes) -> None:
    """Raises MediaTypeUnsupported if a form's body does not begin like an image."""
    if _media_type(request) == _FORM and sniff(body[:SNIFF_BYTES]) is None:
        raise MediaTypeUnsupported(expected=_EXPECTED_TYPE)


def _media_type(request: Request) -> str:
    return (header_text(request, "Content-Type") or _OCTETS).partition(";")[0].strip().lower()


class Query:
    """The query's parameters. Unknown ones are ignored, empty ones absent; the last of repeated ones counts."""

    def __init__(self, request: Request) -> None:
        query: bytes = request.scope["query_string"]
        self._pairs = parse_qsl(query.decode("latin-1"), errors="replace")
        self._last = dict(self._pairs)

    def text(self, name: str) -> str | None:
        return self._last.get(name)

    def items(self) -> Iterable[tuple[str, str]]:
        return self._last.items()

    def all(self, name: str) -> list[str]:
        """Every value of a repeatable parameter."""
        return [value for key, value in self._pairs if key == name]

    def flag(self, name: str, default: bool) -> bool:
        """Raises ParameterInvalid."""
        text = self._last.get(name)
        if text is None:
            return default
        if text.lower() not in _BOOLEANS:
            raise ParameterInvalid(name=name, expected="true or false")
        return _BOOLEANS[text.lower()]

    def whole(self, name: str, default: int, low: int, high: int = MAX_WHOLE) -> int:
        """Raises ParameterInvalid."""
        text = self._last.get(name)
        if text is None:
            return default
        number = int(text) if _WHOLE.fullmatch(text) else low - 1
        if not low <= number <= high:
            raise ParameterInvalid(name=name, expected=f"a whole number in [{low}, {high}]")
        return number

    def number(self, name: str, high: float, *, has_default: bool = True) -> float | None:
        """A number in [0, high]; None if missing, or -1 if that is the default. Raises ParameterInvalid."""
        return _number(name, self._last.get(name), high, has_default, ParameterInvalid)


def _number(name: str, text: str | None, high: float, has_default: bool, invalid: type[RequestError]) -> float | None:
    number = None if text is None else finite(text)
    if text is None or (has_default and number == _DEFAULT):
        return None
    if number is None or not 0 <= number <= high:
        or_default = ", or -1 for the default" if has_default else ""
        raise invalid(name=name, expected=f"a number in [0, {high:g}]{or_default}")
    return number


def finite(text: str) -> float | None:
    """A decimal number; None for anything else, or if too large for a float."""
    number = float(text) if _NUMBER.fullmatch(text) else float("nan")
    return number + 0.0 if abs(number) < float("inf") else None


def threshold(request: Request) -> float | None:
    """The matching threshold T; None if missing or empty. Raises HeaderInvalid."""
    text = header_text(request, THRESHOLD)
    if text is None:
        return None
    number = finite(text)
    if number is None or not is_threshold(number):
        raise HeaderInvalid(name=THRESHOLD, expected=THRESHOLD_RULE)
    return number


def _min_size(request: Request, query: Query) -> float:
    """In pixels; the query overrides the header, unless it is -1."""
    asked = query.number("min-size", MAX_SIZE_PX)
    if asked is None:
        asked = _number(MIN_SIZE, header_text(request, MIN_SIZE), MAX_SIZE_PX, True, HeaderInvalid)
    return asked or 0.0


def _update_person_id(query: Query, update: bool) -> str | None:
    text = query.text("update-person-id")
    if text is None:
        return None
    if not update:
        raise ParameterInvalid(name="update", expected="true where update-person-id is given")
    return checked_person_id(text)


def _merge_with(request: Request, query: Query, may_change: bool) -> str | None:
    """The query overrides the header."""
    text = query.text("merge-with")
    name = ROOT_PERSON if text is None else "merge-with"
    text = header_text(request, ROOT_PERSON) if text is None else text
    if text is None:
        return None
    if not may_change:
        raise ParameterInvalid(name=name, expected="sent with insert=true or update=true")
    return checked_person_id(text)


def post_request(request: Request, person: PersonChange) -> PostRequest:
    """A `POST /people`'s options; `person` is from its headers.

    Raises HeaderInvalid, ParameterInvalid, PersonUnknown.
    """
    query = Query(request)
    insert, update = query.flag("insert", True), query.flag("update", True)
    return PostRequest(
        name=person.name,
        external_id=person.external_id,
        details=replace(person, name=None, external_id=None),
        threshold=threshold(request),
        min_cpq=query.number("min-cpq", 1),
        min_fsq=query.number("min-fsq", 1),
        min_fcq=query.number("min-fcq", 1),
        insert=insert,
        update=update,
        insert_all=query.flag("insert_all", False),
        closest_x=query.number("closest-only-x", 1, has_default=False),
        closest_y=query.number("closest-only-y", 1, has_default=False),
        largest_only=query.flag("largest-only", False),
        larger_than=query.number("larger-than", 1, has_default=False) or 0.0,
        min_size_px=_min_size(request, query),
        update_person_id=_update_person_id(query, update),
        merge_with=_merge_with(request, query, insert or update),
        update_if_lower_quality=query.flag("update-if-lower-quality", False),
        update_if_older_days=query.number("update-if-older-than", MAX_DAYS, has_default=False) or 0.0,
        similar_limit=query.whole("similar_limit", 0, 0, MAX_SIMILAR),
    )


def person_id(request: Request) -> str:
    """The person id in the path. Raises PersonUnknown if it is not a UUID."""
    return checked_person_id(request.path_params["person_id"])


def checked_person_id(text: str) -> str:
    """`text` in lower case. Raises PersonUnknown if it is not a UUID."""
    lower = text.lower()
    if not _UUID.fullmatch(lower):
        raise PersonUnknown()
    return lower


def rest_of_path(request: Request, prefix: str) -> str:
    """The text after `prefix` in the path as sent, decoded. An encoded slash is part of the text; a plain final slash
    is not."""
    raw = sent_path(request.scope).encode("latin-1")
    rest = raw.split(b"/", prefix.count("/"))[-1]
    return text_of(unquote_to_bytes(rest.removesuffix(b"/")))


def json_object(data: bytes) -> dict[str, Any]:
    """Raises BodyInvalid."""
    try:
        value = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise BodyInvalid(detail="it is not JSON") from None
    if not isinstance(value, dict):
        raise BodyInvalid(detail="it must be a JSON object")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(name)  # NaN and Infinity are not JSON


def person_ids(body: dict[str, Any]) -> list[str]:
    """The distinct ids of a merge or an unmerge. Raises BodyInvalid, PersonUnknown."""
    ids = body.get("personIds")
    if not isinstance(ids, list) or not 1 <= len(ids) <= MAX_MERGED:
        raise BodyInvalid(detail=f"personIds must be a list of 1 to {MAX_MERGED:,} ids")
    if not all(isinstance(person, str) for person in ids):
        raise BodyInvalid(detail="personIds must hold texts")
    return list(dict.fromkeys(checked_person_id(person) for person in ids))
