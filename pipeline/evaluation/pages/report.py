"""A report as a list of rows: the source of its JSON, its lines in a terminal and its page.

A row has a label, a text for people, the same as plain values under their JSON keys, and an explanation for the page.
Rows are grouped in sections; a section may also have a listing and plots, made only for the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeAlias, TypeVar

Result = TypeVar("Result")

LABEL_WIDTH: Final = 12  # columns of a terminal


@dataclass(frozen=True)
class Row:
    """One line of a report."""

    label: str = ""  # shorter than LABEL_WIDTH; empty: the row continues the one above
    text: str = ""  # empty: JSON alone
    values: Mapping[str, Any] = field(default_factory=dict)  # JSON key -> plain value
    explanation: str = ""
    detail: bool = False  # on the page but not in a terminal

    @property
    def line(self) -> str:
        return f"{self.label:<{LABEL_WIDTH}}{self.text}"


@dataclass(frozen=True)
class Picture:
    """A small picture in a cell; `uri` is a `data:` address, or None: only the caption is shown."""

    uri: str | None
    caption: str


def values_of(result: object, *names: str) -> dict[str, Any]:
    """The attributes of `result` under their own names, for `Row.values`."""
    return {name: getattr(result, name) for name in names}


# Numbers are shown as they are: whoever fills a table decides how many digits are significant.
Cell: TypeAlias = str | int | Sequence[Picture]


@dataclass(frozen=True)
class Table:
    """A table with a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Section:
    """Rows under one heading, with a paragraph above, and a listing and plots below on the page."""

    title: str
    rows: Sequence[Row] = ()
    text: str = ""
    listing: Callable[[], Table | None] = lambda: None
    plots: Callable[[], Sequence[str]] = tuple  # SVG text, as `plots` makes it

    def tables(self) -> Iterator[Table]:
        """The rows as a table, and the listing, where there are any."""
        shown = [row for row in self.rows if row.text]
        if shown and any(row.explanation for row in shown):
            yield Table(("what", "value", "meaning"), [(row.label, row.text, row.explanation) for row in shown])
        elif shown:
            yield Table(("what", "value"), [(row.label, row.text) for row in shown])
        listing = self.listing()
        if listing is not None and listing.rows:
            yield listing


@dataclass(frozen=True)
class Report(Generic[Result]):
    """The figures of an experiment."""

    result: Result
    sections: Sequence[Section]

    def as_dict(self) -> dict[str, Any]:
        """The values of all rows, for JSON."""
        return {key: value for section in self.sections for row in section.rows for key, value in row.values.items()}

    def lines(self) -> Iterator[str]:
        """The rows for a terminal."""
        for section in self.sections:
            yield from (row.line for row in section.rows if row.text and not row.detail)
