"""One person: each correction and its undoing, names of all kinds, and two browsers at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.browser.opened import Opened
from tests.browser.served import Served

if TYPE_CHECKING:
    from playwright.sync_api import Route


@pytest.fixture
def ada(served: Served) -> str:
    """Has two faces and a name."""
    person = served.person("c2.png").person_id
    served.people.name(person, "Ada")
    return person


@pytest.fixture
def one(page: Opened, served: Served) -> str:
    """Has four faces, and is on the page."""
    person = served.person("a1.png").person_id
    page.open_person(person)
    page.has(4, "Faces")
    return person


def choose_faces(page: Opened, *places: int) -> None:
    for place in places:
        page.cards("Faces").nth(place).get_by_role("button", name=f"Face {place + 1}", exact=True).click()


@pytest.mark.parametrize(
    "name",
    ["<b>Bold</b> & <img src=x onerror=alert(1)>", "🦊👩‍👩‍👧", "שרה כהן", "x" * 1000],
    ids=["html", "emoji", "right-to-left", "long"],
)
def test_a_name_is_shown_as_it_was_typed(page: Opened, served: Served, one: str, name: str) -> None:
    page.give_name(name)
    page.done()
    assert served.people.show(one).name == name
    page.go("people")
    page.expect(page.cards().first.locator("bdi")).to_have_text(name)
    assert page.cards().first.locator("b, img[onerror]").count() == 0
    assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.undo()
    assert served.people.show(one).name is None
    page.expect(page.cards().first).to_contain_text("No name yet")


def test_a_name_that_is_there_offers_to_merge(page: Opened, served: Served, ada: str, one: str) -> None:
    page.give_name("Ada")
    dialog = page.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Cancel").click()
    page.expect(page.name).to_have_value("Ada")  # what was typed stays
    page.name.press("Enter")
    dialog.get_by_role("button", name="Two people of that name").click()
    page.said("Named Ada")
    page.done()
    assert [row.name for row in served.people.all()].count("Ada") == 2
    page.undo()
    page.give_name("Ada")
    dialog.get_by_role("button", name="Merge with Ada").click()
    page.has(6, "Faces")
    page.done()
    merged = served.people.show(ada)
    assert (merged, merged.name) == (served.people.show(one), "Ada")
    page.undo()
    assert len(served.people.all()) == 8


@pytest.mark.parametrize("second", ["Grace", "Eve"], ids=["free", "taken"])
def test_a_name_that_is_refused_leaves_the_next_one(
    page: Opened, served: Served, ada: str, one: str, second: str
) -> None:
    """Both are saved before the server answers the first."""
    served.people.name(served.person("d3.png").person_id, "Eve")
    held: list[Route] = []
    page.page.route("**/ui/api/corrections?*", lambda route: held.append(route), times=1)
    for name in ("Ada", second):
        page.give_name(name)
    page.until(lambda: bool(held))
    held[0].continue_()
    heading = page.page.get_by_role("heading", level=1)
    if second == "Eve":
        page.page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        page.expect(heading).to_have_text("somebody without a name")
    page.done()
    page.expect(page.name).to_have_value(second)  # a name that was not taken stays there
    page.expect(page.page.get_by_role("dialog")).to_have_count(0)
    if second == "Grace":
        page.expect(heading).to_have_text("Grace")
        assert served.people.show(one).name == "Grace"


def test_faces_split_off_are_somebody_new(page: Opened, served: Served, one: str) -> None:
    choose_faces(page, 1, 2)
    page.button("Split off").click()
    page.has(2, "Faces")
    page.done()
    assert len(served.people.all()) == 9
    page.undo()
    page.has(4, "Faces")
    assert len(served.people.all()) == 8


def test_a_face_is_moved_to_another_or_to_nobody(page: Opened, served: Served, ada: str, one: str) -> None:
    choose_faces(page, 1)
    page.button("Move to").click()
    page.pick("Ada")
    page.has(3, "Faces")
    page.said("moved to Ada")
    page.done()
    assert served.people.show(ada).faces == 3
    page.undo()
    page.has(4, "Faces")
    choose_faces(page, 3)
    page.button("Nobody").click()
    page.has(3, "Faces")
    page.undo()
    page.has(4, "Faces")
    assert served.people.show(ada).faces == 2


def test_enter_takes_nobody_who_was_found_by_what_was_typed_before(
    page: Opened, served: Served, ada: str, one: str
) -> None:
    choose_faces(page, 1)
    page.button("Move to").click()
    dialog = page.page.get_by_role("dialog")
    dialog.get_by_role("listitem").nth(2).wait_for()
    dialog.get_by_role("searchbox").fill("Nobody of that name")
    page.page.keyboard.press("Enter")
    page.expect(dialog.get_by_text("Nobody fits")).to_be_visible()
    dialog.get_by_role("searchbox").fill("Ada")
    page.expect(dialog.get_by_role("listitem")).to_have_count(1)
    page.page.keyboard.press("Enter")
    page.said("moved to Ada")


def test_back_leaves_a_question_with_its_view(page: Opened, one: str) -> None:
    page.button("Merge with").click()
    page.expect(page.page.get_by_role("dialog")).to_be_visible()
    page.page.go_back()
    page.has(8)
    page.expect(page.page.get_by_role("dialog")).to_have_count(0)


def test_back_leads_past_somebody_who_was_merged(page: Opened, served: Served, ada: str, one: str) -> None:
    served.people.merge(ada, one)
    (gone,) = {ada, one} - {row.person_id for row in served.people.all()}
    page.go("people")
    page.open_person(gone)
    page.page.wait_for_url(lambda url: gone not in url)
    page.page.go_back()
    page.page.get_by_role("heading", name="People").wait_for()


def test_what_is_typed_stays_when_the_name_changes_meanwhile(page: Opened, served: Served, one: str) -> None:
    page.name.fill("Grace")
    served.people.name(one, "Ada")
    choose_faces(page, 3)
    page.button("Nobody").click()  # refused, and loaded anew
    page.expect(page.page.locator(".bar .warning")).to_be_visible()
    page.expect(page.page.get_by_role("heading", level=1)).to_have_text("Ada")
    page.expect(page.name).to_have_value("Grace")


def test_two_people_stay_two_until_it_is_said_anyway(page: Opened, served: Served, ada: str, one: str) -> None:
    page.button("Not the same as").click()
    page.pick("Ada")
    page.said("two people")
    page.button("Merge with").click()
    page.pick("Ada")
    page.page.get_by_role("dialog", name="Two people").get_by_role("button", name="Merge them").click()
    page.has(6, "Faces")
    page.button("Take 1 merged person out").click()
    page.has(4, "Faces")
    page.undo()
    page.undo()
    page.undo()
    page.expect(page.button("Undo")).to_have_count(0)  # what the command line did is not offered
    assert len(served.people.all()) == 8


def test_hidden_and_shown_again(page: Opened, served: Served, one: str) -> None:
    page.button("Hide").click()
    page.expect(page.page.get_by_text("hidden", exact=True)).to_be_visible()
    page.done()
    assert served.people.show(one).hidden
    page.undo()
    page.button("Hide").wait_for()
    assert not served.people.show(one).hidden


def test_forgetting_wants_a_word_and_is_for_ever(page: Opened, served: Served, one: str) -> None:
    page.button("Forget").click()
    dialog = page.page.get_by_role("dialog", name="Forget")
    page.expect(dialog).to_contain_text("4 faces")
    dialog.get_by_role("textbox").fill("forge")
    page.expect(dialog.get_by_role("button", name="Forget for ever")).to_be_disabled()
    page.page.keyboard.press("Escape")
    page.expect(dialog).to_have_count(0)
    page.expect(page.button("Forget")).to_be_focused()
    page.button("Forget").click()
    dialog.get_by_role("textbox").fill("forget")
    page.page.keyboard.press("Enter")
    page.has(7)
    page.said("Forgotten")
    page.expect(page.button("Undo")).to_have_count(0)
    assert len(served.people.all()) == 7


def test_a_face_shows_its_photo(page: Opened, one: str) -> None:
    page.cards("Faces").filter(has_text="b-both.png").get_by_role("button", name="b-both.png").click()
    dialog = page.page.get_by_role("dialog", name="Photo")
    page.expect(dialog).to_contain_text("b-both.png")
    page.expect(dialog.locator(".box")).to_be_visible()
    assert dialog.locator("img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 128
    page.page.keyboard.press("Escape")
    page.expect(dialog).to_have_count(0)


def test_of_two_browsers_the_later_sees_what_happened(
    page: Opened, open_page: Callable[..., Opened], served: Served, one: str
) -> None:
    other = open_page(served)
    other.sign_in()
    other.open_person(one)
    other.give_name("Grace")
    other.done()
    page.give_name("Ada")
    page.expect(page.page.locator(".bar .warning")).to_contain_text("the name of “Grace”")
    page.expect(page.page.get_by_role("main")).to_contain_text("The name is Grace.")
    page.expect(page.name).to_have_value("Ada")  # what was typed stays
    page.page.reload()
    page.expect(page.name).to_have_value("Grace")
    assert served.people.show(one).name == "Grace"


@pytest.mark.parametrize("who", ["00000000-0000-0000-0000-000000000000", "..%2Fstore", "x", ""])
def test_somebody_who_is_not_there(page: Opened, who: str) -> None:
    page.go(f"person/{who}")
    page.expect(page.page.get_by_role("heading", name="Nobody")).to_be_visible()
    page.page.get_by_role("link", name="All people").click()
    page.has(8)
