"""Renders a page: one HTML file, from a template that escapes all values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipeline.texts import counted

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

SHORT_ID: Final = 8  # letters of an id, which commands accept
_TEMPLATES: Final = Path(__file__).with_name("templates")


def render(template: str, **values: Any) -> bytes:
    """The page in UTF-8."""
    return _environment().get_template(template).render(**values).encode("utf-8", "backslashreplace")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"listed": listed, "thousands": "{:,}".format, "breakable": breakable, "counted": counted}
    return environment


def listed(counts: Mapping[str, int | None]) -> str:
    """As in "3 ok, 1 truncated"."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()) if count is not None) or "none"


def breakable(name: str) -> Markup:
    """A name with line breaks allowed behind underscores, which names of folders have."""
    from markupsafe import Markup, escape

    return escape(name).replace("_", Markup("_<wbr>"))
