"""One HTML page for one evaluation: a single file that needs no network, no script and no other file."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from pipeline.store.files.durable import Folder

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
class Picture:
    """A small picture in a cell; `uri` is a `data:` address, or None: only the caption is shown."""

    uri: str | None
    caption: str


# Numbers are shown as they are given: whoever fills a table says how many digits mean something.
Cell: TypeAlias = str | int | Sequence[Picture]


@dataclass(frozen=True)
class Table:
    """A table with a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Section:
    """A heading, a paragraph, and perhaps a table and plots (SVG text, as `plots` makes it)."""

    title: str
    text: str = ""
    table: Table | None = None
    plots: Sequence[str] = ()


def write_page(path: Path, title: str, sections: Iterable[Section]) -> None:
    """Writes the page to `path`, whole or not at all. Raises StoreFull or StoreUnwritable of its folder."""
    body = "\n".join(_section(section) for section in sections)
    text = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{html.escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )
    Folder(path.parent).write(path.name, text.encode("utf-8", "backslashreplace"), "page")


def _section(section: Section) -> str:
    parts = [f"<h2>{html.escape(section.title)}</h2>"]
    if section.text:
        parts.append(f"<p>{html.escape(section.text)}</p>")
    if section.table is not None:
        parts.append(_table(section.table))
    return "\n".join([*parts, *section.plots])


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
