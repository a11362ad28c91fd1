"""The Store view: what is in the store, what runs brought, and another threshold, tried and applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.opened import Opened
from tests.browser.served import Served

if TYPE_CHECKING:
    from playwright.sync_api import Route


@pytest.mark.short
def test_another_threshold_is_tried_then_applied_and_undone(page: Opened, served: Served) -> None:
    page.go("store")
    main = page.page.get_by_role("main")
    page.expect(main).to_contain_text("Of somebody with a name")
    page.expect(main).to_contain_text("(1): 1 too poor to recognise by")
    page.expect(main).to_contain_text("1 turned away")
    page.expect(main).to_contain_text("Of 1,000 photos of people who are new here, fewer than 1 would be given")
    page.expect(page.page.get_by_role("row").nth(1)).to_contain_text("finished")
    slider = page.page.get_by_label("Another threshold")
    slider.press("Home")
    page.button("What would change?").click()
    page.expect(main).to_contain_text("new people. ")
    assert len(served.people.all()) == 8
    page.button("Group all faces by it").click()
    page.said("All faces were grouped at")
    page.until(lambda: len(served.people.all()) > 8)
    page.expect(page.page.get_by_role("heading", name="Threshold")).to_be_visible()
    page.expect(main).to_contain_text("It was set for this directory")
    page.undo()
    assert len(served.people.all()) == 8
    page.expect(main).not_to_contain_text("It was set for this directory")
    page.button("What would change?").click()
    page.expect(main).to_contain_text("Nothing would change")
    assert page.findings() == []


def test_what_only_asks_holds_up_no_correction(page: Opened, served: Served) -> None:
    held: list[Route] = []
    page.page.route("**/ui/api/regroup?*", lambda route: held.append(route), times=1)
    page.go("store")
    page.button("What would change?").click()
    page.until(lambda: bool(held))
    page.done()  # nothing is saved
    person = served.person("a1.png").person_id
    page.open_person(person)
    page.give_name("Ada")
    page.done()
    assert served.people.show(person).name == "Ada"
    held[0].continue_()
