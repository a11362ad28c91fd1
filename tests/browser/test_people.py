"""The grid of people: found, sorted, chosen, merged and hidden; ten thousand of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from coded_store import person_id, plant

from pipeline.store.local import LocalStore
from tests.browser.opened import Opened
from tests.browser.served import Served, make_store, serving

if TYPE_CHECKING:
    from playwright.sync_api import Route

DRAWN = 150  # cards at most: the rows near the screen


def test_they_are_sorted_searched_and_counted(page: Opened, served: Served) -> None:
    served.people.name(served.person("d5.png").person_id, "Zoë")
    served.people.name(served.person("c2.png").person_id, "Ada")
    page.page.reload()
    page.has(8)
    page.expect(page.cards().first).to_contain_text("4 photos")
    page.page.get_by_label("Sort by").select_option("name")
    page.expect(page.cards().first).to_contain_text("Ada")
    page.page.get_by_label("Search").fill("zo")
    page.has(1)
    page.expect(page.cards()).to_contain_text("Zoë")
    page.page.get_by_label("Search").fill("nobody of that name")
    page.expect(page.page.get_by_text("Nobody fits")).to_be_visible()
    page.page.get_by_label("Search").fill("")
    page.page.get_by_label("Show").select_option("unnamed")
    page.has(6)


@pytest.mark.short
def test_chosen_people_become_one_and_two_again(page: Opened, served: Served) -> None:
    page.choose(0, 1)
    page.button("Merge").click()
    page.has(7)
    page.said("Merged")
    page.button("Undo").click()
    page.has(8)
    page.said("Undone")
    assert len(served.people.all()) == 8


def test_of_two_names_the_user_says_which_stays(page: Opened, served: Served) -> None:
    served.people.name(served.person("a1.png").person_id, "Ada")
    served.people.name(served.person("c2.png").person_id, "Grace")
    page.page.reload()
    page.choose(0, 1)
    page.button("Merge").click()
    dialog = page.page.get_by_role("dialog", name="Whose name stays?")
    dialog.get_by_role("button", name="Grace").click()
    page.has(7)
    page.done()
    assert {row.name for row in served.people.all()} == {"Grace", None}
    assert served.person("a1.png").photos == 5  # one photo shows both
    page.undo()  # the name and the merge are one
    page.has(8)
    assert {row.name for row in served.people.all()} == {"Ada", "Grace", None}


def test_hidden_people_are_found_where_they_are_hidden(page: Opened, served: Served) -> None:
    page.choose(5, 6, 7)
    page.button("Hide").click()
    page.has(5)
    page.done()
    assert sum(row.hidden for row in served.people.all()) == 3
    page.page.get_by_label("Show").select_option("hidden")
    page.has(3)
    page.choose(0)
    page.button("Show again").click()
    page.has(2)
    page.undo()
    page.has(3)
    page.undo()  # the one before
    page.page.get_by_label("Show").select_option("all")
    page.has(8)


@pytest.mark.parametrize(("one", "count"), [(False, 10_000), (True, 20_000)], ids=["people", "faces of one"])
def test_many_are_scrolled_through_by_few_cards(
    open_page: Callable[..., Opened], tmp_path: Path, one: bool, count: int
) -> None:
    make_store(tmp_path / "store")
    with LocalStore.open(tmp_path / "store", command="plant") as client:
        plant(client, count, one=one)
    with serving(tmp_path / "store") as served:
        opened = open_page(served)
        opened.sign_in()
        opened.expect(opened.page.get_by_role("main")).to_contain_text("20,000 photos" if one else "10,000")
        label = "Faces" if one else "People"
        if one:
            opened.open_person(person_id(0))
        opened.cards(label).first.wait_for()
        most, last = opened.page.evaluate(
            """async wanted => {
                let most = 0, last = 0;
                while (last < wanted) {
                    scrollTo(0, document.documentElement.scrollHeight);
                    await new Promise(requestAnimationFrame);
                    const cards = document.querySelectorAll(".card");
                    most = Math.max(most, cards.length);
                    last = Number(cards[cards.length - 1].getAttribute("aria-posinset"));
                }
                return [most, last];
            }""",
            count,
        )
        assert last == count
        assert most <= DRAWN
        opened.page.keyboard.press("Home")
        opened.expect(opened.cards(label).first).to_have_attribute("aria-posinset", "1")


def test_a_store_without_people_says_how_they_come(open_page: Callable[..., Opened], tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    with serving(tmp_path / "store") as served:
        opened = open_page(served)
        opened.sign_in()
        opened.expect(opened.page.get_by_text("Nobody is in here yet")).to_be_visible()
        opened.go("review")
        opened.expect(opened.page.get_by_text("There is no pair to answer")).to_be_visible()
        opened.go("store")
        opened.expect(opened.page.get_by_text("No run has filled this store")).to_be_visible()


def test_a_new_name_shows_however_soon_one_goes_on(page: Opened, served: Served) -> None:
    one, other = served.person("a1.png").person_id, served.person("c2.png").person_id
    card = page.cards().filter(has=page.page.locator(f"a[href*='{one}']"))
    card.get_by_role("link").click()
    page.give_name("Ada")
    page.done()
    held: list[Route] = []
    page.page.route(f"**/ui/api/people/{one}?*", lambda route: held.append(route))
    with page.page.expect_request(f"**/ui/api/people/{one}?*"):
        page.page.go_back()
    page.go(f"person/{other}")
    page.cards("Faces").first.wait_for()
    page.until(lambda: bool(held))
    for route in held:
        route.continue_()
    page.page.unroute_all()
    page.page.go_back()
    page.expect(card).to_contain_text("Ada")


@pytest.mark.parametrize("route", ["person/%zz", "constructor", "nothing"])
def test_an_address_that_names_no_view_shows_the_people(page: Opened, route: str) -> None:
    page.go("store")
    page.page.get_by_role("heading", name="Threshold").wait_for()
    page.go(route)
    page.has(8)
    page.page.reload()
    page.has(8)
