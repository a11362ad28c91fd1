"""Naming in the grid by the keyboard: names offered, who somebody looks like, the next one, several at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.browser.opened import Opened
from tests.browser.served import Served

if TYPE_CHECKING:
    from playwright.sync_api import Route

PEOPLE = 8


def field(page: Opened) -> object:
    return page.page.get_by_role("list", name="People").get_by_role("combobox")


def names(served: Served) -> set[str | None]:
    return {row.name for row in served.people.all()}


@pytest.mark.short
def test_enter_goes_on_to_the_next_without_a_name(page: Opened, served: Served) -> None:
    keys = page.page.keyboard
    page.cards().first.get_by_role("link").focus()
    keys.press("n")
    for name in ("Ada", "Berta", "", "Dora"):  # the third stays as it is
        keys.type(name)  # at once: no key is lost
        keys.press("Enter")
    page.done()
    named = [row.name for row in sorted(served.people.all(), key=lambda row: -row.photos) if row.name]
    assert named[:2] == ["Ada", "Berta"]
    assert names(served) == {"Ada", "Berta", "Dora", None}
    keys.press("Escape")
    page.expect(field(page)).to_have_count(0)
    page.expect(page.cards().nth(4).get_by_role("link")).to_be_focused()
    page.undo()
    assert "Dora" not in names(served)


def test_names_that_exist_are_offered_by_parts_of_their_words(page: Opened, served: Served) -> None:
    served.people.name(served.person("a1.png").person_id, "María del_Carmen Ünver")
    page.page.reload()
    page.has(PEOPLE)
    keys = page.page.keyboard
    page.cards().nth(1).get_by_role("link").focus()
    keys.press("n")
    keys.type("unver")
    option = page.page.locator(".offered [role=option]")
    page.expect(option).to_have_count(1)
    page.expect(option).to_contain_text("María")
    held: list[Route] = []
    page.page.route("**/ui/api/people?*q=unver+maria&*", lambda route: held.append(route), times=1)
    keys.type(" maria")
    keys.press("ArrowDown")  # what is offered, though the server has not answered for all that is typed
    page.expect(option).to_have_attribute("aria-selected", "true")
    page.until(lambda: bool(held))
    keys.press("Enter")
    page.said("Merged")
    held[0].continue_()
    page.done()
    assert served.person("c2.png").name == "María del_Carmen Ünver"
    page.has(PEOPLE - 1)
    page.undo()
    page.has(PEOPLE)


def test_who_somebody_looks_like_is_offered_first(open_page: Callable[..., Opened], doubted: Served) -> None:
    """Each of four is two people to the store; one of each two has a name."""
    for number, row in enumerate(doubted.people.all()):
        if number % 2 == 0:
            doubted.people.name(row.person_id, f"Person {number}")
    page = open_page(doubted)
    page.sign_in()
    page.page.get_by_label("Show").select_option("unnamed")
    page.has(4)
    page.cards().first.get_by_role("link").focus()
    page.page.keyboard.press("n")
    first = page.page.locator(".offered [role=option]").first
    page.expect(first).to_contain_text("Looks like Person")
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("Enter")
    page.said("Merged")
    page.done()
    assert len(doubted.people.all()) == 7
    page.expect(field(page)).to_be_focused()  # of the next one


def test_several_get_one_name(page: Opened, served: Served) -> None:
    page.choose(0, 1, 2)
    page.button("Name…").click()
    dialog = page.page.get_by_role("dialog")
    dialog.get_by_role("searchbox").fill("Ada Lovelace")
    dialog.get_by_role("button", name="Somebody new: Ada Lovelace").click()
    page.has(PEOPLE - 2)
    page.done()
    assert names(served) == {"Ada Lovelace", None}
    page.choose(1, 2)
    page.button("Name…").click()
    dialog.get_by_role("searchbox").fill("lovelace")
    dialog.get_by_role("button", name="Ada Lovelace").click()
    page.has(PEOPLE - 4)
    page.done()
    assert names(served) == {"Ada Lovelace", None}
    assert len(served.people.all()) == PEOPLE - 4


def test_several_get_a_name_that_is_somebody_s(page: Opened, served: Served) -> None:
    served.people.name(served.person("a1.png").person_id, "Ada")
    page.page.reload()
    page.expect(page.cards().filter(has_text="Ada")).to_have_count(1)
    dialog = page.page.get_by_role("dialog", name="taken")
    for answer, left in (("Two people", PEOPLE - 1), ("Merge with Ada", PEOPLE - 2)):
        page.choose(1, 2)
        page.button("Name…").click()
        page.page.get_by_role("dialog").get_by_role("searchbox").fill("ada")
        page.button("Somebody new: ada").click()
        dialog.get_by_role("button", name=answer).click()
        page.said("Merged")
        page.has(left)
        page.done()
        assert len(served.people.all()) == left
        assert len([row for row in served.people.all() if row.name]) == (2 if answer == "Two people" else 1)
        page.undo()
        page.has(PEOPLE)


def test_the_dialog_is_for_the_keyboard(page: Opened, served: Served) -> None:
    for place, name in ((0, "Ada Lovelace"), (1, "Berta")):
        served.people.name(page.cards().nth(place).get_by_role("link").get_attribute("href").split("/")[-1], name)  # type: ignore[union-attr]
    page.page.reload()
    page.has(PEOPLE)
    keys, dialog = page.page.keyboard, page.page.get_by_role("dialog")
    page.choose(2, 3)
    page.button("Name…").focus()
    keys.press("Enter")
    keys.type("Nobody Has It")  # at once: no letter is lost
    page.expect(dialog.get_by_role("searchbox")).to_have_value("Nobody Has It")
    page.expect(dialog.get_by_role("listitem")).to_have_text(["Somebody new: Nobody Has It"])
    page.expect(dialog.get_by_text("Nobody fits.")).to_have_count(0)
    keys.press("Enter")
    page.has(PEOPLE - 1)
    page.done()
    assert "Nobody Has It" in names(served)
    page.choose(3)
    page.button("Name…").click()
    page.expect(dialog.get_by_role("listitem").first).to_contain_text("Ada")
    for _ in range(2):
        keys.press("ArrowDown")
    page.expect(dialog.get_by_role("listitem").nth(1).get_by_role("button")).to_be_focused()
    keys.press("ArrowUp")
    keys.press("ArrowUp")
    page.expect(dialog.get_by_role("searchbox")).to_be_focused()
    keys.press("ArrowDown")
    keys.press("Enter")
    page.said("with Ada Lovelace")


def test_what_was_typed_is_not_lost(page: Opened, served: Served, open_page: Callable[..., Opened]) -> None:
    """What another browser refused, and what was left half-typed."""
    other = open_page(served)
    other.sign_in()
    keys, one = page.page.keyboard, page.cards().first
    one.get_by_role("link").focus()
    keys.press("n")
    keys.type("AAA One")
    keys.press("Enter")
    page.done()
    other.cards().first.get_by_role("link").focus()
    other.page.keyboard.press("n")
    other.page.keyboard.type("AAB Two")
    other.page.keyboard.press("Enter")
    other.said("Not done: Named AAB Two")
    other.expect(other.cards().first).to_contain_text("AAA One")
    other.button("Not saved: AAB Two").click()
    other.expect(other.cards().first.get_by_role("combobox")).to_have_value("AAB Two")
    other.page.keyboard.press("Enter")
    other.said("Named AAB Two")
    other.done()
    assert "AAB Two" in names(served)
    other.cards().nth(1).get_by_role("link").focus()
    other.page.keyboard.press("n")
    other.page.keyboard.type("Half")
    other.page.keyboard.press("Tab")
    other.cards().nth(2).get_by_role("link").focus()
    other.page.keyboard.press("n")
    other.go("store")
    other.page.get_by_role("heading", name="Threshold").wait_for()
    other.go("people")
    other.button("Not saved: Half").click()
    other.expect(other.cards().nth(1).get_by_role("combobox")).to_have_value("Half")
    other.page.keyboard.press("Escape")
    other.expect(other.button("Not saved")).to_have_count(0)


def test_a_name_that_is_taken_is_asked_about_and_stays_in_the_field(page: Opened, served: Served) -> None:
    served.people.name(served.person("a1.png").person_id, "Ada")
    page.page.reload()
    page.has(PEOPLE)
    page.cards().nth(1).get_by_role("link").focus()
    page.page.keyboard.press("n")
    page.page.keyboard.type("ada")
    page.page.keyboard.press("Enter")
    dialog = page.page.get_by_role("dialog", name="taken")
    dialog.get_by_role("button", name="Two people").click()
    page.said("Named ada")
    page.done()
    assert {"Ada", "ada"} <= names(served)
    page.page.reload()
    page.expect(page.cards().filter(has_text="2 of this name")).to_have_count(2)
    page.cards().nth(1).get_by_role("link").click()
    page.page.get_by_role("link", name="2 people of this name").click()
    page.has(2)


def test_arrows_and_shift_choose_a_range(page: Opened) -> None:
    keys = page.page.keyboard
    page.cards().first.get_by_role("link").focus()
    keys.press("ArrowRight")
    page.expect(page.cards().nth(1).get_by_role("link")).to_be_focused()
    keys.press("Space")
    for _ in range(3):
        keys.press("ArrowRight")
    keys.press("Shift+Space")
    page.expect(page.page.get_by_text("4 chosen")).to_be_visible()
    keys.press("Shift+Tab")
    keys.press("Tab")
    page.expect(page.cards().nth(4).get_by_role("link")).to_be_focused()  # one Tab stop a card
    page.cards().nth(6).get_by_role("checkbox").click(modifiers=["Shift"], force=True)
    page.expect(page.page.get_by_text("6 chosen")).to_be_visible()
    page.open_person(page.cards().first.get_by_role("link").get_attribute("href").split("/")[-1])  # type: ignore[union-attr]
    page.cards("Faces").first.get_by_role("button").first.focus()
    keys.press("Space")
    keys.press("ArrowRight")
    keys.press("ArrowRight")
    page.cards("Faces").nth(2).get_by_role("button").first.click(modifiers=["Shift"])
    page.expect(page.page.get_by_text("3 chosen")).to_be_visible()


@pytest.mark.parametrize("spaces", [True, False])
def test_underscores_of_folders_may_be_shown_as_spaces(
    open_page: Callable[..., Opened], store: object, filled: object, spaces: bool
) -> None:
    from tests.browser.served import serving

    with serving(store, ui__label_spaces=spaces) as served:  # type: ignore[arg-type]
        served.people.name(served.person("a1.png").person_id, "Ada_Lovelace")
        page = open_page(served)
        page.sign_in()
        page.expect(page.cards().first).to_contain_text("Ada Lovelace" if spaces else "Ada_Lovelace")
        page.page.get_by_label("Search").fill("lovelace ada")
        page.has(1)
        shown = "Ada Lovelace" if spaces else "Ada_Lovelace"
        page.cards().first.get_by_role("link").focus()
        page.page.keyboard.press("n")
        page.expect(field(page)).to_have_value(shown)
        page.page.keyboard.press("Enter")  # as it was
        page.open_person(served.person("a1.png").person_id)
        page.expect(page.name).to_have_value(shown)
        page.name.press("Enter")
        page.expect(page.button("Save", exact=True)).to_have_count(0)
        page.go("changes")
        page.expect(page.page.get_by_role("listitem").filter(has_text=f"the name of “{shown}”")).to_be_visible()
        assert served.person("a1.png").name == "Ada_Lovelace"
