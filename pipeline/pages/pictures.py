"""The pictures of a page, embedded in it: plots as SVG text, and small copies of photos.

Plotting opens no window, writes no file and leaves matplotlib's state alone.
"""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PIL import Image

from pipeline.config import DecodeSettings
from pipeline.errors import ImageRejected
from pipeline.extraction.images.decode import decode_image
from pipeline.extraction.images.files import read_file
from pipeline.types import DoubleArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIDE_PX: Final = 96  # of a small copy
_SIZE_INCHES: Final = (7.5, 4.5)  # of a plot


@dataclass(frozen=True)
class Series:
    """One curve: points in the order in which they are joined."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Axis:
    """The label and scale of an axis. A logarithmic axis leaves out points that are not positive."""

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None


def line_plot(title: str, series: Sequence[Series], x: Axis, y: Axis) -> str:
    """The curves as one SVG element; the legend names them, where there are several."""
    figure, axes = _figure(title)
    for curve in series:
        points = [
            (a, b) for a, b in zip(curve.x, curve.y, strict=True) if (a > 0 or not x.log) and (b > 0 or not y.log)
        ]
        axes.plot([a for a, _ in points], [b for _, b in points], label=curve.name)
    _set_axis(axes, "x", x)
    _set_axis(axes, "y", y)
    axes.grid(visible=True, which="both", alpha=0.3)
    if len(series) > 1:
        axes.legend()
    return _svg(figure, title)


def histogram(
    title: str, groups: Mapping[str, DoubleArray], edges: DoubleArray, x: Axis, marks: Mapping[str, float] | None = None
) -> str:
    """Densities of groups that were counted in common bins, as one SVG element: `groups` are the counts [b] and
    `edges` [b + 1] ascending; `marks` are vertical lines."""
    figure, axes = _figure(title)
    for name, counts in groups.items():
        if counts.sum():
            axes.stairs(counts / (counts.sum() * np.diff(edges)), edges, label=name, fill=True, alpha=0.5)
    for name, position in (marks or {}).items():
        axes.axvline(position, color="black", linestyle="--", linewidth=1, label=name)
    _set_axis(axes, "x", x)
    axes.set_ylabel("density")
    axes.legend()
    return _svg(figure, title)


def _figure(title: str) -> tuple[Figure, Axes]:
    # A message about its font cache would appear in the middle of a command's output.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    return figure, axes


def _set_axis(axes: Any, which: str, axis: Axis) -> None:
    properties: dict[str, object] = {f"{which}label": axis.label}
    if axis.log and any(len(line.get_xdata()) for line in axes.lines):  # without points there is no scale
        properties[f"{which}scale"] = "log"
    if axis.low is not None or axis.high is not None:
        properties[f"{which}lim"] = (axis.low, axis.high)
    axes.set(**properties)


def _svg(figure: Figure, title: str) -> str:
    """The <svg> element alone. The title salts its ids, as a page has several plots."""
    import matplotlib

    out = io.StringIO()
    # Text stays text, for searching and screen readers. No date, so the same figures give the same page.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :].strip()


@dataclass
class Thumbnails:
    """Makes small copies of at most `limit` images, to keep the page small."""

    files: Mapping[str, Path]
    settings: DecodeSettings
    limit: int

    def of(self, path: str) -> str | None:
        """The image at `path`, no side longer than SIDE_PX, as a JPEG in a `data:` address; None where it is missing,
        cannot be read, or exceeds the limit."""
        file = self.files.get(path)
        if file is None or self.limit < 1:
            return None
        try:
            decoded = decode_image(read_file(file, self.settings.max_bytes), self.settings)
        except ImageRejected:
            return None
        self.limit -= 1
        return small_copy(Image.fromarray(decoded.pixels))


def small_copy(picture: Image.Image, side_px: int = SIDE_PX) -> str:
    """The picture, no side longer than `side_px`, as a JPEG in a `data:` address: with SIDE_PX of 2 to 4 KB."""
    small = picture.convert("RGB")
    small.thumbnail((side_px, side_px))
    out = io.BytesIO()
    small.save(out, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode("ascii")
