"""The server goes away, and comes back: nothing that was typed or done is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.browser.opened import Opened
from tests.browser.served import PASSWORD, Served

if TYPE_CHECKING:
    from playwright.sync_api import Route


def test_what_was_typed_is_kept_while_the_server_is_gone(page: Opened, served: Served) -> None:
    person = served.person("a1.png").person_id
    page.open_person(person)
    served.go()
    page.give_name("Grace Hopper")
    page.expect(page.page.get_by_role("alert").filter(has_text="does not answer")).to_be_visible()
    page.expect(page.name).to_have_value("Grace Hopper")
    served.come()
    dialog = page.page.get_by_role("dialog", name="Sign in")  # sessions are of a server
    dialog.get_by_label("Password").fill(PASSWORD)
    page.page.keyboard.press("Enter")
    page.done()
    page.expect(page.page.get_by_text("does not answer")).to_have_count(0)
    assert served.people.show(person).name == "Grace Hopper"


def test_a_correction_whose_answer_was_lost_is_made_once(page: Opened, served: Served) -> None:
    """The server makes it, and the connection breaks before the answer: it can be undone all the same."""
    page.open_person(served.person("a1.png").person_id)

    def lose(route: Route) -> None:
        route.fetch()
        route.abort()

    page.page.route("**/ui/api/corrections?*", lose, times=1)
    page.cards("Faces").nth(1).get_by_role("button", name="Face 2", exact=True).click()
    page.button("Split off").click()
    page.has(3, "Faces")
    page.done()
    assert len(served.people.all()) == 9
    page.undo()
    page.has(4, "Faces")
    assert len(served.people.all()) == 8
