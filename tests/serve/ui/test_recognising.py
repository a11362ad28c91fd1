"""A photo that is dropped on the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from coded_faces import Shown, photo
from PIL import Image

from pipeline.errors import Overloaded
from pipeline.matching.score import similarity_score
from pipeline.serve.thread_pool import BoundedThreadPool
from tests.people.coded_archive import SETTINGS
from tests.serve.live import LiveServer
from tests.serve.ui.browser import PAGE, Browser
from tests.serve.ui.conftest import page_server

BrowserAt = Callable[[LiveServer], Browser]
IMAGE = {**PAGE, "Content-Type": "image/png"}


def send(browser: Browser, path: str, data: bytes, name: str = "", external_id: str = "", **query: object) -> Any:
    said = {"X-RPC-PERSON-NAME-BASE64": name, "X-RPC-EXTERNAL-ID-BASE64": external_id}
    headers = IMAGE | {key: base64.b64encode(text.encode()).decode() for key, text in said.items() if text}
    return browser.http.post(
        f"/ui/api/{path}", content=data, headers=headers, params={k: str(v) for k, v in query.items()}
    )


def test_faces_with_everybody_who_is_a_little_like_them(reader: Browser) -> None:
    before = reader.people()
    answer = send(reader, "recognise", photo(Shown(1, 7), Shown(50, 0, 0.2))).json()
    assert (answer["width"], answer["height"], answer["threshold"]) == (128, 64, 0.54)
    known, unknown = answer["faces"]
    assert known["box"] == [0, 0, 40 / 128, 40 / 64]
    assert known["failed"] == []
    assert known["person"]["id"] == reader.people()[0]["id"]
    assert reader.http.get(known["person"]["picture"]).status_code == 200
    assert "person" not in unknown
    assert unknown["failed"] == ["center-pose", "sharpness", "contrast"]
    for face in (known, unknown):
        assert len(face["similar"]) == 3
        distances = [one["distance"] for one in face["similar"]]
        assert distances == sorted(distances)
        for one in face["similar"]:
            assert one["score"] == pytest.approx(similarity_score(one["distance"], 0.54))
    assert known["similar"][0]["person"] == known["person"]
    assert known["similar"][0]["distance"] ** 2 <= 0.54 < known["similar"][1]["distance"] ** 2
    assert reader.people() == before


def test_an_enrolment_is_refused_before_it_is_done_or_never(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the queue for all other calls is full."""
    run = BoundedThreadPool.run

    async def full(pool: BoundedThreadPool, work: Callable[[], Any], peer: str = "") -> Any:
        if pool._executor._thread_name_prefix == "calls":
            raise Overloaded(retry_after_s=1)
        return await run(pool, work, peer)

    with monkeypatch.context() as patched:
        patched.setattr(BoundedThreadPool, "run", full)
        assert browser.http.get("/ui/api/people").status_code == 503
        assert send(browser, "enrol", photo(Shown(50)), "Zoë", "z1", x=0.3, y=0.3).status_code == 201
        assert send(browser, "recognise", photo(Shown(50))).status_code == 200
    assert len(browser.people(q="zoë")) == 1


def test_enrolling_the_face_that_was_clicked(browser: Browser) -> None:
    data = photo(Shown(50), Shown(51))
    answer = send(browser, "enrol", data, "Zoë <i>", "z1", x=0.6, y=0.3)
    assert answer.status_code == 201
    made = answer.json()
    assert (made["outcome"], made["failed"], made["person"]["name"]) == ("inserted", [], "Zoë <i>")
    (zoe,) = browser.people(q="zoë")  # at once
    assert (zoe["id"], zoe["externalId"]) == (made["person"]["id"], "z1")
    first, second = send(browser, "recognise", data).json()["faces"]
    assert "person" not in first
    assert second["person"]["id"] == zoe["id"]
    again = send(browser, "enrol", data, "Another", x=0.6, y=0.3).json()
    assert (again["outcome"], again["person"]["id"]) == ("known", zoe["id"])
    assert browser.people(q="another") == []
    browser.post("corrections", {"kind": "forget", "persons": [zoe["id"]], "confirm": True})
    assert browser.people(q="zoë") == []


def test_a_new_face_is_added_to_somebody_and_nobody_is_merged_by_a_known_one(browser: Browser) -> None:
    one, two, three = (person["id"] for person in browser.people())
    known = send(browser, "enrol", photo(Shown(1, 8)), x=0.3, y=0.3, person=two).json()
    assert (known["outcome"], known["person"]["id"]) == ("known", one)
    assert [person["id"] for person in browser.people()] == [one, two, three]
    added = send(browser, "enrol", photo(Shown(70)), x=0.3, y=0.3, person=two).json()
    assert added["outcome"] == "inserted"
    assert {person["id"]: person["merged"] for person in browser.people()} == {one: 0, two: 1, three: 0}
    found = send(browser, "recognise", photo(Shown(70, 1))).json()["faces"][0]
    assert found["person"]["id"] == two
    assert send(browser, "enrol", photo(Shown(80)), x=0.3, y=0.3, person="x").status_code == 404


@pytest.mark.parametrize("is_new", [True, False])
def test_what_was_enrolled_is_one_correction_that_undo_takes_back(browser: Browser, is_new: bool) -> None:
    somebody = browser.people()[0]["id"]
    browser.post("corrections", {"kind": "name", "persons": [somebody], "name": "Ada"})
    before = browser.people()
    to = {} if is_new else {"person": somebody}
    made = send(browser, "enrol", photo(Shown(70)), "Zoë" if is_new else "", x=0.3, y=0.3, **to).json()
    who = "Zoë" if is_new else "Ada"
    assert browser.people() != before
    (row, *_) = browser.get("corrections")["corrections"]
    assert (row["correction"], row["own"], row["text"]) == (made["correction"], True, f"adding a face of “{who}”")
    assert browser.get("corrections/last")["correction"] == made["correction"]
    browser.post("corrections/undo", {"correction": made["correction"]})
    assert browser.people() == before
    undo = browser.get("corrections")["corrections"][0]["correction"]
    refused = browser.post("corrections/undo", {"correction": undo}, status=409)
    assert "add it again" in refused["message"]
    assert send(browser, "recognise", photo(Shown(70, 1))).json()["faces"][0].get("person") is None


def test_it_is_not_undone_once_the_new_person_was_merged(browser: Browser) -> None:
    made = send(browser, "enrol", photo(Shown(70)), "Zoë", x=0.3, y=0.3).json()
    browser.post("corrections", {"kind": "merge", "persons": [made["person"]["id"], browser.people()[0]["id"]]})
    refused = browser.post("corrections/undo", {"correction": made["correction"]}, status=409)
    assert refused["errorReason"] == "undo-blocked"


def test_a_name_that_is_taken_is_asked_about(browser: Browser) -> None:
    somebody = browser.people()[0]["id"]
    browser.post("corrections", {"kind": "name", "persons": [somebody], "name": "Ada"})
    asked = send(browser, "enrol", photo(Shown(70)), "ada", x=0.3, y=0.3)
    assert (asked.status_code, asked.json()["errorReason"]) == (409, "name-taken")
    assert [person["id"] for person in asked.json()["people"]] == [somebody]
    assert send(browser, "enrol", photo(Shown(70)), "ada", x=0.3, y=0.3, anyway="true").json()["outcome"] == "inserted"


def test_the_gates_reasons(browser: Browser) -> None:
    refused = send(browser, "enrol", photo(Shown(60, 0, 0.42)), "Poor", x=0.3, y=0.3).json()
    assert (refused["outcome"], refused["failed"]) == ("refused", ["center-pose", "contrast"])
    assert refused["quality"]["sharpness"] == pytest.approx(0.42)
    assert refused["gate"] == {"centerPose": 0.59, "sharpness": 0.40, "contrast": 0.45}
    assert browser.people(q="poor") == []
    assert send(browser, "enrol", photo(), "Nobody", x=0.3, y=0.3).json()["outcome"] == "no-face"


def test_name_and_id_where_the_server_wants_both(store: Path, browser_at: BrowserAt) -> None:
    with page_server(store, serve=replace(SETTINGS.serve, person_headers="required")) as server:
        browser = browser_at(server)
        assert browser.sign_in()["personHeaders"] == "required"
        answer = send(browser, "enrol", photo(Shown(50)), "Zoë", x=0.3, y=0.3)
        assert (answer.status_code, answer.json()["errorReason"]) == (400, "person-headers-required")
        assert send(browser, "enrol", photo(Shown(50)), "Zoë", "z", x=0.3, y=0.3).json()["outcome"] == "inserted"
        somebody = browser.people()[0]["id"]
        added = send(browser, "enrol", photo(Shown(60)), x=0.3, y=0.3, person=somebody).json()
        assert (added["outcome"], added["person"]["id"]) == ("inserted", somebody)


def test_what_is_no_photo(reader: Browser) -> None:
    for path in ("recognise", "enrol"):
        for data, status, reason in (
            (b"", 400, "body-invalid"),
            (b"hello, this is a text", 400, "image-unsupported"),
            (photo(Shown(1))[:60], 400, "image-truncated"),
        ):
            answer = send(reader, path, data)
            assert (answer.status_code, answer.json()["errorReason"]) == (status, reason)
        text = reader.http.post(f"/ui/api/{path}", content=b"x", headers={**PAGE, "Content-Type": "text/plain"})
        assert (text.status_code, text.json()["errorReason"]) == (415, "media-type-unsupported")
    assert send(reader, "enrol", photo(Shown(50)), x=2, y=0).json()["errorReason"] == "parameter-invalid"


def test_a_photo_that_is_too_large(store: Path, browser_at: BrowserAt) -> None:
    small = replace(SETTINGS.serve, max_body_bytes=100_000)
    with page_server(store, serve=small) as server:
        browser = browser_at(server)
        assert browser.sign_in()["maxBodyBytes"] == 100_000
        answer = send(browser, "recognise", photo(Shown(1)) + bytes(100_000))
        assert (answer.status_code, answer.json()["errorReason"]) == (413, "body-too-large")
        file = io.BytesIO()  # 120 million pixels in a few kilobytes
        Image.fromarray(np.zeros((10_000, 12_000), np.uint8) > 0).save(file, "PNG")
        answer = send(browser, "recognise", file.getvalue())
        assert (answer.status_code, answer.json()["errorReason"]) == (413, "image-too-large")


def test_another_account_recognises_nobody_of_it(shared: LiveServer, browser_at: BrowserAt) -> None:
    bob = browser_at(shared)
    bob.sign_in("bob")
    (face,) = send(bob, "recognise", photo(Shown(1))).json()["faces"]
    assert face["similar"] == []
    assert "person" not in face
    assert httpx.post(f"{shared.url}/ui/api/recognise", content=photo(Shown(1)), headers=IMAGE).status_code == 401
