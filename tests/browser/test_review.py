"""Pairs who may be one, answered by the keyboard."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from coded_faces import Shown

from tests.browser.opened import Opened
from tests.browser.served import Served, fill, serving

if TYPE_CHECKING:
    from playwright.sync_api import Locator

# Photos of one person are further apart than the threshold, and nearer than the wider one.
THRESHOLDS = ((1e-6, 0.005), (1e-3, 0.3))
PAIRS = 4


@pytest.fixture(scope="package")
def doubtful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """store/: of each of four, two photos who are two people to the run."""
    shown = {f"{person}{variant}.png": [Shown(person, variant)] for person in range(1, 1 + PAIRS) for variant in (0, 1)}
    return fill(tmp_path_factory.mktemp("doubtful"), shown, THRESHOLDS)


@pytest.fixture
def served(doubtful: Path, tmp_path: Path) -> Iterator[Served]:
    store = shutil.copytree(doubtful / "store", tmp_path / "store")
    with serving(store, ui__photo_roots=str(doubtful / "photos"), match__threshold=THRESHOLDS[0][1]) as made:
        yield made


def shown(page: Opened) -> tuple[str, ...]:
    """The people of the pair on the page."""
    page.page.locator(".pair").wait_for()
    links = page.page.locator(".pair section > p a").all()
    return tuple(sorted(str(link.get_attribute("href")).rpartition("/")[2] for link in links))


def link(page: Opened, person: str) -> Locator:
    return page.page.locator(f".pair section > p a[href$='{person}']")


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
