"""Chromium, and the page over a real server of a store of coded faces."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chromium import launched
from coded_faces import Shown

from tests.browser.installed import skip_without_chromium
from tests.browser.opened import Opened
from tests.browser.served import DOUBT, Served, fill, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser


# Of the package: playwright has an event loop on this thread, which tests of other folders must not find there.
@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """Skips where Chromium or playwright, the extra `browser`, is not installed."""
    skip_without_chromium()
    with launched() as browser:
        yield browser


@pytest.fixture(scope="package")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/ and store/. Person 1 has four faces, person 2 two, the persons 3 to 8 one each; one face was too poor.
    One photo shows 1 and 2."""
    shown = {
        "a1.png": [Shown(1)],
        "a2.png": [Shown(1, 1, 0.8)],
        "a3.png": [Shown(1, 2, 0.7)],
        "b-both.png": [Shown(1, 3), Shown(2)],
        "c2.png": [Shown(2, 1)],
        **{f"d{person}.png": [Shown(person)] for person in range(3, 9)},
        "e-poor.png": [Shown(9, 0, 0.1)],
    }
    # A long path: the page of the store shows it.
    return fill(tmp_path_factory.mktemp("page-" + "of-an-archive-" * 5), shown)


@pytest.fixture(scope="package")
def doubtful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """store/: of each of four, two photos who are two people to the run."""
    shown = {f"{person}{variant}.png": [Shown(person, variant)] for person in range(1, 5) for variant in (0, 1)}
    return fill(tmp_path_factory.mktemp("doubtful"), shown, DOUBT)


@pytest.fixture
def doubted(doubtful: Path, tmp_path: Path) -> Iterator[Served]:
    """Four pairs to review."""
    store = Path(shutil.copytree(doubtful / "store", tmp_path / "doubted"))
    with serving(store, ui__photo_roots=str(doubtful / "photos"), match__threshold=DOUBT[0][1]) as made:
        yield made


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> Path:
    """A store of the test's own."""
    return Path(shutil.copytree(filled / "store", tmp_path / "store"))


@pytest.fixture
def served(store: Path, filled: Path) -> Iterator[Served]:
    with serving(store, ui__photo_roots=str(filled / "photos")) as made:
        yield made


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[Callable[..., Opened]]:
    """Opens the page of a server in a browser of its own, which has no session yet. In the end none may have met an
    error of a script or anything that the content security policy forbids."""
    opened: list[Opened] = []

    def open_(served: Served, **options: object) -> Opened:
        opened.append(Opened(chromium.new_context(**options), served))
        return opened[-1]

    yield open_
    for each in opened:
        each.context.close()
        assert each.errors == []


@pytest.fixture
def page(open_page: Callable[..., Opened], served: Served) -> Opened:
    """Signed in, with the people on it."""
    made = open_page(served)
    made.sign_in()
    return made
