"""A page: sections of rows, tables, sheets of pictures, bars and plots, as one HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from pipeline.store import Folder

if TYPE_CHECKING:
    from jinja2 import Template

LABEL_WIDTH: Final = 12  # columns of a terminal
SHORT_ID: Final = 8  # letters of an id, which commands take for it
_TEMPLATES: Final = Path(__file__).with_name("templates")


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
    caption: str = ""


# Numbers are shown as they are: whoever fills a table decides how many digits are significant.
Cell: TypeAlias = str | int | Sequence[Picture]


@dataclass(frozen=True)
class Table:
    """A table with a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def __bool__(self) -> bool:
        return bool(self.rows)


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
        return max(self.counts)

    def __bool__(self) -> bool:
        return any(self.counts)


@dataclass(frozen=True)
class Section:
    """Rows under one heading, with a paragraph above, and further parts below on the page."""

    title: str
    rows: Sequence[Row] = ()
    text: str = ""
    # Read once, when the page is written: a generator makes them only then. A text is a plot in SVG.
    parts: Iterable[Table | Sheet | Bars | str] = ()

    def tables(self) -> Iterator[Table]:
        """The rows as a table, if there are any."""
        if any(row.explanation for row in self.rows):
            yield Table(("what", "value", "meaning"), [(row.label, row.text, row.explanation) for row in self.rows])
        elif self.rows:
            yield Table(("what", "value"), [(row.label, row.text) for row in self.rows])


def page_bytes(title: str, sections: Iterable[Section]) -> bytes:
    """The page in UTF-8, without parts and sections that have nothing to show."""
    shown = []
    for section in sections:
        parts = [part for part in (*section.tables(), *section.parts) if part]
        kinds = groupby(parts, lambda part: type(part).__name__)
        if parts:
            shown.append((section, [(kind, list(group)) for kind, group in kinds]))
    return _template().render(title=title, sections=shown).encode("utf-8", "backslashreplace")


def write_page(path: Path, title: str, sections: Iterable[Section]) -> None:
    """Writes the page to `path`, completely or not at all. Raises StoreFull or StoreUnwritable of its folder."""
    Folder(path.parent).write(path.name, page_bytes(title, sections), "page")


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")


def listed(counts: Mapping[str, int]) -> str:
    """As in "3 ok, 1 truncated"."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
