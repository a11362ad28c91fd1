"""A face that the detector missed is drawn on its photo, named, and removed again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from coded_faces import Shown

from pipeline.types import DRAWN
from tests.browser.opened import Opened
from tests.browser.served import Served, fill, serving


@pytest.fixture(scope="module")
def missed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two people; the second photo shows another face, which is missed."""
    shown = {"a1.png": [Shown(1)], "b2.png": [Shown(2), Shown(3, missed=True)]}
    return fill(tmp_path_factory.mktemp("missed"), shown)


@pytest.fixture
def served(missed: Path, tmp_path: Path) -> Iterator[Served]:
    store = Path(shutil.copytree(missed / "store", tmp_path / "store"))
    with serving(store, ui__photo_roots=str(missed / "photos")) as made:
        made.people.name(made.person("a1.png").person_id, "Ada")
        made.people.name(made.person("b2.png").person_id, "Berta")
        yield made


@pytest.fixture
def drawing(page: Opened, served: Served) -> Opened:
    """The dialog for drawing on the second photo."""
    page.open_person(served.person("b2.png").person_id)
    page.button("b2.png").click()
    page.button("Add a face").click()
    page.expect(page.page.locator(".box.known")).to_contain_text("Berta")
    return page


def drag(page: Opened, left: float, top: float, right: float, bottom: float) -> None:
    """By the mouse, from one corner to the other, as fractions of the photo."""
    area = page.page.locator(".draw").bounding_box()
    assert area is not None
    x, y, mouse = area["x"], area["y"], page.page.mouse
    mouse.move(x + left * area["width"], y + top * area["height"])
    mouse.down()
    mouse.move(x + right * area["width"], y + bottom * area["height"], steps=4)
    mouse.up()


def test_a_dragged_box_is_somebody_new_who_is_recognised(drawing: Opened, served: Served) -> None:
    page = drawing
    who = page.button("Who is this?")
    page.expect(who).to_be_disabled()
    drag(page, 0.6, 0.2, 0.62, 0.25)
    page.expect(page.page.get_by_role("dialog")).to_contain_text("at least 16 px")
    drag(page, 0.58, 0.15, 0.9, 0.8)
    who.click()
    page.pick("Cid")
    page.said("Added a face of Cid")
    page.done()
    (face,) = served.people.photos("Cid")
    assert (face["outcome"], face["reference"], face["stated"]) == (DRAWN, True, True)
    page.go("people")
    page.has(3)
    page.undo()
    page.has(2)


def test_by_the_keyboard_and_where_nothing_is_it_is_a_tag(drawing: Opened, served: Served) -> None:
    page = drawing
    for key in ("ArrowUp", *["ArrowLeft"] * 20, *["ArrowDown"] * 20, *["Shift+ArrowRight"] * 6, "Shift+ArrowUp"):
        page.page.keyboard.press(key)
    page.page.keyboard.press("Shift+ArrowDown")
    for _ in range(10):
        page.page.keyboard.press("ArrowUp")
        page.page.keyboard.press("Shift+ArrowDown")
    page.button("Who is this?").click()
    page.button("Ada 1 photo").click()
    page.said("tag, by which nobody is recognised")
    page.done()
    faces = served.people.photos("Ada")
    assert [face["outcome"] for face in faces] == ["inserted", DRAWN]
    page.undo()
    assert len(served.people.photos("Ada")) == 1


def test_a_name_that_is_there_is_asked_about(drawing: Opened, served: Served) -> None:
    page = drawing
    drag(page, 0.58, 0.15, 0.9, 0.8)
    page.button("Who is this?").click()
    dialog = page.page.get_by_role("dialog")
    dialog.get_by_role("searchbox").fill("Ada")
    dialog.get_by_role("button", name="Somebody new: Ada").click()
    dialog.get_by_role("button", name="This is Ada").click()
    page.said("Added a face of Ada")
    page.done()
    assert len(served.people.photos("Ada")) == 2


def test_a_box_on_a_known_face_is_refused(drawing: Opened) -> None:
    page = drawing
    drag(page, 0.0, 0.0, 0.31, 0.63)
    page.button("Who is this?").click()
    page.button("Ada 1 photo").click()
    page.said("is there already")
