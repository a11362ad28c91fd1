"""Pairs who may be one, answered by the keyboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from coded_faces import Shown

from tests.browser.opened import Opened
from tests.browser.served import DOUBT, Served, fill, serving
from tests.people.coded_archive import index_otherwise

if TYPE_CHECKING:
    from playwright.sync_api import Locator

PAIRS = 4
PARTS = ((1e-6, 0.04), (1e-3, 0.05))  # most people are in parts at the first threshold


@pytest.fixture
def served(doubted: Served) -> Served:
    return doubted


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Served]:
    """Three photos of one person, who are three people to the run: each two are a pair."""
    store = fill(tmp_path, {f"{variant}.png": [Shown(1, variant)] for variant in range(3)}, DOUBT) / "store"
    with serving(store, match__threshold=DOUBT[0][1]) as made:
        yield made


@pytest.fixture
def page_of_chain(open_page: Callable[..., Opened], chain: Served) -> Opened:
    page = open_page(chain)
    page.sign_in()
    page.go("review")
    return page


def shown(page: Opened) -> tuple[str, ...]:
    """The people of the pair on the page."""
    return tuple(sorted(shown_in_order(page)))


def shown_in_order(page: Opened) -> list[str]:
    page.page.locator(".pair").wait_for()
    links = page.page.locator(".pair section > p a").all()
    return [str(link.get_attribute("href")).rpartition("/")[2] for link in links]


def link(page: Opened, person: str) -> Locator:
    return page.page.locator(f".pair section > p a[href$='{person}']")


@pytest.fixture
def indexed(tmp_path: Path) -> Iterator[Served]:
    """Two people in parts, whom the store's newer index would put together otherwise."""
    photos = {f"{who}-{variant}.png": [Shown(who, variant)] for who in range(1, 7) for variant in range(1, 5)}
    store = fill(tmp_path, photos, PARTS) / "store"
    index_otherwise(store)
    with serving(store, ui__photo_roots=str(tmp_path / "photos"), match__threshold=PARTS[0][1]) as made:
        yield made


def test_what_the_newer_index_would_decide_otherwise(open_page: Callable[..., Opened], indexed: Served) -> None:
    """Its pairs are answered as others are; its moves are made one by one, and can be undone."""
    page = open_page(indexed)
    page.sign_in()
    page.go("review")
    page.page.get_by_role("link", name="would decide otherwise").click()
    page.expect(page.page.get_by_text("Nothing is changed by it unless you say so")).to_be_visible()
    moves = page.page.locator(".moves li")
    count, before = moves.count(), len(indexed.people.all())
    assert count
    move = moves.get_by_role("button", name="Move").first
    move.click()
    page.said("moved to")
    page.expect(moves).to_have_count(count - 1)
    page.undo()
    page.expect(moves).to_have_count(count)
    together = shown(page)
    page.page.keyboard.press("n")
    page.said("Not the same")
    page.done()
    assert len(indexed.people.all()) == before
    page.page.reload()
    page.expect(page.page.get_by_text("Nothing is changed by it unless you say so")).to_be_visible()
    page.expect(link(page, together[0])).to_have_count(0)
    page.page.get_by_role("link", name="Back to the pairs of now").click()
    page.expect(page.page.get_by_role("link", name="would decide otherwise")).to_be_visible()


def test_what_a_regroup_would_change_of_somebody_named(open_page: Callable[..., Opened], tmp_path: Path) -> None:
    photos = {f"{variant}.png": [Shown(3, variant)] for variant in range(1, 5)}
    store = fill(tmp_path, photos, ((1e-6, 0.06), (1e-3, 0.07))) / "store"
    with serving(store, ui__photo_roots=str(tmp_path / "photos"), match__threshold=PARTS[0][1]) as served:
        (ann,) = served.people.all()
        served.people.name(ann.person_id, "Ann")
        page = open_page(served)
        page.sign_in()
        page.go("review")
        page.page.get_by_role("link", name="What a regroup would change").click()
        moves = page.page.locator(".moves li")
        page.expect(moves.first).to_contain_text("Ann")
        page.expect(page.page.get_by_text("one face after another")).to_be_visible()
        count = moves.count()
        moves.first.get_by_role("button", name="Keep").click()
        page.said("kept with Ann")
        page.expect(moves).to_have_count(count - 1)
        page.done()
        assert len(served.people.photos("Ann")) == 4
        page.page.reload()
        page.expect(page.page.get_by_text("Nothing is changed by it unless you say so")).to_be_visible()
        page.expect(moves).to_have_count(count - 1)
        assert page.findings() == []


def test_all_pairs_are_answered_by_keys(page: Opened, served: Served) -> None:
    page.go("review")
    keys, pairs = page.page.keyboard, [shown(page)]
    for key in ("s", "n", "ArrowDown"):
        keys.press(key)
        pairs.append(shown(page))
    assert len(set(pairs)) == PAIRS  # the next pair is there at once
    keys.press("ArrowLeft")
    page.button("Look at the 1 skipped pair again").click()
    assert shown(page) == pairs[2]
    page.said("Same")
    page.done()
    assert len(served.people.all()) == 2 * PAIRS - 2
    keys.press("ArrowRight")
    page.expect(page.page.get_by_text("That was all")).to_be_visible()

    page.done()
    page.page.reload()
    page.expect(page.page.get_by_text("There is no pair to answer")).to_be_visible()


def test_an_answer_that_is_undone_brings_its_pair_back(page: Opened, served: Served) -> None:
    page.go("review")
    first = shown(page)
    for key in ("s", "n"):
        page.page.keyboard.press(key)
        assert shown(page) != first
        page.done()
        page.undo()
        page.page.wait_for_function(
            f"location.hash.includes('review') && document.querySelector('a[href*=\"{first[0]}\"]')"
        )
        assert shown(page) == first
    assert len(served.people.all()) == 2 * PAIRS


def test_what_an_answer_settles_is_not_asked(page: Opened, open_page: Callable[..., Opened], served: Served) -> None:
    """Somebody else merges the pair that is shown: the answer is refused with what happened, and nothing is lost."""
    page.go("review")
    first = shown(page)
    served.people.merge(*first)
    page.page.keyboard.press("n")
    page.expect(page.page.locator(".bar .warning")).to_be_visible()
    page.expect(link(page, first[0])).to_have_count(0)
    assert shown(page) != first


def test_the_name_that_stays_goes_to_the_pairs_that_follow(page_of_chain: Opened, chain: Served) -> None:
    page = page_of_chain
    one, other = shown_in_order(page)
    (third,) = {row.person_id for row in chain.people.all()} - {one, other}
    chain.people.name(other, "Ann")
    page.page.reload()
    first = shown_in_order(page)
    assert first[0] == other  # who has a name
    (last,) = {one, other, third} - {*first}
    page.page.keyboard.press("s")
    page.done()
    page.expect(link(page, last)).to_have_count(1)
    if not link(page, first[1]).count():
        page.page.keyboard.press("k")
    page.expect(link(page, first[1])).to_have_text("Ann")
    page.page.keyboard.press("s")
    page.done()
    (row,) = chain.people.all()
    assert row.name == "Ann"

    page.undo()
    page.undo()
    page.expect(link(page, first[1])).to_contain_text("No name yet")


def test_two_names_are_not_asked(page_of_chain: Opened, chain: Served) -> None:
    """Neither where both had one, nor where an answer gives the second."""
    page = page_of_chain
    one, other = shown_in_order(page)
    (third,) = {row.person_id for row in chain.people.all()} - {one, other}
    chain.people.name(one, "Ann")
    chain.people.name(third, "Cleo")
    page.page.reload()
    assert other in shown_in_order(page)
    page.page.keyboard.press("s")
    page.done()
    page.expect(page.page.get_by_text("That was all")).to_be_visible()


def test_the_pairs_of_one_person(page_of_chain: Opened, chain: Served) -> None:
    page = page_of_chain
    one, other = shown_in_order(page)
    (third,) = {row.person_id for row in chain.people.all()} - {one, other}
    page.go("person/" + third)
    page.page.get_by_role("link", name="Who may be the same?").click()
    page.expect(page.page.get_by_text("2 left")).to_be_visible()
    assert third in shown(page)
    page.page.keyboard.press("n")
    page.expect(page.page.get_by_text("1 answered, 1 left")).to_be_visible()
    assert third in shown(page)
    page.done()


def test_the_button_keeps_the_focus_for_the_next_pair(page: Opened) -> None:
    page.go("review")
    first = shown(page)
    page.button("Skip").press("Enter")
    page.expect(link(page, first[0])).to_have_count(0)
    page.expect(page.button("Skip")).to_be_focused()


def test_a_pair_whose_answer_is_undone_after_leaving_is_asked_again(page: Opened, served: Served) -> None:
    page.go("review")
    first = shown(page)
    page.page.keyboard.press("n")
    page.done()
    page.go("people")
    page.has(2 * PAIRS)
    page.go("review")
    assert shown(page) != first
    page.undo()
    page.expect(link(page, first[0])).to_have_count(1)
