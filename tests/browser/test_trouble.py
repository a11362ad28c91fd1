"""The server goes away, and comes back: nothing that was typed or done is lost."""

from __future__ import annotations

import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from coded_faces import Shown, photo

from pipeline.serve.admin import open_admin_port
from tests.browser.opened import Opened
from tests.browser.served import PASSWORD, USER, Served
from tests.people.coded_archive import run_over, write_photo

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


def test_a_correction_goes_to_the_directory_that_it_was_made_in(page: Opened, served: Served) -> None:
    """Another one is chosen while the server is gone."""
    body = base64.b64encode(photo(Shown(50))).decode()
    page.page.evaluate(
        """body => fetch("/ui/api/enrol?x=0.5&y=0.5&directory=other", {
            method: "POST", headers: { "X-Facepipe-Page": "1", "Content-Type": "application/octet-stream" },
            body: Uint8Array.from(atob(body), letter => letter.charCodeAt()),
        })""",
        body,
    )
    page.page.reload()
    person = served.person("a1.png").person_id
    page.open_person(person)
    served.go()
    page.give_name("Grace Hopper")
    page.expect(page.page.get_by_role("alert").filter(has_text="does not answer")).to_be_visible()
    page.page.get_by_label("Directory").select_option("other")
    served.come()
    page.page.get_by_role("dialog", name="Sign in").get_by_label("Password").fill(PASSWORD)
    page.page.keyboard.press("Enter")
    page.has(1)
    page.done()
    page.until(lambda: served.people.show(person).name == "Grace Hopper")
    page.expect(page.button("Undo")).to_have_count(0)  # nothing was done in this directory


def test_what_somebody_else_did_meanwhile_is_not_taken_for_ours(page: Opened, served: Served) -> None:
    person = served.person("a1.png").person_id
    page.open_person(person)

    def lose(route: Route) -> None:
        served.people.name(person, "Ada")
        route.abort()

    page.page.route("**/ui/api/corrections?*", lose, times=1)
    page.give_name("Grace")
    page.expect(page.page.locator(".bar .warning")).to_be_visible()
    page.expect(page.page.get_by_role("heading", level=1)).to_have_text("Ada")
    page.expect(page.name).to_have_value("Grace")  # what was typed stays
    assert served.people.show(person).name == "Ada"


@pytest.mark.parametrize(("button", "people"), [("Split off", 9), ("Nobody", 8)])
def test_a_correction_whose_answer_was_lost_is_made_once(
    page: Opened, served: Served, button: str, people: int
) -> None:
    """The server makes it, and the connection breaks before the answer: it can be undone all the same."""
    page.open_person(served.person("a1.png").person_id)
    asked: list[str] = []

    def lose(route: Route) -> None:
        route.fetch()
        route.abort()

    page.page.on("request", lambda request: asked.append(request.method + request.url.partition("/api/")[2]))
    page.page.route("**/ui/api/corrections?*", lose, times=1)
    page.cards("Faces").nth(1).get_by_role("button", name="Face 2", exact=True).click()
    page.button(button).click()
    page.has(3, "Faces")
    page.done()
    assert asked.count("POSTcorrections?directory=main") == 1
    assert len(served.people.all()) == people
    page.undo()
    page.has(4, "Faces")
    assert len(served.people.all()) == 8


@pytest.mark.parametrize("button", ["Hide", "Cover picture", "Merge with…", "Not the same as…"])
def test_a_server_that_restarts_before_its_answer_has_done_it_once(page: Opened, served: Served, button: str) -> None:
    """The session is of the former server: who goes on signs in again."""
    person = served.person("a1.png").person_id
    page.open_person(person)
    before = len(served.people.log(50))

    def lose(route: Route) -> None:
        route.fetch()
        served.go()
        served.come()
        route.abort()

    page.page.route("**/ui/api/corrections?*", lose, times=1)
    if button == "Cover picture":
        page.cards("Faces").nth(1).get_by_role("button").first.click()
    page.button(button).click()
    if button.endswith("…"):
        page.page.get_by_role("dialog").get_by_role("listitem").first.get_by_role("button").click()
    page.page.get_by_label("Password").fill(PASSWORD)
    page.page.get_by_label("Password").press("Enter")
    page.done()
    assert len(served.people.log(50)) == before + 1
    page.expect(page.page.locator(".bar .said")).not_to_contain_text("Saving")


def test_a_name_in_the_grid_survives_a_server_that_is_gone(page: Opened, served: Served) -> None:
    page.cards().first.get_by_role("link").focus()
    page.page.keyboard.press("n")
    page.expect(page.page.locator(".in-grid input")).to_be_focused()
    served.go()
    for name in ("Ada", "Berta"):
        page.page.keyboard.type(name)
        page.page.keyboard.press("Enter")
    page.said("Saving: Named Berta")
    served.come()
    page.page.get_by_label("Password").fill(PASSWORD)
    page.page.get_by_label("Password").press("Enter")
    page.done()
    assert {"Ada", "Berta"} <= {row.name for row in served.people.all()}


def test_two_browsers_correct_one_person_while_a_run_commits(
    page: Opened, open_page: Callable[..., Opened], served: Served, store: Path, tmp_path: Path
) -> None:
    person = served.person("a1.png").person_id
    for number in range(30):
        write_photo(tmp_path / "more", f"{number}.png", Shown(1, 20 + number), Shown(100 + number))
    other = open_page(served)
    other.sign_in()
    other.open_person(person)
    page.open_person(person)
    with open_admin_port(served.store), ThreadPoolExecutor(1) as threads:
        running = threads.submit(run_over, tmp_path / "more", store, account=USER)
        for number in range(6):
            for each, name in ((page, f"Ada {number}"), (other, f"Grace {number}")):
                each.give_name(name)
        assert running.result().images == 30
        for each in (page, other):
            each.done()
    named = served.people.show(person)
    assert str(named.name).split()[0] in ("Ada", "Grace")
    assert named.faces >= 4 + 30
    assert served.store.local.check().problems == []
