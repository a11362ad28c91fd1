"""What Undo takes back: the last change, at most one a press, and never more than was changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from coded_faces import Shown, photo

from tests.browser.opened import Opened
from tests.browser.served import Served

if TYPE_CHECKING:
    from playwright.sync_api import Route

STRANGER = 77


@pytest.fixture
def one(page: Opened, served: Served) -> str:
    """Has four faces, and is on the page."""
    person = served.person("a1.png").person_id
    page.open_person(person)
    return person


def name_as(page: Opened, *names: str) -> None:
    for name in names:
        page.give_name(name)
        page.done()
        page.button("Undo").wait_for()
    page.page.get_by_role("main").focus()


def enrol(page: Opened) -> None:
    page.go("recognise")
    page.page.get_by_label("photo").set_input_files(
        {"name": "new.png", "mimeType": "image/png", "buffer": photo(Shown(STRANGER))}
    )
    page.page.get_by_label("Name").fill("Grace")
    page.button("Enrol", exact=True).click()
    page.button("Undo").wait_for()


def test_an_enrolment_is_not_undone_once_the_person_was_merged(page: Opened, served: Served) -> None:
    """Undoing would delete the new person, which is the four old faces as well by now."""
    enrol(page)
    (grace,) = (row.person_id for row in served.people.all() if row.name == "Grace")
    served.people.merge(served.person("a1.png").person_id, grace)
    page.page.get_by_role("main").focus()
    page.page.keyboard.press("u")
    page.said("can't be undone")
    page.done()
    assert served.people.show(grace).faces == 5


def test_an_enrolment_of_somebody_who_is_gone_is_not_undone(page: Opened, served: Served) -> None:
    enrol(page)
    served.people.forget("Grace")
    page.button("Undo").click()
    page.expect(page.page.locator(".bar .warning")).to_be_visible()
    page.done()
    assert len(served.people.all()) == 8


def test_a_key_that_is_held_undoes_one_change(page: Opened, served: Served, one: str) -> None:
    name_as(page, "A", "B", "C")
    page.page.keyboard.down("u")
    page.said("Undone")
    page.done()
    for _ in range(5):
        page.page.keyboard.down("u")  # what a key that is held down sends
    page.done()
    assert served.people.show(one).name == "B"
    page.expect(page.name).to_have_value("B")


def test_presses_while_one_is_on_its_way_undo_nothing_more(page: Opened, served: Served, one: str) -> None:
    name_as(page, "A", "B", "C")
    held: list[Route] = []
    page.page.route("**/ui/api/corrections/undo?*", lambda route: held.append(route), times=1)
    for _ in range(3):
        page.page.keyboard.press("u")
    page.until(lambda: bool(held))
    held[0].continue_()
    page.said("Undone")
    page.done()
    assert served.people.show(one).name == "B"


def test_what_was_done_elsewhere_is_undone_after_a_question_only(page: Opened, served: Served, one: str) -> None:
    served.people.name(one, "Ada")
    page.page.reload()
    page.cards("Faces").first.wait_for()
    page.page.wait_for_load_state("networkidle")  # it knows the last change then
    page.expect(page.button("Undo")).to_have_count(0)
    dialog = page.page.get_by_role("dialog", name="done elsewhere")
    page.page.keyboard.press("u")
    page.expect(dialog).to_contain_text("“Ada”")
    dialog.get_by_role("button", name="Cancel").click()
    assert served.people.show(one).name == "Ada"
    page.page.keyboard.press("u")
    dialog.get_by_role("button", name="Undo it").click()
    page.said("Undone")
    page.done()
    assert served.people.show(one).name is None


def test_it_shows_in_a_view_that_was_left_and_opened_again(page: Opened, one: str) -> None:
    name_as(page, "Ada")
    page.go("people")
    page.has(8)
    page.open_person(one)
    page.expect(page.name).to_have_value("Ada")
    page.undo()
    page.expect(page.name).to_have_value("")


def test_an_undo_whose_answer_was_lost_shows(page: Opened, served: Served, one: str) -> None:
    name_as(page, "A", "B")

    def lose(route: Route) -> None:
        route.fetch()
        route.abort()

    page.page.route("**/ui/api/corrections/undo?*", lose, times=1)
    page.undo()
    page.expect(page.name).to_have_value("A")
    assert served.people.show(one).name == "A"


def test_any_change_is_undone_in_the_list(page: Opened, one: str, served: Served) -> None:
    name_as(page, "Grace")
    served.people.hide(one)
    page.go("changes")
    rows = page.cards("Changes")
    rows.nth(1).wait_for()
    assert "hiding" in rows.nth(0).inner_text()
    assert "you" in rows.nth(1).inner_text()
    rows.nth(1).get_by_role("button").click()
    page.said("Undone: the name of")
    page.done()
    rows.nth(2).wait_for()
    assert "undone" in rows.nth(2).inner_text()
    assert (served.people.show(one).name, served.people.show(one).hidden) == (None, True)
    rows.nth(0).get_by_role("button").click()  # the undo
    rows.nth(3).wait_for()
    assert served.people.show(one).name == "Grace"
