"""Faces without a person, page by page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serve.ui.browser import Browser

LOW = "low center-pose, sharpness, contrast"


def test_the_largest_come_first_with_picture_and_reason(reader: Browser, archive: Path) -> None:
    answer = reader.get("unassigned")
    (face,) = answer["faces"]
    assert (face["id"], face["size"], face["reason"], answer["total"], "next" in answer) == (7, 40.0, LOW, 1, False)
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
    assert {face["reason"] for page in pages for face in page} == {"you said that it is nobody's"}
    assert [face["id"] for face in browser.get("unassigned")["faces"]] == [7]
    browser.post("corrections", {"kind": "move", "persons": [one], "faces": [3, 7]})
    assert browser.get("unassigned") | {"asOf": ""} == {"faces": [], "total": 0, "asOf": ""}
    rest = browser.get("unassigned", show="nobody", after=3)  # which is somebody's now
    assert ([face["id"] for face in rest["faces"]], rest["total"]) == ([5, 6], 2)


def test_what_is_wrong_in_a_question(reader: Browser) -> None:
    for query in ({"show": "all"}, {"count": 0}, {"after": "x"}, {"after": -1}):
        assert reader.get("unassigned", status=400, **query)["errorReason"] == "parameter-invalid"
    assert reader.get("unassigned", status=404, after=999)["errorReason"] == "face-unknown"
