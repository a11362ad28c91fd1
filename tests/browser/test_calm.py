"""What the page says of changes: for a while, of the right one, in all tabs, and what somebody else did."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.browser.opened import Opened
from tests.browser.served import Served

if TYPE_CHECKING:
    from playwright.sync_api import Route

LONG = "Wolfeschlegelsteinhausenbergerdorff " * 5 + "W" * 20  # 200 characters


@pytest.fixture
def one(page: Opened, served: Served) -> str:
    person = served.person("a1.png").person_id
    page.open_person(person)
    return person


def test_it_says_saving_until_the_server_has_answered(page: Opened, one: str) -> None:
    held: list[Route] = []
    page.page.route("**/ui/api/corrections?*", lambda route: held.append(route), times=1)
    page.give_name("Ada")
    page.until(lambda: bool(held))
    page.said("Saving: Named Ada")
    held[0].continue_()
    page.done()
    page.expect(page.page.locator(".bar .said")).to_have_text("Named Ada")


def test_the_bar_goes_after_a_while_and_the_changes_stay(page: Opened, served: Served, one: str) -> None:
    page.page.clock.install()
    page.give_name("Ada")
    page.done()
    bar = page.page.locator(".bar")
    page.expect(bar).to_be_visible()
    bar.hover()
    page.page.clock.run_for(20_000)
    page.expect(bar).to_be_visible()  # as long as the mouse is on it
    page.page.mouse.move(0, 0)
    page.page.clock.run_for(20_000)
    page.expect(bar).to_be_hidden()
    page.go("changes")
    page.button("Undo number 1").click()
    page.said("Undone")
    page.done()
    assert served.people.show(one).name is None
    page.expect(bar).to_be_visible()
    bar.get_by_role("button", name="Close").click()
    page.page.get_by_role("main").focus()
    page.expect(bar).to_be_hidden()


def test_forgetting_offers_no_other_undo(page: Opened, served: Served, one: str) -> None:
    page.give_name("Ada")
    page.done()
    page.open_person(served.person("c2.png").person_id)
    page.button("Forget").click()
    page.page.get_by_role("dialog").get_by_role("textbox").fill("forget")
    page.page.keyboard.press("Enter")
    page.said("Forgotten")
    page.done()
    page.expect(page.button("Undo")).to_have_count(0)
    page.go("store")
    page.page.get_by_role("heading", name="Threshold").wait_for()
    page.expect(page.button("Undo")).to_have_count(0)
    page.page.get_by_role("main").focus()
    page.page.keyboard.press("u")  # the key asks
    dialog = page.page.get_by_role("dialog", name="Undo an earlier change?")
    page.expect(dialog).to_contain_text("“Ada”")
    dialog.get_by_role("button", name="Undo it").click()
    page.said("Undone")
    page.done()
    assert served.people.show(one).name is None


def test_two_tabs_follow_each_other(page: Opened, served: Served, one: str) -> None:
    other = page.context.new_page()
    other.goto(f"{served.page}#/person/{one}")
    field = other.locator(".naming input")
    page.expect(field).to_have_value("")
    page.give_name("Ada")
    page.expect(field).to_have_value("Ada")
    page.expect(other.locator(".bar").get_by_text("Undo")).to_have_count(1)  # it knows of the change
    other.locator("main").focus()
    other.keyboard.press("u")
    page.expect(page.name).to_have_value("")
    page.done()
    assert served.people.show(one).name is None


def test_a_grid_keeps_what_is_chosen_when_another_tab_changes_somebody(page: Opened, served: Served, one: str) -> None:
    other = page.context.new_page()
    other.goto(served.page)
    cards = other.get_by_role("list", name="People").get_by_role("listitem")
    for place in (3, 4):
        cards.nth(place).get_by_role("checkbox").check(force=True)
    page.give_name("Ada")
    page.expect(cards.first).to_contain_text("Ada")
    page.expect(other.get_by_text("2 chosen")).to_be_visible()


def test_each_view_has_a_title_and_a_heading(page: Opened, served: Served, one: str) -> None:
    served.people.name(one, "Ada")
    for view in ("People", "Unassigned", "Review", "Recognise", "Changes", "Store"):
        page.page.get_by_role("navigation").get_by_role("link", name=view).click()
        page.expect(page.page).to_have_title(f"{view} – facepipe")
        page.expect(page.page.get_by_role("heading", level=1)).to_have_count(1)
    page.open_person(one)
    page.expect(page.page).to_have_title("Ada – facepipe")


@pytest.mark.parametrize("name", [LONG, "W" * 1000, "\u202eevil", "محمد ابن موسى", "<b>Bold</b> & co", "e\u0301" * 30])
def test_no_name_widens_or_turns_the_page(open_page: Callable[..., Opened], served: Served, name: str) -> None:
    one, other = served.person("a1.png").person_id, served.person("c2.png").person_id
    served.people.name(one, name)
    page = open_page(served, viewport={"width": 320, "height": 640})
    page.sign_in()
    page.has(8)
    for route in (
        "people",
        f"person/{one}",
        f"person/{other}",
        "review",
        "unassigned",
        "changes",
        "store",
        "recognise",
    ):
        page.go(route)
        page.page.get_by_role("heading", level=1).wait_for()
        page.page.wait_for_load_state("networkidle")
        wide = page.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, route
    page.open_person(one)
    page.cards("Faces").first.get_by_role("button").last.click()
    dialog = page.page.get_by_role("dialog", name="Photo")
    dialog.wait_for()
    assert dialog.evaluate("it => it.scrollWidth - it.clientWidth") == 0
    page.page.keyboard.press("Escape")
    page.button("Hide").click()
    page.done()
    said = page.page.locator(".bar .said")
    page.expect(said).to_contain_text("Hidden: ")
    turned = said.evaluate(
        "it => it.getBoundingClientRect().left <= it.closest('.bar').getBoundingClientRect().left + 40"
    )
    assert turned  # it begins where a sentence does
