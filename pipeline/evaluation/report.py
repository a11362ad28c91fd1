"""The report of an experiment: its figures as JSON, as lines in a terminal and as one page.

A row has a label, a text for people and an explanation for the page. Rows are grouped in sections; a section may also
have a listing and plots, made only for the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pipeline.pages.sections import Section

Result = TypeVar("Result")


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
