"""Faces without a person, page by page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serve.ui.browser import Browser

LOW = ["center-pose", "sharpness", "contrast"]


def test_the_largest_come_first_with_picture_and_reason(reader: Browser, archive: Path) -> None:
    answer = reader.get("unassigned")
    (face,) = answer["faces"]
    assert (face["id"], face["size"], face["why"], answer["total"], "next" in answer) == (7, 40.0, LOW, 1, False)
    assert face["person"] is None
    assert face["photo"]["path"] == str(archive / "photos" / "e-poor.png")
    assert reader.http.get(face["picture"]).status_code == 200
    assert reader.get("unassigned", directory="other")["faces"] == []


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_pages_and_answers(browser: Browser, count: int) -> None:
    """Nobody's faces have a list of their own, the same face always the same place."""
    one = browser.people()[0]["id"]
    for faces in ([6], [3, 5]):
        browser.post("corrections", {"kind": "move", "persons": [], "faces": faces})
    pages = browser.pages("unassigned", "faces", show="nobody", count=count)
    assert [face["id"] for page in pages for face in page] == [3, 5, 6]
    assert [face["why"] for page in pages for face in page] == [["nobody"]] * 3
    assert [face["id"] for face in browser.get("unassigned")["faces"]] == [7]
    browser.post("corrections", {"kind": "move", "persons": [one], "faces": [3, 7]})
    assert browser.get("unassigned") | {"asOf": ""} == {"faces": [], "total": 0, "asOf": ""}
    rest = browser.get("unassigned", show="nobody", after=3)  # which is somebody's now
    assert ([face["id"] for face in rest["faces"]], rest["total"]) == ([5, 6], 2)


@pytest.mark.parametrize("faces", [[7], [2, 7]], ids=["poor", "with a good one"])
def test_a_face_is_moved_to_somebody_new(browser: Browser, faces: list[int]) -> None:
    """Of poor faces only, nobody is recognised as the new one."""
    before = browser.people()
    wish = {"kind": "move", "persons": [], "faces": faces, "name": "Grace"}
    made = browser.post("corrections", wish)
    (grace,) = browser.people(q="grace")
    assert (grace["name"], grace["faces"]) == ("Grace", len(faces))
    assert browser.get("unassigned")["faces"] == []
    browser.post("corrections/undo", {"correction": made["correction"]})
    assert browser.people() == before
    browser.post("corrections", {"kind": "name", "persons": [before[0]["id"]], "name": "Grace"})
    assert browser.post("corrections", wish, status=409)["errorReason"] == "name-taken"
    browser.post("corrections", {**wish, "anyway": True})
    assert len(browser.people(q="grace")) == 2
    for wrong in ({"name": ""}, {"persons": [before[0]["id"]]}):
        browser.post("corrections", wish | wrong, status=400)


def test_what_is_wrong_in_a_question(reader: Browser) -> None:
    for query in ({"show": "all"}, {"count": 0}, {"after": "x"}, {"after": -1}):
        assert reader.get("unassigned", status=400, **query)["errorReason"] == "parameter-invalid"
    assert reader.get("unassigned", status=404, after=999)["errorReason"] == "face-unknown"
