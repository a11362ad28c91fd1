"""The report of an experiment: its figures as JSON, as lines in a terminal and as one page; and what they leave out.

Tables and plots are made only for the page. A plot is SVG text; plotting opens no window, writes no file and does not
change matplotlib's state.
"""

from __future__ import annotations

import io
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import numpy as np

from pipeline.errors import InputError
from pipeline.report.page import render
from pipeline.store import Folder
from pipeline.types import ACCEPTED_STATUSES, DoubleArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Result = TypeVar("Result")

LABEL_WIDTH: Final = 12  # columns of a terminal
NO_FACE: Final = "no face found"
LISTED: Final = "in the list of photos to leave out"
NOT_IN_STORE: Final = "not in the store"
NOT_KEPT: Final = "the store keeps no embedding of a face that its quality gate rejected"
DELETED: Final = "a person on it was deleted from the store"
EXAMPLES: Final = 10  # paths kept for each reason
_SIZE_INCHES: Final = (7.5, 4.5)  # of a plot
_TEXT: Final = "Rows of the input that these figures do not include."
_GATED: Final = (
    "The worst faces are left out, which flatters the figures: a store that was made with --min-cpq 0 --min-fsq 0 "
    "--min-fcq 0 keeps all of them."
)


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
    """A small picture in a cell; `uri`: a `data:` address, or None for only the caption."""

    uri: str | None
    caption: str


# Numbers are shown unrounded: whoever fills a table decides on significant digits.
Cell: TypeAlias = str | int | Sequence[Picture]


@dataclass(frozen=True)
class Table:
    """A table with a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Section:
    """Rows under one heading, with a paragraph above, and tables and plots below on the page."""

    title: str
    rows: Sequence[Row] = ()
    text: str = ""
    # Read once, when the page is written, so a generator is lazy. A text is a plot in SVG.
    parts: Iterable[Table | str] = ()


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
    """Writes the page to `path` atomically, without empty sections. Raises StoreFull or StoreUnwritable of its
    folder."""
    Folder(path.parent).write(path.name, render("evaluation.html", title=title, sections=sections), "page")


class Skipped:
    """Counts by reason, with the first few paths of each."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = defaultdict(list)

    def add(self, reason: str, path: str) -> None:
        self._counts[reason] += 1
        if len(self._examples[reason]) < EXAMPLES:
            self._examples[reason].append(path)

    @property
    def counts(self) -> dict[str, int]:
        """Photos by reason, the most frequent first."""
        return dict(self._counts.most_common())

    def as_dict(self) -> dict[str, Any]:
        """`skipped` by reason, and `skipped_examples`, the first paths of each."""
        return {"skipped": self.counts, "skipped_examples": {reason: self._examples[reason] for reason in self.counts}}

    def section(self) -> Section:
        """The rows of a report, one for each reason."""
        rows = []
        for reason, count in self.counts.items():
            first, *more = self._examples[reason][:3]
            remark = f"also {', '.join(more)}" if more else ""
            rows.append(Row("skipped", f"{count:,}: {reason} (such as {first})", explanation=remark))
        if any(NOT_KEPT in reason for reason in self._counts):
            rows.append(Row("", _GATED))
        return Section("What was left out", rows, _TEXT)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Adds the counts to an InputError's message: they may explain the lack of data."""
        try:
            yield
        except InputError as exc:
            if self._counts:
                exc.args = (f"{exc} Left out: {self.summary()}.",)
            raise

    def summary(self) -> str:
        """The counts in one line."""
        return ", ".join(f"{count:,}: {reason}" for reason, count in self.counts.items())


def unusable(photo: Mapping[str, Any] | None) -> str | None:
    """Why a store's photo (`status`, `reason`, `deleted`) is left out; None if usable."""
    if photo is None:
        return NOT_IN_STORE
    if photo["status"] not in ACCEPTED_STATUSES:
        return f"{photo['status']}: {photo['reason']}"
    return DELETED if photo["deleted"] else None


def line_plot(
    title: str, x: Sequence[float], curves: Sequence[float] | Mapping[str, Sequence[float]], **axes: Any
) -> str:
    """A curve, or several by label, as one SVG element, their points joined in order. `axes`: properties of
    matplotlib's axes. A logarithmic axis omits points that are not positive."""
    figure, drawn = _figure(title)
    log_x, log_y = (axes.get(name) == "log" for name in ("xscale", "yscale"))
    labelled = curves if isinstance(curves, Mapping) else {"": curves}
    points: list[tuple[float, float]] = []
    for label, y in labelled.items():
        points = [(a, b) for a, b in zip(x, y, strict=True) if (a > 0 or not log_x) and (b > 0 or not log_y)]
        drawn.plot([a for a, _ in points], [b for _, b in points], label=label)
    if len(labelled) > 1:
        drawn.legend()
    if not points:  # a scale without points is an error
        axes = {name: value for name, value in axes.items() if name not in ("xscale", "yscale")}
    drawn.set(**axes)
    drawn.grid(visible=True, which="both", alpha=0.3)
    return _svg(figure, title)


def histogram(
    title: str, groups: Mapping[str, DoubleArray], edges: DoubleArray, xlabel: str, marks: Mapping[str, float]
) -> str:
    """The densities of groups counted in common bins, as one SVG element: `groups` are counts [b], `edges` [b + 1]
    ascending; `marks` are vertical lines."""
    figure, axes = _figure(title)
    for name, counts in groups.items():
        if counts.sum():
            axes.stairs(counts / (counts.sum() * np.diff(edges)), edges, label=name, fill=True, alpha=0.5)
    for name, position in marks.items():
        axes.axvline(position, color="black", linestyle="--", linewidth=1, label=name)
    axes.set(xlabel=xlabel, ylabel="density")
    axes.legend()
    return _svg(figure, title)


def _figure(title: str) -> tuple[Figure, Axes]:
    # A message about its font cache would appear in a command's output.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    return figure, axes


def _svg(figure: Figure, title: str) -> str:
    """The <svg> element alone. The title salts its ids, as a page has several plots."""
    import matplotlib

    out = io.StringIO()
    # Text stays text, for searching and screen readers. No date, so that the same figures give the same page.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :].strip()
