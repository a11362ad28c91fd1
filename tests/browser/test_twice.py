"""People who are twice on a photo: a face is taken off, or it is right, and back again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from coded_faces import Shown

from tests.browser.opened import Opened
from tests.browser.served import Served, fill, serving

LIST = "Twice on a photo"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    photos = {
        "a.png": [Shown(1)],
        "b.png": [Shown(2)],
        "collage.png": [Shown(1, 1), Shown(2, 1), Shown(1, 2), Shown(2, 2)],  # faces 3 to 6
        "mirror.png": [Shown(1, 3), Shown(1, 4), Shown(1, 5)],  # 7 to 9
    }
    store = fill(tmp_path, photos) / "store"
    with serving(store, ui__photo_roots=str(tmp_path / "photos")) as made:
        made.people.name(made.person("a.png").person_id, "Ada")
        made.people.name(made.person("b.png").person_id, "Ben")
        yield made


def faces(served: Served) -> list[list[int]]:
    return sorted([*entry.faces] for entry in served.people.twice())


def test_each_is_answered_and_that_is_undone(page: Opened, served: Served) -> None:
    page.go("review")
    page.page.get_by_role("link", name="3 twice on a photo").click()
    page.has(3, LIST)
    assert faces(served) == [[3, 5], [4, 6], [7, 8, 9]]
    mirror = page.cards(LIST).filter(has_text="mirror.png")
    page.expect(mirror.get_by_role("heading", name="Ada")).to_be_visible()
    page.expect(mirror.locator(".box")).to_have_count(3)
    assert mirror.locator("img").evaluate("image => image.decode().then(() => image.naturalWidth)") > 0

    mirror.get_by_role("button", name="3 is not Ada").click()
    page.expect(mirror.locator(".box")).to_have_count(2)
    mirror.get_by_role("button", name="1 is not Ada").press("Enter")  # by the keyboard
    page.said("1 face is not Ada")
    page.has(2, LIST)
    page.done()
    assert faces(served) == [[3, 5], [4, 6]]
    page.undo()
    page.has(3, LIST)
    page.expect(mirror.locator(".box")).to_have_count(2)
    assert faces(served) == [[3, 5], [4, 6], [7, 8]]

    page.cards(LIST).filter(has_text="collage.png").first.get_by_role("button", name="Allow on this photo").click()
    page.said("Twice on collage.png is right")
    page.has(1, LIST)  # for both
    page.done()
    assert faces(served) == [[7, 8]]
    page.undo()
    page.has(3, LIST)
    page.expect(page.cards(LIST).first).to_contain_text("collage.png")  # in its place
    assert faces(served) == [[3, 5], [4, 6], [7, 8]]

    page.page.get_by_role("link", name="Back to the pairs").click()
    page.expect(page.page.get_by_role("link", name="3 twice on a photo")).to_be_visible()


def test_without_any_there_is_no_link(page: Opened, served: Served) -> None:
    for media_id in (3, 4):
        served.people.allow_twice(media_id)
    page.go("review/twice")
    page.expect(page.page.get_by_text("Nobody is twice on a photo.")).to_be_visible()
    page.page.get_by_role("link", name="Back to the pairs").click()
    page.expect(page.page.get_by_text("There is no pair to answer.")).to_be_visible()
    page.expect(page.page.get_by_role("link", name="twice on a photo")).to_have_count(0)
    page.page.get_by_role("link", name="Changes").click()
    page.expect(page.page.get_by_text("that people may be twice on a photo").first).to_be_visible()


def test_a_phone_and_a_screen_reader(open_page: Callable[..., Opened], served: Served) -> None:
    page = open_page(served, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page.sign_in()
    page.go("review/twice")
    page.has(3, LIST)
    page.page.wait_for_load_state("networkidle")
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.findings() == []
