"""People who are twice on a photo, page by page, and what is answered."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from coded_faces import Shown

from tests.people.coded_archive import make_store, run_over, write_photo
from tests.serve.live import LiveServer
from tests.serve.ui.browser import Browser
from tests.serve.ui.conftest import page_server

PHOTOS = 4  # faces 1 to 9


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Somebody who is twice on each photo, and on the last one three times."""
    folder = tmp_path_factory.mktemp("doubled")
    for place in range(PHOTOS):
        faces = [Shown(1, 2 * place), Shown(1, 2 * place + 1), *([Shown(1, 9)] if place == PHOTOS - 1 else [])]
        write_photo(folder / "photos", f"{place}.png", *faces)
    make_store(folder / "store")
    run_over(folder / "photos", folder / "store")
    return folder


@pytest.fixture
def browser(doubled: Path, tmp_path: Path, browser_at: Callable[[LiveServer], Browser]) -> Iterator[Browser]:
    store = shutil.copytree(doubled / "store", tmp_path / "store")
    with page_server(store, photo_roots=str(doubled / "photos")) as server:
        made = browser_at(server)
        made.sign_in()
        yield made


def listed(browser: Browser, **query: object) -> list[list[int]]:
    """The faces of each entry, of all pages."""
    entries = [entry for page in browser.pages("twice", "entries", **query) for entry in page]
    return [[face["id"] for face in entry["faces"]] for entry in entries]


def correct(browser: Browser, status: int = 200, **wish: object) -> dict[str, Any]:
    return browser.post("corrections", wish, status=status)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 20])
def test_pages(browser: Browser, count: int) -> None:
    assert listed(browser, count=count) == [[1, 2], [3, 4], [5, 6], [7, 8, 9]]
    answer = browser.get("twice", count=count)
    assert answer["total"] == PHOTOS
    entry = answer["entries"][0]
    assert entry["person"]["id"] == browser.people()[0]["id"]
    assert "said" not in entry
    assert [face["photo"]["name"] for face in entry["faces"]] == ["0.png", "0.png"]
    assert browser.http.get(entry["faces"][0]["photo"]["picture"]).status_code == 200
    assert browser.get("twice", directory="other") | {"asOf": ""} == {"entries": [], "total": 0, "asOf": ""}


def test_answers_and_their_undo(browser: Browser) -> None:
    """An answered entry leaves the page that follows as it was."""
    one = browser.people()[0]["id"]
    first = browser.get("twice", count=1)
    allowed = correct(browser, kind="allow_twice", photos=[1], asOf=first["asOf"])
    assert (allowed["text"], allowed["faces"]) == ("that people may be twice on a photo", [1, 2])
    rest = browser.get("twice", count=20, after=first["next"])
    assert ([entry["faces"][0]["id"] for entry in rest["entries"]], rest["total"]) == ([3, 5, 7], PHOTOS - 1)
    correct(browser, kind="split", persons=[one], faces=[4])
    correct(browser, kind="split", persons=[one], faces=[8])
    assert listed(browser) == [[5, 6], [7, 9]]
    for face in (5, 6):
        correct(browser, kind="move", persons=[one], faces=[face])
    assert listed(browser) == [[7, 9], [5, 6]]
    assert browser.get("twice")["entries"][1]["said"] == "you said so of these faces"
    assert listed(browser, count=1) == [[7, 9], [5, 6]]
    browser.post("corrections/undo", {"correction": allowed["correction"]})
    assert listed(browser) == [[1, 2], [7, 9], [5, 6]]
    log = browser.get("corrections")["corrections"]
    assert log[0]["text"] == "the undo of a change of people"
    correct(browser, kind="allow_twice", photos=[1])
    assert correct(browser, kind="disallow_twice", photos=[1])["text"] == "that nobody may be twice on a photo"
    assert correct(browser, kind="disallow_twice", photos=[1])["correction"] is None


def test_what_is_wrong_in_a_question(browser: Browser) -> None:
    for query in ({"count": 0}, {"after": "x"}, {"after": browser.get("people", count=1).get("next", "1")}):
        assert browser.get("twice", status=400, **query)["errorReason"] == "parameter-invalid"
    one = browser.people()[0]["id"]
    wrong: list[dict[str, object]] = [
        {"kind": "allow_twice"},
        {"kind": "allow_twice", "photos": []},
        {"kind": "allow_twice", "photos": "1"},
        {"kind": "allow_twice", "photos": [True]},
        {"kind": "allow_twice", "photos": [-1]},
        {"kind": "allow_twice", "photos": [1], "persons": [one]},
        {"kind": "allow_twice", "photos": [1], "faces": [1]},
        {"kind": "hide", "persons": [one], "photos": [1]},
    ]
    for wish in wrong:
        assert correct(browser, 400, **wish)["errorReason"] == "body-invalid", wish
    assert correct(browser, 404, kind="allow_twice", photos=[99])["errorReason"] == "photo-unknown"
    assert listed(browser, count=20)[0] == [1, 2]
