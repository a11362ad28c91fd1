"""The people of a directory in the orders of the grid, page by page.

A list is cached until a change, so a page needs no query. During constant changes by requests or a run, it may be two
seconds old; a correction shows immediately.
"""

from __future__ import annotations

import bisect
import threading
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Final

from pipeline.jobs.people import People, PersonRow
from pipeline.people.directory import Changed
from pipeline.people.service import IdentityService
from pipeline.serve.cursors import Key, cursor, place_after
from pipeline.texts import nfc
from pipeline.types import utc_now

STALE_S: Final = 2.0
_KEPT: Final = 16  # lists; one of 10,000 people takes about 10 MB


def folded(text: str) -> str:
    """Normalises a text for comparison: NFC, case-folded, underscores as spaces."""
    return nfc(text).casefold().replace("_", " ")


def searched(text: str) -> str:
    """Normalises a text for search: as `folded`, without accents."""
    parts = unicodedata.normalize("NFKD", folded(text))
    return "".join(part for part in parts if not unicodedata.combining(part))


_KEYS: Final[Mapping[str, Callable[[PersonRow], Key]]] = {
    "photos": lambda row: (-row.photos, -row.faces, row.person_id),
    "name": lambda row: (row.name is None, folded(row.name or ""), row.person_id),
    "newest": lambda row: (-row.added_at.timestamp(), row.person_id),
}
_LIKE: Final[Mapping[str, Key]] = {"photos": (0, 0, ""), "name": (False, "", ""), "newest": (0.0, "")}
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
    as_of: datetime  # UTC; later changes may be missing
    changed: Changed
    read_at: float
    _orders: dict[str, list[PersonRow]] = field(default_factory=dict)

    def page(self, sort: str, show: str, text: str, after: str | None, count: int) -> PeoplePage:
        """Returns at most `count` people of `show` (SHOWS) behind the cursor `after`, whose name and external id
        contain all words of the text, or whose id begins with it. Raises ParameterInvalid for no cursor of this
        order."""
        shown, words, id_start = _SHOWN[show], searched(text).split(), text.strip().casefold()
        chosen = [
            row
            for row in self._ordered(sort)
            if shown(row)
            and (all(word in self._texts[row.person_id] for word in words) or row.person_id.startswith(id_start))
        ]
        start = _behind(after, sort, chosen)
        end = start + count
        more = end < len(chosen)
        return PeoplePage(chosen[start:end], cursor_at(sort, chosen[end - 1]) if more else None, len(chosen))

    def walk(self, sort: str, after: str | None) -> tuple[list[PersonRow], dict[str, int]]:
        """Returns all visible people behind the cursor, and the positions of all visible people by id. Raises
        ParameterInvalid as `page`."""
        shown = [row for row in self._ordered(sort) if not row.hidden]
        return shown[_behind(after, sort, shown) :], {row.person_id: place for place, row in enumerate(shown)}

    def named(self, name: str) -> list[PersonRow]:
        """All people of this name, ignoring case."""
        wanted = folded(name)
        return [row for row in self.rows.values() if row.name is not None and folded(row.name) == wanted]

    def namesakes(self, row: PersonRow) -> int:
        """How many others, not hidden, have the person's name, ignoring case."""
        return 0 if row.name is None else self._names[folded(row.name)] - (not row.hidden)

    @cached_property
    def _names(self) -> Counter[str]:
        return Counter(folded(row.name) for row in self.rows.values() if row.name is not None and not row.hidden)

    @cached_property
    def _texts(self) -> dict[str, str]:
        """person id -> what is searched for words."""
        return {row.person_id: searched(f"{row.name or ''} {row.external_id or ''}") for row in self.rows.values()}

    def _ordered(self, sort: str) -> list[PersonRow]:
        if sort not in self._orders:
            self._orders[sort] = sorted(self.rows.values(), key=_KEYS[sort])
        return self._orders[sort]


def cursor_at(sort: str, row: PersonRow) -> str:
    """The position of a person in an order."""
    return cursor([sort], _KEYS[sort](row))


def _behind(after: str | None, sort: str, rows: Sequence[PersonRow]) -> int:
    """The first position behind a cursor."""
    place = place_after(after, [sort], _LIKE[sort])
    return 0 if place is None else bisect.bisect_right(rows, place, key=_KEYS[sort])


class PeopleLists:
    """The lists of viewed directories. Thread-safe."""

    def __init__(self, service: IdentityService) -> None:
        self._service = service
        self._locks = [threading.Lock() for _ in range(_KEPT)]  # a slow directory delays few others
        self._lists: dict[tuple[int, str], PeopleList] = {}  # ordered by reading time, oldest first

    def of(self, place: tuple[int, str], people: People) -> PeopleList:
        """The list of a directory with these `people`."""
        known = self._fresh(place)
        if known is not None:
            return known
        with self._reading(place):  # concurrent requests share one reading
            return self._fresh(place) or self._read(place, people)

    def forget(self, place: tuple[int, str]) -> None:
        """Makes the next page show the current state."""
        with self._reading(place):  # a reading in progress may be older
            self._lists.pop(place, None)

    def _reading(self, place: tuple[int, str]) -> threading.Lock:
        return self._locks[hash(place) % len(self._locks)]

    def _changed(self, place: tuple[int, str]) -> Changed:
        with self._service.directories.using(*place) as directory:
            return directory.changed

    def _fresh(self, place: tuple[int, str]) -> PeopleList | None:
        known = self._lists.get(place)
        if known is None:
            return None
        changed = self._changed(place)
        is_same = known.changed is changed or time.monotonic() < known.read_at + STALE_S
        return known if is_same and known.changed.corrections == changed.corrections else None

    def _read(self, place: tuple[int, str], people: People) -> PeopleList:
        read_at, as_of, changed = time.monotonic(), utc_now(), self._changed(place)
        made = PeopleList({row.person_id: row for row in people.all()}, as_of, changed, read_at)
        self._lists.pop(place, None)
        self._lists[place] = made
        for other in [*self._lists][:-_KEPT]:
            self._lists.pop(other, None)
        return made
