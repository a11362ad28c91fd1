"""The report in a browser: axe-core, its height, its pages of paper, and its links into the page of a server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from coded_faces import Shown

from pipeline.config import ReportSettings
from pipeline.jobs.store import Store
from pipeline.run.page import write_report_page
from tests.browser.opened import AXE, Opened
from tests.browser.served import DOUBT, USER, Served, make_store, serving
from tests.people.coded_archive import SETTINGS, run_over, write_photo

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PEOPLE, HIGHEST_PX, MOST_SHEETS = 350, 6000, 6
LOOKS: Mapping[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 740}, "is_mobile": True},
}


NAMES = ("Ada", "A_name_of_a_folder_that_is_long", "somebody " * 9, "\u202eturned", '<b>"bold"</b>')


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """350 people on 600 photos, some with names, and no section of the report is empty: pairs, people together and
    twice on a photo, weak matches, rejected faces, files that are no photos."""
    folder = tmp_path_factory.mktemp("reported")
    for person in range(1, PEOPLE + 1):
        for number in range(1 + (person % 7 > 2)):
            write_photo(folder / "photos" / str(person), f"{number}.png", Shown(person, number))
    for number in range(60):
        write_photo(folder / "photos", f"both-{number}.png", Shown(1 + number, 7), Shown(101 + number % 40, 7))
        write_photo(folder / "photos", f"twice-{number}.png", Shown(201 + number, 8), Shown(201 + number, 9))
        write_photo(folder / "photos", f"poor-{number}.png", Shown(1000 + number, 0, 0.1))
        (folder / "photos" / f"broken-{number}.jpg").write_bytes(b"no photo")
    make_store(folder / "store", DOUBT)
    run_over(folder / "photos", folder / "store")
    with serving(folder / "store") as made:
        for place, row in enumerate(sorted(made.people.all(), key=lambda row: (-row.photos, row.person_id))[:30]):
            made.people.name(row.person_id, NAMES[place % len(NAMES)])
        yield made


@pytest.fixture(scope="module")
def reports(served: Served, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of the store and of its run, by what is reported; names are links into the page of the server."""
    settings = replace(SETTINGS, report=ReportSettings(link=served.page))
    store = Store(served.store.local, settings, served.store.service)
    folder = tmp_path_factory.mktemp("reports")
    for what, run_id in (("store", None), ("run", "last")):
        write_report_page(store, folder / f"{what}.html", account=USER, run_id=run_id)
    return {file.stem: file for file in folder.iterdir()}


@pytest.mark.parametrize(
    ("what", "look"), [("store", "light"), ("store", "dark"), ("store", "phone"), ("run", "light")]
)
def test_it_is_accessible_and_no_wider_than_the_screen(
    chromium: Browser, reports: dict[str, Path], what: str, look: str
) -> None:
    """Unfolded: axe-core finds nothing at all."""
    page = chromium.new_context(**LOOKS[look]).new_page()
    page.goto(reports[what].as_uri())
    for is_open in (False, True):
        page.evaluate("open => document.querySelectorAll('details').forEach((part) => { part.open = open })", is_open)
        assert page.evaluate("document.documentElement.scrollWidth") <= LOOKS[look]["viewport"]["width"]
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("axe.run()")
    assert [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]] == []
    assert len(found["passes"]) > 20
    page.context.close()


@pytest.mark.parametrize("what", ["store", "run"])
def test_it_is_short_on_a_screen_and_on_paper(chromium: Browser, reports: dict[str, Path], what: str) -> None:
    page = chromium.new_context(**LOOKS["light"]).new_page()
    page.goto(reports[what].as_uri())
    assert page.locator("details:not([open]) > summary").count() > 5
    assert page.evaluate("document.documentElement.scrollHeight") < HIGHEST_PX
    sheets = re.findall(rb"/Type\s*/Page\b", page.pdf(prefer_css_page_size=True))
    assert 1 < len(sheets) <= MOST_SHEETS
    assert page.evaluate("[...document.querySelectorAll('main h2')].length") >= 9
    page.context.close()


def test_a_name_leads_to_the_person_on_the_page(
    open_page: Callable[..., Opened], served: Served, reports: dict[str, Path]
) -> None:
    page = open_page(served)
    page.sign_in()
    page.page.goto(reports["store"].as_uri())
    link = page.page.get_by_role("link", name="Ada").first
    person_id = (link.get_attribute("href") or "").rpartition("/")[2]
    link.click()
    page.cards("Faces").first.wait_for()
    assert page.page.url.endswith(person_id)
    page.expect(page.name).to_have_value("Ada")


def test_a_plot_has_an_axis_of_counts(chromium: Browser, reports: dict[str, Path]) -> None:
    page = chromium.new_context(**LOOKS["light"]).new_page()
    page.goto(reports["store"].as_uri())
    texts = page.locator(".bars svg").first.locator("text").all_text_contents()
    assert texts[0] == "faces"
    bars = page.locator(".bars svg").first.locator("rect title").all_text_contents()
    most = max(int(bar.split(": ")[1]) for bar in bars)
    assert texts[1:4] == ["0", f"{most // 2:,}", f"{most:,}"]
    page.context.close()
