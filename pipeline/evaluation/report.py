"""A report: the figures of an experiment as JSON, as lines in a terminal and as one HTML page.

A row has a label, a text for people and an explanation for the page. Rows are grouped in sections; a section may also
have a listing and plots, made only for the page, which needs no network, no script and no other file.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeAlias, TypeVar

from pipeline.store.files.durable import Folder

Result = TypeVar("Result")

LABEL_WIDTH: Final = 12  # columns of a terminal
_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222;
       background: #fff; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #ccc; padding: .25rem .75rem .25rem 0; text-align: left; vertical-align: top; }
td { overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; }
figure { display: inline-block; margin: 0 .5rem .5rem 0; } figcaption { font-size: .8rem; color: #555; }
"""


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
class Section:
    """Rows under one heading, with a paragraph above, and a listing and plots below on the page."""

    title: str
    rows: Sequence[Row] = ()
    text: str = ""
    listing: Callable[[], Table | None] = lambda: None
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


@dataclass(frozen=True)
class Report(Generic[Result]):
    """The figures of an experiment."""

    result: Result
    figures: Mapping[str, Any]  # JSON key -> plain value
    sections: Sequence[Section]

    def as_dict(self) -> dict[str, Any]:
        """The figures, for JSON."""
        return dict(self.figures)

    def lines(self) -> Iterator[str]:
        """The rows for a terminal."""
        for section in self.sections:
            yield from (row.line for row in section.rows if not row.detail)


def write_page(path: Path, title: str, sections: Iterable[Section]) -> None:
    """Writes the page to `path`, completely or not at all, without empty sections.

    Raises StoreFull or StoreUnwritable of its folder.
    """
    body = "\n".join(filter(None, map(_section, sections)))
    text = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{html.escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )
    Folder(path.parent).write(path.name, text.encode("utf-8", "backslashreplace"), "page")


def _section(section: Section) -> str:
    content = [*map(_table, section.tables()), *section.plots()]
    if not content:
        return ""
    paragraph = [f"<p>{html.escape(section.text)}</p>"] if section.text else []
    return "\n".join([f"<h2>{html.escape(section.title)}</h2>", *paragraph, *content])


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.head)
    rows = "\n".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"


def _cell(cell: Cell) -> str:
    if isinstance(cell, (str, int)):
        return html.escape(str(cell))
    return "".join(_picture(picture) for picture in cell)


def _picture(picture: Picture) -> str:
    caption = f"<figcaption>{html.escape(picture.caption)}</figcaption>"
    if picture.uri is None:
        return f"<figure>{caption}</figure>"
    return f'<figure><img src="{html.escape(picture.uri)}" alt="{html.escape(picture.caption)}">{caption}</figure>'
