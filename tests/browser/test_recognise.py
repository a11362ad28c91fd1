"""A photo is compared: boxes, similar people, the slider, enrolling one of its faces."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from coded_faces import Shown, photo
from PIL import Image

from tests.browser.opened import Opened
from tests.browser.served import Served, serving

if TYPE_CHECKING:
    from playwright.sync_api import Route

STRANGER = 77


@pytest.fixture
def known(served: Served) -> str:
    """Person 1 has a name."""
    person = served.person("a1.png").person_id
    served.people.name(person, "Ada")
    return person


def drop(page: Opened, data: bytes, name: str = "photo.png") -> None:
    page.go("recognise")
    page.page.get_by_label("photo").set_input_files({"name": name, "mimeType": "image/png", "buffer": data})


def test_faces_are_boxed_named_and_enrolled(page: Opened, served: Served, known: str) -> None:
    drop(page, photo(Shown(1, 5), Shown(STRANGER)))
    boxes = page.page.locator(".photo .box")
    page.expect(boxes).to_have_count(2)
    page.expect(boxes.first).to_have_text("1 Ada")
    page.expect(page.page.get_by_text("1 of 2 faces recognised")).to_be_visible()
    page.button("Face 2 nobody").click()
    page.page.get_by_label("Name").fill("Grace")
    page.button("Enrol", exact=True).click()
    page.expect(page.page.get_by_text("Enrolled: Grace.")).to_be_visible()
    assert "Grace" in {row.name for row in served.people.all()}
    page.undo()
    assert "Grace" not in {row.name for row in served.people.all()}


def test_the_slider_answers_without_the_server(page: Opened, served: Served, known: str) -> None:
    drop(page, photo(Shown(1, 5)))
    box = page.page.locator(".photo .box")
    page.expect(box).to_have_text("Ada")
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url))
    slider = page.page.get_by_label("Threshold")
    slider.press("Home")  # the strictest
    page.expect(box).to_have_text("")
    slider.press("End")
    page.expect(box).to_have_text("Ada")
    page.button("Back to the store").click()
    assert [url for url in asked if "/api/" in url] == []


def test_a_face_that_is_too_poor_says_why(page: Opened, known: str) -> None:
    drop(page, photo(Shown(STRANGER, 0, 0.05)))
    page.expect(page.page.get_by_text("This face cannot be enrolled")).to_be_visible()
    page.expect(page.page.get_by_text("at least")).not_to_have_count(0)
    page.expect(page.button("Enrol", exact=True)).to_have_count(0)


@pytest.mark.parametrize("data", [b"no photo", b""], ids=["text", "empty"])
def test_what_is_no_photo_is_refused_with_a_sentence(page: Opened, known: str, data: bytes) -> None:
    drop(page, data, "text.png")
    page.expect(page.page.get_by_role("alert").locator(".warning")).to_be_visible()
    drop(page, photo(Shown(1)))  # and the next one is taken
    page.expect(page.page.locator(".photo .box")).to_have_text("Ada")


@pytest.mark.parametrize(
    ("size", "answer"), [((10_000, 6_000), "No face was found"), ((12_000, 10_000), "pixels")], ids=["60 MP", "120 MP"]
)
def test_a_photo_of_many_pixels_is_answered(page: Opened, known: str, size: tuple[int, int], answer: str) -> None:
    out = io.BytesIO()
    Image.new("RGB", size, (90, 120, 90)).save(out, "PNG")
    drop(page, out.getvalue())
    page.expect(page.page.get_by_role("main").get_by_text(answer)).to_be_visible()
    drop(page, photo(Shown(1, 5)))  # and the page is as before
    page.expect(page.page.locator(".photo .box")).to_have_text("Ada")


def test_it_stays_while_one_looks_elsewhere(page: Opened, served: Served, known: str) -> None:
    drop(page, photo(Shown(1, 5), Shown(STRANGER)))
    page.button("Face 2 nobody").click()
    slider = page.page.get_by_label("Threshold")
    slider.press("ArrowRight")
    told = page.page.locator(".slider strong").inner_text()
    page.page.get_by_role("list", name="Faces on the photo").get_by_role("link", name="Ada").click()
    page.cards("Faces").first.wait_for()
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url))
    page.page.go_back()
    page.expect(page.button("Face 2 nobody")).to_have_attribute("aria-pressed", "true")
    page.expect(page.page.locator(".slider strong")).to_have_text(told)
    assert not [url for url in asked if "recognise" in url]


def test_an_answer_comes_while_one_looks_elsewhere(page: Opened, served: Served, known: str) -> None:
    held: list[Route] = []
    page.page.route("**/ui/api/recognise?*", lambda route: held.append(route), times=1)
    drop(page, photo(Shown(1, 5)))
    page.until(lambda: bool(held))
    page.go("store")
    page.page.get_by_role("heading", name="Threshold").wait_for()
    page.go("recognise")
    page.expect(page.page.get_by_role("progressbar")).to_be_visible()
    held[0].continue_()
    page.expect(page.page.locator(".photo .box")).to_have_text("Ada")


def test_it_shows_that_it_is_looking(page: Opened, known: str) -> None:
    held: list[Route] = []
    page.page.route("**/ui/api/recognise?*", lambda route: held.append(route))
    drop(page, photo(Shown(1, 5)))
    page.until(lambda: bool(held))
    page.expect(page.page.get_by_role("progressbar")).to_be_visible()
    assert page.findings() == []
    held[0].continue_()
    page.expect(page.page.get_by_role("progressbar")).to_have_count(0)
    page.expect(page.page.locator(".photo .box")).to_have_count(1)


def test_a_match_without_a_name_is_named(page: Opened, served: Served, known: str) -> None:
    drop(page, photo(Shown(2, 5)))
    field = page.page.get_by_role("combobox", name="Name")
    field.fill("Grace")
    field.press("Enter")
    page.expect(page.page.get_by_role("heading", name="Grace")).to_be_visible()
    page.done()
    assert served.person("c2.png").name == "Grace"
    page.page.reload()
    drop(page, photo(Shown(3, 5)))
    field.fill("ada")
    page.page.locator(".offered [role=option]").filter(has_text="Ada").click()
    page.expect(page.page.get_by_role("heading", name="Ada")).to_be_visible()
    page.done()
    assert served.person("d3.png").person_id == served.person("a1.png").person_id


@pytest.fixture
def default(store: Path, filled: Path) -> Iterator[Served]:
    """A server whose API requires name and external id, as by default."""
    with serving(store, serve__person_headers="required") as made:
        made.people.name(made.person("a1.png").person_id, "Ada")
        yield made


def test_a_face_is_added_to_somebody_by_default_and_that_is_one_change(
    open_page: Callable[..., Opened], default: Served
) -> None:
    page = open_page(default)
    page.sign_in()
    drop(page, photo(Shown(STRANGER)))
    page.page.get_by_label("External id").wait_for()  # of somebody new
    before, people = default.people.show("Ada").faces, len(default.people.all())
    for leaves in (False, True):
        page.button("This is…").click()
        page.pick("Ada")
        page.expect(page.page.get_by_text("Added to Ada.")).to_be_visible()
        page.expect(page.page.get_by_role("heading", name="Ada")).to_be_visible()
        page.expect(page.page.locator(".photo .box")).to_have_text("Ada")
        page.expect(page.button("Enrol", exact=True)).to_be_hidden()
        assert default.people.show("Ada").faces == before + 1
        if leaves:
            page.page.get_by_role("link", name="Look").click()
            page.has(before + 1, "Faces")
        page.undo()
        assert default.people.show("Ada").faces == before
        assert len(default.people.all()) == people
        page.go("recognise")
        page.expect(page.page.get_by_role("heading", name="Nobody known")).to_be_visible()
        page.expect(page.button("Enrol", exact=True)).to_be_visible()
    page.go("changes")
    page.expect(page.page.get_by_text("adding a face of “Ada”")).to_have_count(2)


def test_a_name_that_is_there_is_asked_about(page: Opened, served: Served, known: str) -> None:
    drop(page, photo(Shown(STRANGER)))
    people = len(served.people.all())
    page.page.get_by_label("Name").fill("ada")
    page.button("Enrol", exact=True).click()
    dialog = page.page.get_by_role("dialog", name="taken")
    dialog.get_by_role("button", name="This is Ada").click()
    page.expect(page.page.get_by_text("Added to Ada.")).to_be_visible()
    assert len(served.people.all()) == people
    page.undo()
    page.page.get_by_label("Name").fill("ada")
    page.button("Enrol", exact=True).click()
    dialog.get_by_role("button", name="Two people").click()
    page.expect(page.page.get_by_text("Enrolled: ada.")).to_be_visible()
    assert len(served.people.all()) == people + 1


def test_of_many_faces_one_reads_each(page: Opened, known: str) -> None:
    """Labels show where one points, and beside the photo."""
    drop(page, photo(Shown(1, 5), *(Shown(100 + number) for number in range(29))))
    boxes = page.page.locator(".photo .box")
    page.expect(boxes).to_have_count(30)
    page.expect(boxes.first.locator("span")).to_be_visible()  # it is the chosen one
    boxes.nth(1).click()
    page.expect(boxes.first.locator("span")).to_be_hidden()
    listed = page.page.get_by_role("list", name="Faces on the photo").get_by_role("listitem")
    page.expect(listed).to_have_count(30)
    page.expect(listed.first).to_contain_text("Ada")
    listed.first.get_by_role("button").click()
    page.expect(boxes.first).to_have_attribute("aria-pressed", "true")
    boxes.nth(2).hover()
    assert page.findings() == []
