"""Reports, their pages with plots and thumbnails, and what they say of photos that are left out."""

from __future__ import annotations

import base64
import io
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image

from pipeline.config import DecodeSettings
from pipeline.errors import InputError, StoreMissing, StoreUnwritable, TooLittleData
from pipeline.evaluation.clustering import Thumbnails
from pipeline.evaluation.report import (
    EXAMPLES,
    NOT_IN_STORE,
    NOT_KEPT,
    Picture,
    Report,
    Row,
    Section,
    Skipped,
    Table,
    histogram,
    line_plot,
    write_page,
)
from pipeline.report.pictures import SIDE_PX

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
    return line_plot(title, [1e-3, 1], [0.5, 1], xlabel="x", xscale="log", ylabel="y")


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text("utf-8"))
    return reader


@pytest.mark.slow
def test_a_page_needs_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    pictures = [Picture("data:image/png;base64,AA==", "one"), Picture(None, "two")]
    table = Table(("name", "count", "photos"), [("Ada", 3, pictures)])
    section = Section("First", text="Some text.", parts=(part for part in (table, curve("ROC"), curve("DET"))))
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
    write_page(page, NASTY, [Section(NASTY, rows, NASTY, [table])])
    reader = read(page)
    assert "script" not in [name for name, _ in reader.tags]
    (image,) = [attributes for name, attributes in reader.tags if name == "img"]
    assert image.keys() == {"src", "alt"}


def test_rows_make_lines_and_tables(tmp_path: Path) -> None:
    rows = [
        Row("recall", "50.00%", "the share that was found"),
        Row("", "and a second line"),
        Row("F", "0.6", detail=True),
    ]
    plain = Section("Plain", [Row("images", "2")], parts=[Table(("name",), [])])
    report = Report(None, {}, [Section("Rates", rows), plain])
    assert list(report.lines()) == ["recall      50.00%", "            and a second line", "images      2"]
    write_page(tmp_path / "page.html", "Title", report.sections)
    body = ElementTree.fromstring(
        (tmp_path / "page.html").read_text("utf-8").partition("</head>")[2].removesuffix("</html>\n")
    )
    tables = [[[cell.text for cell in row] for row in table.iter("tr")] for table in body.iter("table")]
    assert tables == [
        [
            ["what", "value", "meaning"],
            ["recall", "50.00%", "the share that was found"],
            [None, "and a second line", None],
            ["F", "0.6", None],
        ],
        [["what", "value"], ["images", "2"]],
    ]


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnwritable):
        write_page(tmp_path / "file" / "page.html", "Title", [])


def test_plots_are_svg_with_their_text() -> None:
    before = dict(matplotlib.rcParams)
    root = ElementTree.fromstring(curve("My <title> & more"))
    assert root.tag == f"{SVG}svg"
    texts = {"".join(text.itertext()) for text in root.iter(f"{SVG}text")}
    assert {"My <title> & more", "x", "y"} <= texts
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
    svg = line_plot("t", [0, 1e-2, 1], [0, 0.5, 1], xscale="log", yscale="log")
    assert "nan" not in svg.lower()
    ElementTree.fromstring(svg)


def test_a_curve_without_any_logarithm_is_an_empty_plot() -> None:
    svg = line_plot("t", [0.1, 1], [0, 0], xscale="log", yscale="log")
    ElementTree.fromstring(svg)


def test_a_histogram_of_nothing_is_no_error() -> None:
    edges = np.linspace(0, 4, 9)
    groups = {"some": np.arange(8.0), "none": np.zeros(8)}
    texts = {
        "".join(t.itertext())
        for t in ElementTree.fromstring(histogram("h", groups, edges, "d", {"T": 0.5})).iter(f"{SVG}text")
    }
    assert {"some", "T", "d"} <= texts
    assert "none" not in texts


def test_a_picture_is_small_upright_and_whole(hopper_path: Path, tmp_path: Path) -> None:
    turned = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    Image.open(hopper_path).save(turned, exif=exif)
    made = Thumbnails({"hopper": hopper_path, "turned": turned}, DecodeSettings(), limit=2)
    for name, size in (("hopper", (82, SIDE_PX)), ("turned", (SIDE_PX, 82))):
        start, _, data = (made.of(name) or "").partition(",")
        assert start == "data:image/jpeg;base64"
        assert Image.open(io.BytesIO(base64.b64decode(data))).size == size


def test_there_are_no_more_than_asked_for(hopper_path: Path, astronaut_path: Path) -> None:
    made = Thumbnails({"a": hopper_path, "b": astronaut_path}, DecodeSettings(), limit=1)
    assert made.of("a") is not None
    assert made.of("b") is None


def test_what_cannot_be_shown_takes_no_room(hopper_path: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(hopper_path.read_bytes()[:2000])
    files = {"broken": tmp_path / "broken.jpg", "gone": tmp_path / "gone.jpg", "good": hopper_path}
    made = Thumbnails(files, DecodeSettings(), limit=1)
    assert made.of("unknown") is made.of("broken") is made.of("gone") is None
    assert made.of("good") is not None


def filled() -> Skipped:
    skipped = Skipped()
    skipped.add("missing: no such file", "/a.jpg")
    for number in range(EXAMPLES + 1):
        skipped.add(NOT_IN_STORE, f"/{number}.jpg")
    return skipped


def test_counts_the_most_frequent_first_with_a_few_examples() -> None:
    figures = filled().as_dict()
    assert list(figures["skipped"].items()) == [(NOT_IN_STORE, EXAMPLES + 1), ("missing: no such file", 1)]
    assert len(figures["skipped_examples"][NOT_IN_STORE]) == EXAMPLES
    assert [row.line for row in filled().section().rows] == [
        f"skipped     {EXAMPLES + 1}: not in the store (such as /0.jpg)",
        "skipped     1: missing: no such file (such as /a.jpg)",
    ]
    assert not Skipped().section().rows


def test_too_little_input_is_explained() -> None:
    counts = r"Left out: 11: not in the store, 1: missing: no such file\."
    with pytest.raises(TooLittleData, match=rf"enough\. {counts}$") as told, filled().explaining():
        raise TooLittleData(fmr="0.1", detail="not enough")
    assert told.value.fields["fmr"] == "0.1"
    with pytest.raises(InputError, match=r"^Nothing\.$"), Skipped().explaining():
        raise InputError(message="Nothing.")
    with pytest.raises(StoreMissing) as other, filled().explaining():
        raise StoreMissing(path="/store")
    assert "Left out" not in str(other.value)


def test_faces_that_the_gate_rejected_are_remarked_on() -> None:
    skipped = filled()
    assert "flatters" not in str(skipped.section().rows)
    skipped.add(f"a photo of the pair: {NOT_KEPT}", "/b.jpg")
    assert "flatters" in skipped.section().rows[-1].line
