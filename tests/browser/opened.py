"""The page in a browser, and what tests do with it again and again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from chromium import sign_in

from tests.browser.served import PASSWORD, USER, Served

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage, Locator

AXE = Path(__file__).with_name("vendor") / "axe.min.js"
_TIMEOUT_MS = 60_000  # of what a test waits for; a busy machine is not a failure


class Opened:
    """`page` and `expect` are Playwright's. `errors` are those of scripts and of the content security policy."""

    def __init__(self, context: BrowserContext, served: Served) -> None:
        from playwright.sync_api import expect

        expect.set_options(timeout=_TIMEOUT_MS)
        self.expect = expect
        self.context = context
        self.served = served
        self.errors: list[str] = []
        context.set_default_timeout(_TIMEOUT_MS)
        self.page = context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._heard)
        self.page.goto(served.page)

    def _heard(self, message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text:
            self.errors.append(message.text)

    def sign_in(self, user: str = USER, password: str = PASSWORD) -> None:
        sign_in(self.page, user, password)

    def go(self, route: str) -> None:
        """`route`: as in the address after #/."""
        self.page.evaluate("route => { location.hash = '#/' + route }", route)

    def button(self, name: str, *, exact: bool = False) -> Locator:
        return self.page.get_by_role("button", name=name, exact=exact)

    def undo(self) -> None:
        """By the key, which in a field would be a letter."""
        self.done()
        self.page.get_by_role("main").focus()
        self.page.keyboard.press("u")
        self.said("Undone")
        self.done()

    def done(self) -> None:
        """Waits until the server has answered every change."""
        self.expect(self.page.locator(".bar")).to_have_attribute("aria-busy", "false")

    def said(self, text: str) -> None:
        """Waits until the bar says it."""
        self.expect(self.page.locator(".bar .said")).to_contain_text(text)

    def cards(self, label: str = "People") -> Locator:
        return self.page.get_by_role("list", name=label).get_by_role("listitem")

    def findings(self) -> list[tuple[str, str]]:
        """What axe-core finds: the rule, and the first element."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text("utf-8"))
        results = self.page.evaluate("axe.run({ resultTypes: ['violations'] })")
        return [(each["id"], each["nodes"][0]["html"]) for each in results["violations"]]

    def until(self, is_so: Callable[[], bool]) -> None:
        """Waits for what is not of the page; handlers of routes run meanwhile."""
        deadline = monotonic() + _TIMEOUT_MS / 1000
        while not is_so():
            assert monotonic() < deadline, self.page.locator("body").aria_snapshot()
            self.page.wait_for_timeout(20)

    def has(self, count: int, label: str = "People") -> None:
        """Waits until the grid has so many cards."""
        self.expect(self.cards(label)).to_have_count(count)

    def show(self, which: str) -> None:
        """Of the grid of people, and waits for the answer."""
        with self.page.expect_response(lambda response: f"show={which}" in response.url):
            self.page.get_by_label("Show").select_option(which)
        self.expect(self.page.locator("[aria-busy=false] > .window")).to_have_count(1)

    def choose(self, *places: int) -> None:
        """People of the grid."""
        for place in places:
            self.cards().nth(place).get_by_role("checkbox").check(force=True)

    def open_person(self, person: str) -> None:
        self.go(f"person/{person}")
        self.cards("Faces").first.wait_for()

    @property
    def name(self) -> Locator:
        """The field of a person's name."""
        return self.page.locator(".naming input")

    def give_name(self, name: str) -> None:
        self.name.fill(name)
        self.name.press("Enter")

    def pick(self, name: str) -> None:
        """In the dialog that asks for a person."""
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_role("searchbox").fill(name)
        dialog.get_by_role("listitem").filter(has_text=name).get_by_role("button").click()
