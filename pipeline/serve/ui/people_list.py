"""The people of a directory in the orders of the grid, page by page.

A list is read from the store when it is first wanted and after each change, and kept: a page costs no query. While
requests or a run change the directory all the time, a list may be two seconds old; a correction shows at once.
"""

from __future__ import annotations

import base64
import bisect
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias

from pipeline.errors import ParameterInvalid
from pipeline.jobs.people import People, PersonRow
from pipeline.people.service import IdentityService, Moment
from pipeline.store import utc_now
from pipeline.texts import nfc

STALE_S: Final = 2.0
_KEPT: Final = 16  # lists; one of 10,000 people takes about 10 MB
Key: TypeAlias = list[Any]  # numbers and texts, as JSON has them


def folded(text: str) -> str:
    """A text as it is compared by: without case, and in one form of Unicode."""
    return nfc(text).casefold()


_KEYS: Final[Mapping[str, Callable[[PersonRow], Key]]] = {
    "photos": lambda row: [-row.photos, -row.faces, row.person_id],
    "name": lambda row: [row.name is None, folded(row.name or ""), row.person_id],
    "newest": lambda row: [-row.added_at.timestamp(), row.person_id],
}
_SHOWN: Final[Mapping[str, Callable[[PersonRow], bool]]] = {
    "all": lambda row: not row.hidden,
    "unnamed": lambda row: not row.hidden and row.name is None,
    "named": lambda row: not row.hidden and row.name is not None,
    "hidden": lambda row: row.hidden,
}
SORTS, SHOWS = tuple(_KEYS), tuple(_SHOWN)


@dataclass(frozen=True)
class PeoplePage:
    """Part of a list."""

    rows: Sequence[PersonRow]
    next: str | None  # the cursor of the next page
    total: int  # in all pages


@dataclass
class PeopleList:
    """The people of a directory as they were when it was read."""

    rows: Mapping[str, PersonRow]  # by person id
    as_of: datetime  # UTC; what was changed later may be missing
    moment: Moment
    read_at: float
    _orders: dict[str, tuple[list[Key], list[PersonRow]]] = field(default_factory=dict)

    def page(self, sort: str, show: str, text: str, after: str | None, count: int) -> PeoplePage:
        """At most `count` of those that `show` names (SHOWS) and that have the text in name or external id, or whose id
        begins with it, behind the cursor `after`. Raises ParameterInvalid for no cursor of this order."""
        keys, rows = self._order(sort)
        fits = _test(show, folded(text))
        chosen = [place for place, row in enumerate(rows) if fits(row)]
        start = 0
        if after is not None:
            start = bisect.bisect_left(chosen, bisect.bisect_right(keys, cursor_key(after, sort, keys)))
        end = start + count
        last = chosen[end - 1] if end < len(chosen) else None
        return PeoplePage(
            [rows[place] for place in chosen[start:end]],
            None if last is None else cursor(sort, keys[last]),
            len(chosen),
        )

    def walk(self, sort: str, after: str | None) -> tuple[list[tuple[Key, PersonRow]], dict[str, int]]:
        """Everybody behind the cursor who is not hidden, with the key of their place; and the place of all of them by
        id. Raises ParameterInvalid as `page`."""
        keys, rows = self._order(sort)
        start = 0 if after is None else bisect.bisect_right(keys, cursor_key(after, sort, keys))
        shown = [(place, row) for place, row in enumerate(rows) if not row.hidden]
        rest = [(keys[place], row) for place, row in shown if place >= start]
        return rest, {row.person_id: place for place, row in shown}

    def named(self, name: str) -> list[PersonRow]:
        """Everybody of this name, in whatever case."""
        wanted = folded(name)
        return [row for row in self.rows.values() if row.name is not None and folded(row.name) == wanted]

    def _order(self, sort: str) -> tuple[list[Key], list[PersonRow]]:
        if sort not in self._orders:
            pairs = sorted(((_KEYS[sort](row), row) for row in self.rows.values()), key=lambda pair: pair[0])
            self._orders[sort] = [key for key, _ in pairs], [row for _, row in pairs]
        return self._orders[sort]


def _test(show: str, text: str) -> Callable[[PersonRow], bool]:
    shown = _SHOWN[show]
    if not text:
        return shown
    return lambda row: (
        shown(row)
        and (text in folded(row.name or "") or text in folded(row.external_id or "") or row.person_id.startswith(text))
    )


def cursor(order: str, key: Key) -> str:
    """A place in an order as text."""
    return base64.urlsafe_b64encode(json.dumps([order, *key]).encode()).decode().rstrip("=")


def cursor_key(text: str, order: str, like: Sequence[Key]) -> Key:
    """The place that `cursor` wrote. Raises ParameterInvalid unless it is one of this order, and of the same types as
    those of `like`."""
    try:
        found, *key = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
        fits = found == order and all(
            _is_number(part) if isinstance(other, (int, float)) else isinstance(part, str)
            for part, other in zip(key, like[0] if like else key, strict=True)
        )
    except (ValueError, TypeError, RecursionError):
        fits = False
    if not fits:
        raise ParameterInvalid(name="after", expected="the `next` of the same question")
    return list(key)


def _is_number(part: object) -> bool:
    """One that a place may have: Python's JSON has larger ones, infinity and NaN as well."""
    return isinstance(part, (int, float)) and abs(part) < 2**63


class PeopleLists:
    """The lists of all directories that somebody looks at. Any threads may use it."""

    def __init__(self, service: IdentityService, clock: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        self._clock = clock
        self._lock = threading.Lock()
        self._lists: OrderedDict[tuple[int, str], PeopleList] = OrderedDict()
        self._reading: dict[tuple[int, str], threading.Lock] = {}

    def of(self, account_id: int, directory: str, people: People) -> PeopleList:
        """The list of a directory, whose `people` these are."""
        key = account_id, directory
        with self._read_by_one(key):  # several pages that are asked for at once share one reading
            now, as_of, moment = self._clock(), utc_now(), self._service.moment(account_id, directory)
            with self._lock:
                known = self._lists.get(key)
                if known is not None and _is_fresh(known, moment, now):
                    self._lists.move_to_end(key)
                    return known
            made = PeopleList({row.person_id: row for row in people.all()}, as_of, moment, now)
            with self._lock:
                self._lists[key] = made
                self._lists.move_to_end(key)
                while len(self._lists) > _KEPT:
                    old, _ = self._lists.popitem(last=False)
                    self._reading.pop(old, None)
            return made

    def forget(self, place: tuple[int, str]) -> None:
        """The next page shows what there is by then."""
        with self._read_by_one(place), self._lock:  # a reading that has begun may be from before
            self._lists.pop(place, None)

    def _read_by_one(self, place: tuple[int, str]) -> threading.Lock:
        with self._lock:
            return self._reading.setdefault(place, threading.Lock())


def _is_fresh(known: PeopleList, moment: Moment, now: float) -> bool:
    if known.moment.view is moment.view and known.moment.corrections == moment.corrections:
        return True
    return known.moment.corrections == moment.corrections and now < known.read_at + STALE_S
