"""What fits: small and low windows, names of any length, photos of many faces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from coded_faces import Shown

from tests.browser.opened import Opened
from tests.browser.served import Served, fill, serving

PHONE, SMALL, LOW = ({"width": w, "height": h} for w, h in ((390, 844), (320, 640), (640, 400)))
STREAK = "Z" + "\u0300" * 180


@pytest.mark.parametrize("name", ["W" * 1000, STREAK])
def test_changes_of_long_names_are_undone_on_a_phone(
    open_page: Callable[..., Opened], served: Served, name: str
) -> None:
    person = served.person("a1.png").person_id
    served.people.name(person, name)
    page = open_page(served, viewport=SMALL)
    page.sign_in()
    page.go("changes")
    row = page.cards("Changes").first
    undo = row.get_by_role("button", name="Undo number")
    box, button = row.bounding_box(), undo.bounding_box()
    assert box is not None
    assert button is not None
    assert box["height"] < 130
    assert button["x"] + button["width"] <= SMALL["width"]
    clipped = row.locator(".clamped").evaluate("it => [getComputedStyle(it).overflow, it.offsetHeight <= 2 * 24]")
    assert clipped == ["hidden", True]
    undo.click()
    page.said("Undone")
    page.done()
    assert served.people.show(person).name is None


@pytest.mark.parametrize("size", [PHONE, SMALL])
def test_all_views_are_in_sight(open_page: Callable[..., Opened], served: Served, size: dict[str, int]) -> None:
    page = open_page(served, viewport=size)
    page.sign_in()
    page.go("store")
    links = page.page.get_by_role("navigation").get_by_role("link")
    page.expect(links).to_have_count(6)
    for link in links.all():
        page.expect(link).to_be_in_viewport(ratio=1)


def test_at_200_percent_a_pair_its_answers_and_the_bar_are_in_sight(
    open_page: Callable[..., Opened], doubted: Served
) -> None:
    page = open_page(doubted, viewport=LOW)
    page.sign_in()
    page.go("review")
    page.page.locator(".pair img").nth(1).wait_for()
    page.page.keyboard.press("n")
    page.done()
    bar = page.page.locator(".bar")
    page.expect(bar).to_be_visible()
    seen = [*page.page.locator(".pair img").all(), *page.page.locator(".answers button").all()]
    assert len(seen) == 5
    for each in seen:
        page.expect(each).to_be_in_viewport(ratio=1)
        apart = each.evaluate(
            "it => it.getBoundingClientRect().bottom <= document.querySelector('.bar').getBoundingClientRect().top"
        )
        assert apart, each
    assert page.findings() == []


def test_faces_begin_above_the_fold(open_page: Callable[..., Opened], served: Served) -> None:
    page = open_page(served, viewport={"width": 1280, "height": 800})
    page.sign_in()
    years = {"years": [{"year": 2001, "faces": 3}], "undated": 1}
    page.page.route("**/around?*", lambda route: route.fulfill(json=route.fetch().json() | years))
    page.open_person(served.person("a1.png").person_id)
    parts = [page.page.get_by_role("region", name=name) for name in ("When", "Often with")]
    for part in parts:
        part.wait_for()
    tops = [part.evaluate("it => it.getBoundingClientRect().top") for part in parts]
    assert tops[0] == tops[1]
    page.expect(page.cards("Faces").first).to_be_in_viewport(ratio=0.5)


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Served]:
    """A photo of 24 people without names."""
    store = fill(tmp_path, {"crowd.png": [Shown(person) for person in range(1, 25)]}) / "store"
    with serving(store, ui__photo_roots=str(tmp_path / "photos")) as made:
        yield made


def test_a_chosen_face_of_many_is_listed_in_sight_by_a_name_of_its_own(
    open_page: Callable[..., Opened], crowd: Served
) -> None:
    page = open_page(crowd)
    page.sign_in()
    page.open_person(crowd.people.all()[0].person_id)
    met = page.page.get_by_role("region", name="Often with").get_by_role("link")
    met.first.wait_for()
    names = [each.aria_snapshot() for each in met.all()]
    assert len({*names}) == len(names) > 1
    page.cards("Faces").first.get_by_role("button").last.click()
    dialog = page.page.get_by_role("dialog", name="Photo")
    listed = dialog.get_by_role("list", name="Faces on the photo").get_by_role("listitem")
    page.expect(listed).to_have_count(24)
    for place in (23, 0):
        dialog.locator(".box").nth(place).click(force=True)
        page.expect(listed.nth(place)).to_have_class("chosen")
        page.expect(listed.nth(place)).to_be_in_viewport(ratio=0.9)
        page.expect(dialog.get_by_role("link", name=f"No name yet face {place + 1}", exact=True)).to_have_count(1)


@pytest.mark.parametrize("name", ["W" * 200, STREAK])
def test_a_long_name_leaves_room_in_a_photos_dialog(
    open_page: Callable[..., Opened], served: Served, name: str
) -> None:
    one = served.person("a1.png").person_id
    served.people.name(one, name)
    page = open_page(served, viewport=SMALL)
    page.sign_in()
    page.open_person(one)
    page.cards("Faces").first.get_by_role("button").last.click()
    dialog = page.page.get_by_role("dialog", name="Photo")
    link = dialog.get_by_role("list", name="Faces on the photo").get_by_role("link")
    link.wait_for()
    for each in (link, dialog.get_by_text("is known by this face")):
        found = each.evaluate("it => [getComputedStyle(it).overflow, it.offsetHeight <= 2 * 24]")
        assert found == ["hidden", True]
    page.expect(dialog.get_by_role("button", name="Close")).to_be_in_viewport(ratio=1)
