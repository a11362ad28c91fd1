"""A photo is compared: boxes, similar people, the slider, enrolling one of its faces."""

from __future__ import annotations

import io

import pytest
from coded_faces import Shown, photo
from PIL import Image

from tests.browser.opened import Opened
from tests.browser.served import Served

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
    page.expect(boxes.first).to_have_text("Ada")
    page.expect(page.page.get_by_text("1 of 2 faces recognised")).to_be_visible()
    page.button("Face 2: nobody known").click()
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
    page.expect(box).to_have_text("?")
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
