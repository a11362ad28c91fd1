"""The plots of an experiment's page, as SVG text.

Plotting opens no window, writes no file and does not change matplotlib's state.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pipeline.types import DoubleArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE_INCHES: Final = (7.5, 4.5)  # of a plot


def line_plot(title: str, x: Sequence[float], y: Sequence[float], **axes: Any) -> str:
    """A curve as one SVG element, its points joined in order. `axes`: properties of matplotlib's axes. A logarithmic
    axis omits points that are not positive."""
    figure, drawn = _figure(title)
    log_x, log_y = (axes.get(name) == "log" for name in ("xscale", "yscale"))
    points = [(a, b) for a, b in zip(x, y, strict=True) if (a > 0 or not log_x) and (b > 0 or not log_y)]
    drawn.plot([a for a, _ in points], [b for _, b in points])
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
