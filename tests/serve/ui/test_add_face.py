"""Adding a face by the web UI's API: what it takes, and only on photos that may be shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.serve.live import LiveServer
from tests.serve.ui.browser import PAGE, Browser
from tests.serve.ui.conftest import page_server

BLANK = [44 / 64, 44 / 64, 20 / 64, 20 / 64]
PHOTO = "photos/1/faces"


def first(browser: Browser) -> str:
    return str(browser.people()[0]["id"])


def test_a_tag_is_added_shown_and_undone(browser: Browser) -> None:
    person = first(browser)
    assert [face["person"] for face in browser.get(PHOTO)["faces"]] == [person]
    told = browser.post(PHOTO, {"person": person, "box": BLANK})
    assert (told["kind"], told["tag"], told["persons"]) == ("add_face", "no face was detected there", [person])
    faces = browser.get(PHOTO)["faces"]
    assert [(face["stated"], face["quality"]) for face in faces] == [(False, faces[0]["quality"]), (True, None)]
    assert faces[1]["box"] == pytest.approx(BLANK)
    assert browser.get("corrections/last")["text"] == "adding a face of somebody without a name"
    browser.post("corrections/undo", {"correction": told["correction"]})
    assert len(browser.get(PHOTO)["faces"]) == 1


def test_a_name_that_somebody_has_is_refused_once(browser: Browser) -> None:
    browser.post("corrections", {"kind": "name", "persons": [first(browser)], "name": "Ada"})
    wish = {"name": "Ada", "box": BLANK}
    refused = browser.post(PHOTO, wish, 409)
    assert (refused["errorReason"], [row["name"] for row in refused["people"]]) == ("name-taken", ["Ada"])
    told = browser.post(PHOTO, {**wish, "anyway": True})
    assert told["persons"][0] != first(browser)


@pytest.mark.parametrize(
    "wrong",
    [
        {"box": [0, 0, 1]},
        {"box": "all"},
        {"box": [0, 0, None, 1]},
        {"box": [0, 0, True, 1]},
        {"box": [0, 0, 10**400, 1]},
        {"name": ""},
        {"name": "A", "person": "00000000-0000-4000-8000-000000000000"},
        {"person": 1},
        {},
    ],
)
def test_odd_wishes_are_refused(reader: Browser, wrong: dict[str, Any]) -> None:
    wish = {"box": BLANK, **wrong} if "box" not in wrong else {"name": "A", **wrong}
    assert reader.post(PHOTO, wish, 400)["errorReason"] == "body-invalid"


def test_nan_is_no_number(reader: Browser) -> None:
    text = '{"name": "A", "box": [NaN, 0, 0.5, 0.5]}'
    answer = reader.http.post(f"/ui/api/{PHOTO}", content=text, headers={**PAGE, "Content-Type": "application/json"})
    assert answer.status_code == 400


@pytest.mark.parametrize(
    ("where", "box", "status"),
    [("99", BLANK, 404), ("x", BLANK, 404), ("1", [0.9, 0, 0.5, 0.5], 409), ("1", [0, 0, 0.05, 0.5], 409)],
)
def test_what_cannot_be_is_refused(reader: Browser, where: str, box: list[float], status: int) -> None:
    reader.post(f"photos/{where}/faces", {"name": "A", "box": box}, status)


def test_only_photos_that_may_be_shown(
    store: Path, archive: Path, tmp_path: Path, browser_at: Callable[[LiveServer], Browser]
) -> None:
    with page_server(store, photo_roots=str(tmp_path)) as server:
        other = browser_at(server)
        other.sign_in()
        assert other.get(PHOTO, status=404)["errorReason"] == "picture-unavailable"
        assert other.post(PHOTO, {"name": "A", "box": BLANK}, 404)["errorReason"] == "picture-unavailable"


def test_another_account_sees_no_faces(server: LiveServer, browser_at: Callable[[LiveServer], Browser]) -> None:
    bob = browser_at(server)
    bob.sign_in("bob")
    bob.get(PHOTO, status=404)
    assert bob.post(PHOTO, {"name": "A", "box": BLANK}, 404)["errorReason"] == "photo-unknown"
