"""Chromium, driven by Playwright (the extra `browser`): for benchmarks and tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = Path("/usr/bin/chromium")
_BACKGROUND = ("background-networking", "component-update", "sync", "gpu")


@contextmanager
def launched() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--no-first-run", *(f"--disable-{part}" for part in _BACKGROUND)]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


def sign_in(page: Page, user: str, password: str) -> None:
    page.get_by_label("Account").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Sign in").wait_for(state="detached")
