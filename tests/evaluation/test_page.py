"""Pages and plots: whole in themselves, and safe whatever a file is called."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from pipeline.errors import StoreUnwritable
from pipeline.evaluation.pages.page import write_page
from pipeline.evaluation.pages.plots import Axis, Series, histogram, line_plot
from pipeline.evaluation.pages.report import Picture, Report, Row, Section, Table

SVG = "{http://www.w3.org/2000/svg}"
NASTY = '<script>alert("x")</script>&\udcff'


class Reader(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def curve(title: str) -> str:
    return line_plot(
        title, [Series("a", [1e-3, 1], [0.5, 1]), Series("b", [1e-3, 1], [0, 1])], Axis("x", log=True), Axis("y")
    )


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text("utf-8"))
    return reader


def test_a_page_needs_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    pictures = [Picture("data:image/png;base64,AA==", "one"), Picture(None, "two")]
    table = Table(("name", "count", "photos"), [("Ada", 3, pictures)])
    section = Section("First", text="Some text.", listing=lambda: table, plots=lambda: [curve("ROC"), curve("DET")])
    write_page(page, "Title", [section, Section("Empty", text="No text.")])
    reader = read(page)
    names = [name for name, _ in reader.tags]
    assert names.count("h2") == 1  # sections with nothing to show are left out
    assert names.count("svg") == 2
    assert names.count("td") == 3
    assert not {"script", "link", "iframe"} & set(names)
    sources = [value for _, attributes in reader.tags for key, value in attributes.items() if key in ("src", "href")]
    assert all(source is not None and source.startswith(("data:", "#")) for source in sources)
    assert "3" in reader.text
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    table = Table((NASTY,), [(NASTY,), ([Picture('data:," onerror="x', NASTY)],)])
    rows = [Row(NASTY, NASTY, explanation=NASTY)]
    write_page(page, NASTY, [Section(NASTY, rows, NASTY, lambda: table)])
    reader = read(page)
    assert "script" not in [name for name, _ in reader.tags]
    (image,) = [attributes for name, attributes in reader.tags if name == "img"]
    assert image.keys() == {"src", "alt"}


def test_one_list_of_rows_makes_json_lines_and_tables() -> None:
    rows = [
        Row("recall", "50.00%", {"recall": 0.5}, "the share that was found"),
        Row("", "and a second line", {"found": 1}),
        Row("F", "0.6", {"f": 0.6}, detail=True),
        Row(values={"curve": [1, 2]}),
    ]
    plain = Section("Plain", [Row("images", "2", {"images": 2})], listing=lambda: Table(("name",), []))
    report = Report(None, [Section("Rates", rows), plain])
    assert report.as_dict() == {"recall": 0.5, "found": 1, "f": 0.6, "curve": [1, 2], "images": 2}
    assert list(report.lines()) == ["recall      50.00%", "            and a second line", "images      2"]
    tables = [table for section in report.sections for table in section.tables()]
    assert [table.head for table in tables] == [("what", "value", "meaning"), ("what", "value")]
    assert tables[0].rows[0] == ("recall", "50.00%", "the share that was found")
    assert [row[0] for row in tables[0].rows] == ["recall", "", "F"]
    assert tables[1].rows == [("images", "2")]


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreUnwritable):
        write_page(tmp_path / "absent" / "page.html", "Title", [])


def test_plots_are_svg_with_their_text() -> None:
    before = dict(matplotlib.rcParams)
    root = ElementTree.fromstring(curve("My <title> & more"))
    assert root.tag == f"{SVG}svg"
    texts = {"".join(text.itertext()) for text in root.iter(f"{SVG}text")}
    assert {"My <title> & more", "x", "y", "a", "b"} <= texts
    assert dict(matplotlib.rcParams) == before


def test_the_same_figures_give_the_same_plot_and_others_share_no_ids() -> None:
    assert curve("ROC") == curve("ROC")
    clips = [
        {element.get("id") for element in ElementTree.fromstring(curve(title)).iter(f"{SVG}clipPath")}
        for title in ("ROC", "DET")
    ]
    assert clips[0]
    assert not clips[0] & clips[1]


def test_points_without_a_logarithm_are_left_out() -> None:
    svg = line_plot("t", [Series("a", [0, 1e-2, 1], [0, 0.5, 1])], Axis("x", log=True), Axis("y", log=True))
    assert "nan" not in svg.lower()
    ElementTree.fromstring(svg)


def test_a_curve_without_any_logarithm_is_an_empty_plot() -> None:
    svg = line_plot("t", [Series("a", [0.1, 1], [0, 0])], Axis("x", log=True), Axis("y", log=True))
    ElementTree.fromstring(svg)


def test_a_histogram_of_nothing_is_no_error() -> None:
    edges = np.linspace(0, 4, 9)
    groups = {"some": np.arange(8.0), "none": np.zeros(8)}
    texts = {
        "".join(t.itertext())
        for t in ElementTree.fromstring(histogram("h", groups, edges, Axis("d"), {"T": 0.5})).iter(f"{SVG}text")
    }
    assert {"some", "T", "d"} <= texts
    assert "none" not in texts
