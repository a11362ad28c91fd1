"""Filters, order and pages of `GET /people` and `GET /rootpeople`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import re2  # type: ignore[import-untyped]

from pipeline.errors import ParameterInvalid
from pipeline.people.views import epoch_ms
from pipeline.serve.client_parameters import REFUSED_FILTERS, check_refused
from pipeline.serve.cursors import cursor, place_after
from pipeline.serve.request_parsing import Query
from pipeline.store import PersonRecord
from pipeline.texts import MAX_TEXT, nfc, same_name

PEOPLE_COUNT: Final = 1_000  # per page of `GET /people`, unless `count` is given
ROOTS_COUNT: Final = 100  # of `GET /rootpeople`
MAX_PATTERN: Final = 1_000  # characters
_PATTERN_BYTES: Final = 1 << 20  # the memory limit of a compiled pattern
SORT_ORDERS: Final = {"ascending": False, "descending": True, "asc": False, "desc": True}  # whether it descends
# Filters by equality, and the field that each compares.
EQUALITIES: Final = {
    "first-name": "firstName",
    "last-name": "lastName",
    "person-type": "personType",
    "id-class": "idClass",
    "moniker": "moniker",
    "home-location": "homeLocation",
    "groups": "groups",
}

_INSERTION: Final = ""
_KEYS: Final[dict[str, Callable[[PersonRecord], str | int]]] = {
    _INSERTION: lambda record: 0,  # noqa: ARG005
    "name": lambda record: nfc(record.name or ""),
    "create-date": lambda record: epoch_ms(record.added_at),
    "update-date": lambda record: epoch_ms(record.modified_at),
}


def page(query: Query, records: Iterable[PersonRecord], default_count: int) -> tuple[list[str], dict[str, str | int]]:
    """Returns the ids that a query selects, and their position among all matches for the answer. Raises
    ParameterInvalid and ParameterUnsupported before it reads the records."""
    check_refused(REFUSED_FILTERS, query)
    sort = query.text("sort") or _INSERTION
    key = _KEYS.get(sort, _KEYS[_INSERTION])
    descending = _descending(query.text("sort-order"))
    order = [sort if sort in _KEYS else _INSERTION, descending]
    start = query.whole("start-index", 0, 0)
    state, like = query.text("startIndexState"), ("" if order[0] == "name" else 0, 0)
    after = place_after(state, order, like, "startIndexState", "a nextIndexState of the same listing")
    count = query.whole("count", default_count, 0)
    passes = _filter(query)
    chosen = [((key(record), record.seq), record.person_id) for record in records if passes(record)]
    chosen.sort(reverse=descending)
    if after is None:
        start = min(start, len(chosen))
    else:  # behind the cursor: insertions and deletions since the previous page shift nothing
        start = sum(place >= after if descending else place <= after for place, _ in chosen)
    end = start + count if count else len(chosen)
    listed = [person_id for _, person_id in chosen[start:end]]
    position: dict[str, str | int] = {"startIndex": start}
    if end < len(chosen):
        position["nextIndexState"] = cursor(order, chosen[end - 1][0])
    return listed, position | {"countReturned": len(listed), "totalCount": len(chosen)}


def _filter(query: Query) -> Callable[[PersonRecord], bool]:
    """Returns a test of the query's filters. Raises ParameterInvalid."""
    name_matches = _pattern(query.text("name-pattern"))
    external_ids = frozenset(query.all("external-id"))
    short_id = (_text(query, "short-id") or "").lower()
    equalities = {field: value for name, field in EQUALITIES.items() if (value := _text(query, name))}

    def passes(record: PersonRecord) -> bool:
        return (
            (not external_ids or record.external_id in external_ids)
            and record.person_id.startswith(short_id)
            and all(_has(record, field, value) for field, value in equalities.items())
            and (name_matches is None or (record.name is not None and name_matches(record.name)))
        )

    return passes


def _has(record: PersonRecord, field: str, wanted: str) -> bool:
    names = {"firstName": record.first_name, "lastName": record.last_name}
    if field in names:
        return same_name(names[field], wanted)
    value = record.further_fields.get(field)
    return wanted in value if isinstance(value, list) else value == wanted


def _text(query: Query, name: str) -> str | None:
    """Raises ParameterInvalid if it is longer than documented."""
    text = query.text(name)
    if text is not None and len(text) > MAX_TEXT:
        raise ParameterInvalid(name=name, expected=f"at most {MAX_TEXT:,} characters")
    return text


def _descending(order: str | None) -> bool:
    """Raises ParameterInvalid."""
    if order is None:
        return False
    if order.lower() not in SORT_ORDERS:
        raise ParameterInvalid(name="sort-order", expected=f"one of {', '.join(SORT_ORDERS)}")
    return SORT_ORDERS[order.lower()]


def _pattern(pattern: str | None) -> Callable[[str], bool] | None:
    """Compiles a search with RE2, in time linear in the name's length. Raises ParameterInvalid."""
    if pattern is None:
        return None
    options = re2.Options()
    options.max_mem = _PATTERN_BYTES
    options.log_errors = False
    try:
        if len(pattern) > MAX_PATTERN:
            raise ValueError(pattern)
        compiled = re2.compile(nfc(pattern), options)
    except (re2.error, ValueError):
        expected = f"a regular expression (RE2 syntax) of at most {MAX_PATTERN:,} characters"
        raise ParameterInvalid(name="name-pattern", expected=expected) from None
    return lambda name: compiled.search(nfc(name)) is not None
