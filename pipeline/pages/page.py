"""The page: one HTML file that needs no network, no script and no other file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.pages.sections import Bars, Section, Sheet, Table
from pipeline.store import Folder

if TYPE_CHECKING:
    from jinja2 import Template

_TEMPLATES: Final = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class _Shown:
    """A section with all that it makes for the page."""

    title: str
    text: str
    tables: list[Table]
    sheets: list[Sheet]
    bars: list[Bars]
    plots: list[str]

    @classmethod
    def of(cls, section: Section) -> _Shown:
        sheets = [sheet for sheet in section.sheets() if sheet.pictures]
        bars = [bars for bars in section.bars() if bars.most]
        return cls(section.title, section.text, [*section.tables()], sheets, bars, [*section.plots()])

    def __bool__(self) -> bool:
        return bool(self.tables or self.sheets or self.bars or self.plots)


def page_bytes(title: str, sections: Iterable[Section]) -> bytes:
    """The page in UTF-8, without sections that have nothing to show."""
    filled = [shown for shown in map(_Shown.of, sections) if shown]
    return _template().render(title=title, sections=filled).encode("utf-8", "backslashreplace")


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
