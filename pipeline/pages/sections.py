"""What is on a page, and in a terminal's report: rows, tables, sheets of pictures and plots, in sections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

LABEL_WIDTH: Final = 12  # columns of a terminal


@dataclass(frozen=True)
class Row:
    """One line of a report."""

    label: str  # shorter than LABEL_WIDTH; empty: the row continues the one above
    text: str
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


# Numbers are shown as they are: whoever fills a table decides how many digits are significant.
Cell: TypeAlias = str | int | Sequence[Picture]


@dataclass(frozen=True)
class Table:
    """A table with a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Sheet:
    """Pictures that belong together, such as the faces of a person, under a line of text, and a note below it."""

    title: str
    pictures: Sequence[Picture]
    note: str = ""


@dataclass(frozen=True)
class Bars:
    """How often a measure was in each bin. Drawn by the page itself: matplotlib takes most of a second to load."""

    title: str
    counts: Sequence[int]  # of the bins, each `width` wide, from 0
    width: float
    marks: Mapping[str, float] = field(default_factory=dict)  # limits that are drawn in, by name

    @property
    def end(self) -> float:
        return len(self.counts) * self.width

    @property
    def most(self) -> int:
        return max(self.counts, default=0)


@dataclass(frozen=True)
class Section:
    """Rows under one heading, with a paragraph above, and a listing, sheets, bars and plots below on the page."""

    title: str
    rows: Sequence[Row] = ()
    text: str = ""
    listing: Callable[[], Table | None] = lambda: None
    sheets: Callable[[], Iterable[Sheet]] = tuple
    bars: Callable[[], Iterable[Bars]] = tuple
    plots: Callable[[], Sequence[str]] = tuple  # SVG text, as `pictures` makes it

    def tables(self) -> Iterator[Table]:
        """The rows as a table, and the listing, where there are any."""
        if any(row.explanation for row in self.rows):
            yield Table(("what", "value", "meaning"), [(row.label, row.text, row.explanation) for row in self.rows])
        elif self.rows:
            yield Table(("what", "value"), [(row.label, row.text) for row in self.rows])
        listing = self.listing()
        if listing is not None and listing.rows:
            yield listing
