"""What a screen reader and a keyboard meet: axe-core on every view, in light and dark, and the way of the focus."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from coded_faces import Shown, photo

from tests.browser.opened import Opened
from tests.browser.served import Served


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_a_finding(open_page: Callable[..., Opened], served: Served, scheme: str) -> None:
    served.people.name(served.person("a1.png").person_id, "Ada")
    page = open_page(served, color_scheme=scheme)
    assert page.findings() == [], "sign in"
    page.sign_in()
    page.choose(0, 1)
    assert page.findings() == [], "people"
    page.open_person(served.person("a1.png").person_id)
    page.cards("Faces").nth(1).get_by_role("button").first.click()
    assert page.findings() == [], "person"
    page.button("Move to").click()
    page.page.get_by_role("dialog").get_by_role("listitem").first.wait_for()
    assert page.findings() == [], "choosing a person"
    page.page.keyboard.press("Escape")
    page.cards("Faces").first.get_by_role("button").last.click()
    page.page.get_by_role("list", name="Faces on the photo").wait_for()
    assert page.findings() == [], "a photo"
    page.button("Add a face").click()
    page.page.get_by_role("dialog", name="Add a face").wait_for()
    assert page.findings() == [], "adding a face"
    page.page.keyboard.press("Escape")
    page.button("Forget").click()
    page.page.get_by_role("dialog", name="Forget").wait_for()
    assert page.findings() == [], "forgetting"
    page.page.keyboard.press("Escape")
    page.open_person(served.person("c2.png").person_id)
    page.give_name("Ada")
    page.page.get_by_role("dialog", name="taken").wait_for()
    assert page.findings() == [], "a name that is taken"
    page.page.keyboard.press("Escape")
    page.go("changes")
    page.page.get_by_role("heading", name="Changes").wait_for()
    assert page.findings() == [], "changes"
    page.go("unassigned")
    page.cards("Faces without a person").first.get_by_role("button", name="Face 1", exact=True).click()
    assert page.findings() == [], "unassigned"
    page.go("recognise")
    page.page.get_by_label("photo").set_input_files(
        {"name": "two.png", "mimeType": "image/png", "buffer": photo(Shown(1, 5), Shown(77, 0, 0.05))}
    )
    page.button("Face 2 nobody").click()
    assert page.findings() == [], "recognise"
    page.go("store")
    page.page.get_by_role("heading", name="Threshold").wait_for()
    assert page.findings() == [], "store"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_review_has_no_finding(open_page: Callable[..., Opened], doubted: Served, scheme: str) -> None:
    page = open_page(doubted, color_scheme=scheme)
    page.sign_in()
    page.go("review")
    page.page.locator(".pair").wait_for()
    assert page.findings() == [], "a pair"
    for _ in range(4):
        page.page.keyboard.press("k")
    page.page.get_by_text("That was all").or_(page.page.get_by_text("There is no pair")).wait_for()
    assert page.findings() == [], "none left"


def test_a_keyboard_reaches_and_returns(page: Opened) -> None:
    page.page.reload()
    page.has(8)
    page.page.keyboard.press("Tab")
    page.expect(page.page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.page.keyboard.press("Enter")
    page.expect(page.page.get_by_role("main")).to_be_focused()
    page.cards().first.get_by_role("link").press("Enter")  # a person
    page.cards("Faces").first.wait_for()
    page.expect(page.page.get_by_role("main")).to_be_focused()
    page.button("Merge with").press("Enter")
    page.expect(page.page.get_by_role("dialog").get_by_role("searchbox")).to_be_focused()
    page.page.keyboard.press("Escape")
    page.expect(page.button("Merge with")).to_be_focused()
    page.page.go_back()
    page.has(8)


def test_on_a_phone_nothing_is_wider_than_the_screen(open_page: Callable[..., Opened], served: Served) -> None:
    page = open_page(served, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page.sign_in()
    for view in ("people", f"person/{served.person('a1.png').person_id}", "unassigned", "review", "recognise", "store"):
        page.go(view)
        page.page.wait_for_load_state("networkidle")
        page.page.wait_for_timeout(200)
        assert page.page.evaluate("document.documentElement.scrollWidth") <= 360, view
