"""Writes the HTML page of an evaluation: one file that needs no network, no script and no other file."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pipeline.evaluation.pages.report import Cell, Picture, Section, Table
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
