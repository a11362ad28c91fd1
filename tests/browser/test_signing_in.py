"""Signing in, sessions that end midway, and browsers that run no scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.browser.opened import Opened
from tests.browser.served import OTHER, PASSWORD, USER, Served

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_a_wrong_password_is_said_and_the_next_one_opens(open_page: Callable[..., Opened], served: Served) -> None:
    opened = open_page(served)
    opened.page.get_by_label("Account").fill(USER)
    opened.page.get_by_label("Password").fill("not it")
    opened.page.keyboard.press("Enter")
    opened.expect(opened.page.get_by_role("alert").filter(has_text="password")).to_be_visible()
    opened.expect(opened.page.get_by_label("Account")).to_have_value(USER)
    opened.page.keyboard.type(PASSWORD)  # the field has the focus, and what was wrong is selected
    opened.page.keyboard.press("Enter")
    opened.has(8)


def test_a_session_that_ended_is_begun_again_over_the_page(page: Opened, served: Served) -> None:
    person = served.person("c2.png").person_id
    page.open_person(person)
    with page.page.expect_response(lambda response: "q=Grace" in response.url):  # names are asked for while one types
        page.name.fill("Grace Hopper")
    page.context.clear_cookies()
    page.name.press("Enter")
    dialog = page.page.get_by_role("dialog", name="Sign in")
    page.expect(dialog).to_contain_text("session has ended")
    page.expect(dialog.get_by_label("Password")).to_be_focused()
    page.said("Saving: Named Grace Hopper")
    page.expect(page.name).to_have_value("Grace Hopper")
    for _ in range(2):
        page.page.keyboard.press("Escape")  # it cannot be left
    dialog.get_by_label("Password").fill(PASSWORD)
    page.page.keyboard.press("Enter")
    page.expect(dialog).to_have_count(0)
    page.done()
    assert served.people.show(person).name == "Grace Hopper"
    page.expect(page.name).to_have_value("Grace Hopper")


def test_another_accounts_sign_in_shows_in_every_tab(page: Opened, served: Served) -> None:
    """The cookie is of the browser: what the first tab asks for next would be done to the other account."""
    person = served.person("c2.png").person_id
    page.open_person(person)
    second = page.context.new_page()
    second.goto(served.page)
    second.get_by_role("button", name="Sign out").click()
    second.get_by_label("Account").fill(OTHER)
    second.get_by_label("Password").fill(PASSWORD)
    second.keyboard.press("Enter")
    second.get_by_role("button", name=f"Sign out {OTHER}").wait_for()
    page.name.focus()
    page.page.keyboard.type("Grace Hopper")  # names are asked for while one types, so the field may be gone at Enter
    page.page.keyboard.press("Enter")
    page.button(f"Sign out {OTHER}").wait_for()
    assert served.people.show(person).name is None


def test_signed_out_is_signed_out(page: Opened) -> None:
    page.button("Sign out").click()
    page.expect(page.page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.page.reload()
    page.expect(page.page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_without_scripts_it_says_what_it_needs(chromium: Browser, served: Served) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(served.page)
    assert "needs JavaScript" in page.inner_text("main")
    context.close()
