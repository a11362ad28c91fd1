"""Faces without a person: shown, given to somebody, said to be none, and back again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from coded_faces import Shown

from tests.browser.opened import Opened
from tests.browser.served import Served, fill, serving

FACES = "Faces without a person"
POOR = 130  # more than a page of results


@pytest.fixture(scope="module")
def poor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One person, and many faces that are too poor for one."""
    shown = {f"p{person:03}.png": [Shown(person, 0, 0.1)] for person in range(2, 2 + POOR)}
    return fill(tmp_path_factory.mktemp("poor"), {"a1.png": [Shown(1)], **shown})


@pytest.fixture
def served(poor: Path, tmp_path: Path) -> Iterator[Served]:
    store = Path(shutil.copytree(poor / "store", tmp_path / "store"))
    with serving(store, ui__photo_roots=str(poor / "photos")) as made:
        made.people.name(made.person("a1.png").person_id, "Ada")
        yield made


@pytest.fixture
def unassigned(page: Opened) -> Opened:
    page.page.get_by_role("link", name="Unassigned").click()
    page.cards(FACES).first.wait_for()
    return page


def has(page: Opened, count: int) -> None:
    """Of all pages, as the heading says."""
    page.expect(page.page.get_by_role("heading", name="Unassigned")).to_have_text(f"Unassigned {count}".strip())


def test_faces_are_said_to_be_somebodys_or_none_and_that_is_undone(unassigned: Opened, served: Served) -> None:
    page = unassigned
    has(page, POOR)
    first = page.cards(FACES).first
    page.expect(first).to_contain_text("turned away")
    assert first.locator("img").evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    first.get_by_role("button", name="Face 1", exact=True).press("Enter")  # by the keyboard
    page.button("This is").press("Enter")
    page.button("Ada 1 photo").click()
    page.said("1 face: Ada")
    has(page, POOR - 1)
    page.done()
    assert served.people.show("Ada").faces == 2
    for place in (1, 2):
        page.cards(FACES).nth(place).get_by_role("button", name=f"Face {place + 1}", exact=True).click()
    page.button("Not a face").click()
    has(page, POOR - 3)
    page.done()
    assert len(served.people.unassigned()) == POOR - 3
    page.page.get_by_label("Show").select_option("nobody")
    page.has(2, FACES)
    page.expect(page.cards(FACES).first).to_contain_text("nobody’s, you said")
    page.undo()
    page.expect(page.page.get_by_text("There is none.")).to_be_visible()
    page.page.get_by_label("Show").select_option("open")
    has(page, POOR - 1)
    page.undo()
    has(page, POOR)
    assert served.people.show("Ada").faces == 1


def test_a_face_is_somebody_new_s_by_the_keyboard(unassigned: Opened, served: Served) -> None:
    page, keys = unassigned, unassigned.page.keyboard
    page.cards(FACES).first.get_by_role("button", name="Face 1", exact=True).press("Enter")
    page.button("This is").press("Enter")
    keys.type("Grace")
    keys.press("Enter")
    page.said("1 face: Grace")
    page.done()
    assert served.people.show("Grace").faces == 1
    page.cards(FACES).first.get_by_role("button", name="Face 1", exact=True).press("Enter")
    page.button("This is").press("Enter")
    keys.type("Ada")
    page.button("Somebody new: Ada").click()
    page.page.get_by_role("dialog", name="taken").get_by_role("button", name="This is Ada").click()
    page.said("1 face: Ada")
    page.done()
    assert served.people.show("Ada").faces == 2
    page.undo()
    page.undo()
    has(page, POOR)
    assert [row.name for row in served.people.all()] == ["Ada"]


def test_an_undone_answer_is_back_in_its_place(unassigned: Opened) -> None:
    page = unassigned
    names = page.cards(FACES).locator(".about bdi")
    before = names.all_text_contents()
    page.cards(FACES).nth(1).get_by_role("button", name="Face 2", exact=True).click()
    page.button("Not a face").click()
    page.expect(names.nth(1)).to_have_text(before[2])
    page.undo()
    page.expect(names.nth(1)).to_have_text(before[1])
    assert names.all_text_contents()[:5] == before[:5]


def test_scrolling_shows_the_last_and_its_photo(unassigned: Opened) -> None:
    page = unassigned
    last = page.cards(FACES).filter(has_text=f"p{POOR + 1:03}.png")
    for _ in range(20):
        page.page.keyboard.press("End")
        page.page.wait_for_timeout(50)
        if last.count():
            break
    last.get_by_role("button", name=f"p{POOR + 1:03}.png").click()
    dialog = page.page.get_by_role("dialog", name="Photo")
    page.expect(dialog).to_contain_text("40 px: turned away")
    page.expect(dialog.locator(".box")).to_be_visible()
