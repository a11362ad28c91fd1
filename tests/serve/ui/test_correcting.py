"""Corrections on the page: every verb with its undo, and two browsers at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from coded_faces import Shown, photo

from pipeline.config import MatchSettings, load_settings
from pipeline.errors import StatedTwoPeople
from pipeline.jobs.people import People
from pipeline.jobs.store import Store
from pipeline.people import corrections, regroup
from pipeline.people.correction_plan import Plan
from pipeline.people.types import PostRequest
from pipeline.serve.ui.correcting import told
from pipeline.store import NEVER_UNDONE
from pipeline.store.records import CorrectionRequest
from tests.serve.live import LiveServer
from tests.serve.ui.browser import PAGE, Browser

BrowserAt = Callable[[LiveServer], Browser]
LOOK = PostRequest(insert=False, update=False)


def ids(browser: Browser) -> list[str]:
    """The three people by number of photos."""
    return [person["id"] for person in browser.people()]


def state(browser: Browser) -> dict[str, Any]:
    """All people and whose each face is; pictures of references may get other addresses."""
    people = [{**p, "picture": p["picture"] is not None} for p in browser.people()]
    return {"people": people, "hidden": browser.people(show="hidden")}


def correct(browser: Browser, kind: str, *persons: str, status: int = 200, **more: object) -> dict[str, Any]:
    return browser.post("corrections", {"kind": kind, "persons": persons, **more}, status=status)


@pytest.mark.slow
def test_every_verb_and_its_undo(browser: Browser, server: LiveServer) -> None:
    one, two, three = ids(browser)
    before = state(browser)
    wishes: list[tuple[str, list[str], dict[str, Any], str]] = [
        ("name", [one], {"name": "Ann <b>"}, "the name of “Ann <b>”"),
        ("merge", [one, two], {}, "merging 2 people without names"),
        ("split", [one], {"faces": [2]}, "splitting 1 face off, of 2 people without names"),
        ("move", [two], {"faces": [2, 3], "from": one}, "moving 2 faces, of 2 people without names"),
        ("move", [], {"faces": [4]}, "moving 1 face, of somebody without a name"),
        ("not_same", [one, two], {}, "that 2 people without names are two people"),
        ("hide", [one, three], {}, "hiding 2 people without names"),
    ]
    for kind, persons, more, text in wishes:
        made = correct(browser, kind, *persons, **more)
        assert (made["kind"], made["text"]) == (kind, text)
        assert state(browser) != before or kind == "not_same"
        last = browser.get("corrections/last")
        assert (last["correction"], last["kind"]) == (made["correction"], kind)
        undone = browser.post("corrections/undo", {"correction": made["correction"]})
        assert undone["correction"] == made["correction"]
        assert state(browser) == before
    assert browser.get("corrections/last") == {"correction": None}
    correct(browser, "merge", one, two)
    taken_apart = correct(browser, "unmerge", one)
    assert state(browser) == before
    browser.post("corrections/undo", {"correction": taken_apart["correction"]})
    assert browser.get(f"people/{two}")["person"]["id"] == one
    correct(browser, "hide", three)
    shown = correct(browser, "unhide", three)
    assert browser.people(show="hidden") == []
    browser.post("corrections/undo", {"correction": shown["correction"]})
    assert [person["id"] for person in browser.people(show="hidden")] == [three]


def test_recognition_follows_at_once(browser: Browser, server: LiveServer) -> None:
    one, _, _ = ids(browser)
    correct(browser, "name", one, name="Ann")
    answer = server.service.post(server.client.account_id("ann"), "main", photo(Shown(1)), LOOK)
    assert answer.faces[0].person is not None
    assert answer.faces[0].person.root.name == "Ann"
    assert browser.people(q="ann")[0]["name"] == "Ann"


def test_forgetting_asks_first(browser: Browser) -> None:
    one, two, three = ids(browser)
    asked = correct(browser, "forget", one, two, status=409)
    assert (asked["errorReason"], asked["persons"], asked["faces"]) == ("confirmation-needed", 2, 5)
    assert len(browser.people()) == 3
    done = correct(browser, "forget", one, two, confirm=True)
    assert (done["correction"], sorted(done["gone"])) == (None, sorted([one, two]))
    assert ids(browser) == [three]
    (listed,) = browser.get("corrections")["corrections"]
    assert (listed["text"], listed["canBeUndone"]) == ("forgetting 2 people", False)
    correct(browser, "forget", one, confirm=True, status=404)
    correct(browser, "forget", one, status=404)


def test_every_kind_of_change_has_a_text() -> None:
    """But the deletion of a directory, which is not listed in it."""
    assert all(told(kind, [], [], 2) for kind in NEVER_UNDONE - {"delete_directory"})


def test_a_name_that_somebody_has(browser: Browser) -> None:
    one, two, three = ids(browser)
    correct(browser, "name", one, name="Ångström")
    taken = correct(browser, "name", two, name="A\u030aNGSTRÖM", status=409)
    assert taken["errorReason"] == "name-taken"
    assert [(person["id"], person["name"]) for person in taken["people"]] == [(one, "Ångström")]
    correct(browser, "name", one, name="ångström")  # one's own name is no other's
    correct(browser, "name", two, name="ångström", anyway=True)
    correct(browser, "merge", one, three)
    correct(browser, "name", three, name="ÅNGSTRÖM", status=409)  # that of `two`


def test_a_merge_may_name(browser: Browser, server: LiveServer) -> None:
    one, two, three = ids(browser)
    correct(browser, "name", two, name="Berta")
    correct(browser, "name", three, name="Carla")
    before = state(browser)
    taken = correct(browser, "merge", one, two, name="carla", status=409)
    assert (taken["errorReason"], [person["id"] for person in taken["people"]]) == ("name-taken", [three])
    assert state(browser) == before
    made = correct(browser, "merge", two, one, name="Ann")
    assert (made["kind"], made["text"]) == ("merge", "merging “Berta” and “Ann”")
    assert sorted(made["persons"]) == sorted([one, two])
    assert [(p["id"], p["name"], p["merged"]) for p in browser.people()] == [(one, "Ann", 1), (three, "Carla", 0)]
    answer = server.service.post(server.client.account_id("ann"), "main", photo(Shown(2)), LOOK)
    assert answer.faces[0].person is not None
    assert answer.faces[0].person.root.name == "Ann"
    browser.post("corrections/undo", {"correction": made["correction"]})
    assert state(browser) == before
    for name, anyway in (("", False), ("Carla", True), ("x" * 1000, False)):
        correct(browser, "merge", one, two, name=name, anyway=anyway)
        assert browser.get(f"people/{two}")["person"].get("name", "") == name
        browser.post("corrections/undo", {"correction": browser.get("corrections/last")["correction"]})
        assert state(browser) == before


def test_a_name_that_one_of_the_merged_brings_is_not_taken(browser: Browser) -> None:
    one, two, three = ids(browser)
    correct(browser, "name", two, name="Berta")
    correct(browser, "name", three, name="BERTA", anyway=True)
    correct(browser, "merge", one, two, name="Berta")
    assert {p["id"]: p["name"] for p in browser.people()} == {one: "Berta", three: "BERTA"}


def test_a_taken_name_hides_nothing_else_that_is_in_the_way(browser: Browser) -> None:
    """What is sent again, anyway, is sent by somebody who knows it all."""
    one, two, three = ids(browser)
    correct(browser, "name", three, name="Carla")
    correct(browser, "not_same", one, two)
    assert correct(browser, "merge", one, two, name="Carla", status=409)["errorReason"] == "stated-two-people"


def test_whoever_was_merged_meanwhile_is_named_as_the_one_that_is_shown(browser: Browser) -> None:
    one, two, _ = ids(browser)
    correct(browser, "merge", one, two)
    correct(browser, "name", two, name="Ann")
    correct(browser, "hide", two)
    (person,) = browser.people(show="hidden")
    assert (person["id"], person["name"], person["merged"]) == (one, "Ann", 1)
    correct(browser, "unhide", one, two)
    assert browser.people(show="hidden") == []


def test_names_of_all_kinds(browser: Browser) -> None:
    one, *_ = ids(browser)
    for name in ("<script>alert(1)</script>", "👩‍👩‍👧 ‏אבא", "x" * 1000, " "):
        correct(browser, "name", one, name=name)
        assert browser.get(f"people/{one}")["person"]["name"] == name
    correct(browser, "name", one, name="")
    assert "name" not in browser.get(f"people/{one}")["person"]
    assert correct(browser, "name", one, name="")["correction"] is None
    for name in ("x" * 1001, "a\x00b"):
        assert correct(browser, "name", one, name=name, status=400)["errorReason"] == "body-invalid"


def test_two_that_are_stated_to_be_two(browser: Browser) -> None:
    one, two, _ = ids(browser)
    correct(browser, "not_same", one, two)
    assert correct(browser, "merge", one, two, status=409)["errorReason"] == "stated-two-people"
    correct(browser, "merge", one, two, anyway=True)
    assert correct(browser, "merge", one, two, status=409)["errorReason"] == "correction-impossible"
    assert correct(browser, "not_same", one, two, status=409)["errorReason"] == "correction-impossible"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"kind": "undo"},
        {"kind": "regroup"},
        {"kind": "name", "persons": ["ONE"]},
        {"kind": "name", "persons": [], "name": "A"},
        {"kind": "name", "persons": ["ONE", "ONE"], "name": "A"},
        {"kind": "merge", "persons": ["ONE"]},
        {"kind": "merge", "persons": "ONE"},
        {"kind": "split", "persons": ["ONE"], "faces": []},
        {"kind": "split", "persons": ["ONE"], "faces": ["2"]},
        {"kind": "split", "persons": ["ONE"], "faces": [True]},
        {"kind": "move", "persons": ["ONE"], "faces": [-1]},
        {"kind": "hide", "persons": ["ONE"], "faces": [2]},
        {"kind": "hide", "persons": ["ONE"], "name": "A"},
        {"kind": "hide", "persons": ["ONE"], "name": 5},
        {"kind": "merge", "persons": ["ONE", "ONE"], "name": 5},
        {"kind": "merge", "persons": ["ONE", "ONE"], "name": "a\0b"},
        {"kind": "merge", "persons": ["ONE", "ONE"], "name": "x" * 1001},
        {"kind": "hide", "persons": ["ONE"], "asOf": "yesterday"},
        {"kind": "move", "persons": ["ONE"], "faces": [2], "from": 5},
    ],
)
def test_what_is_no_correction(reader: Browser, body: dict[str, Any]) -> None:
    one, *_ = ids(reader)
    before = state(reader)
    if isinstance(persons := body.get("persons"), list):
        body = {**body, "persons": [one for _ in persons]}
    assert reader.post("corrections", body, status=400)["errorReason"] == "body-invalid"
    assert state(reader) == before


def test_faces_and_people_that_are_not_there(browser: Browser) -> None:
    one, two, _ = ids(browser)
    for more, reason in (({"faces": [999]}, "face-unknown"), ({"faces": [2**62]}, "face-unknown")):
        assert correct(browser, "split", one, status=404, **more)["errorReason"] == reason
    assert correct(browser, "split", two, faces=[1], status=409)["errorReason"] == "correction-impossible"
    assert correct(browser, "hide", "nobody", status=404)["errorReason"] == "person-unknown"


def test_the_later_of_two_browsers_sees_what_happened(
    browser: Browser, server: LiveServer, browser_at: BrowserAt
) -> None:
    other = browser_at(server)
    other.sign_in()
    one, two, three = ids(browser)
    as_of = browser.get(f"people/{one}")["asOf"]
    named = correct(other, "name", one, name="Ann")
    refused = correct(browser, "name", one, name="Anna", asOf=as_of, status=409)
    assert refused["errorReason"] == "changed-since"
    assert "name" in refused["message"]
    ((change),) = refused["changes"]
    assert (change["correction"], change["kind"], change["undone"]) == (named["correction"], "name", False)
    assert browser.get(f"people/{one}")["person"]["name"] == "Ann"
    for kind, persons, more in (
        ("merge", [two, one], {}),
        ("move", [three], {"faces": [2], "from": one}),
        ("forget", [one], {"confirm": True}),
    ):
        assert correct(browser, kind, *persons, asOf=as_of, status=409, **more)["errorReason"] == "changed-since"
    correct(browser, "name", three, name="Carla", asOf=as_of)  # nobody touched her
    correct(browser, "name", one, name="Anna", asOf=browser.get(f"people/{one}")["asOf"])
    correct(browser, "hide", one, asOf=as_of, status=409)  # by now both have corrected her
    correct(other, "hide", one, asOf=as_of, status=409)


def test_ones_own_corrections_are_no_surprise(browser: Browser) -> None:
    one, two, _ = ids(browser)
    as_of = browser.get("people")["asOf"]
    correct(browser, "name", one, name="Ann", asOf=as_of)
    hidden = correct(browser, "hide", one, asOf=as_of)
    browser.post("corrections/undo", {"correction": hidden["correction"]})
    correct(browser, "merge", one, two, asOf=as_of)


def test_an_undo_by_another_browser_is_seen(browser: Browser, server: LiveServer, browser_at: BrowserAt) -> None:
    other = browser_at(server)
    other.sign_in()
    one, *_ = ids(browser)
    named = correct(browser, "name", one, name="Ann")
    as_of = browser.get(f"people/{one}")["asOf"]
    other.post("corrections/undo", {"correction": named["correction"]})
    fresh = browser_at(server)
    fresh.sign_in()
    refused = correct(fresh, "hide", one, asOf=as_of, status=409)
    assert (refused["errorReason"], refused["changes"][0]["undone"]) == ("changed-since", True)


def test_undo_takes_back_what_was_meant_or_nothing(browser: Browser, server: LiveServer, browser_at: BrowserAt) -> None:
    other = browser_at(server)
    other.sign_in()
    one, two, _ = ids(browser)
    first = correct(browser, "name", one, name="Ann")
    second = correct(other, "name", two, name="Berta")
    last = [each.get("corrections/last") for each in (browser, other)]
    assert [(each["correction"], each["own"]) for each in last] == [
        (first["correction"], True),
        (second["correction"], True),
    ]
    for body in ({}, {"correction": "1"}, {"correction": None}):
        browser.post("corrections/undo", body, status=400)
    browser.post("corrections/undo", {"correction": first["correction"]})
    assert [p["name"] for p in browser.people(show="named", sort="name")] == ["Berta"]
    last = browser.get("corrections/last")
    assert (last["correction"], last["own"]) == (second["correction"], False)
    refused = browser.post("corrections/undo", {"correction": first["correction"]}, status=409)
    assert refused["errorReason"] == "correction-impossible"


def test_what_stands_in_the_way_of_an_undo(browser: Browser, server: LiveServer) -> None:
    one, *_ = ids(browser)
    named = correct(browser, "name", one, name="Ann")
    headers = {"X-RPC-AUTHORIZATION": "ann:s3cret:päss".encode(), "X-RPC-DIRECTORY": b"main"}
    httpx.put(f"{server.url}/people/{one}", json={"name": "Anna"}, headers=headers).raise_for_status()
    last = browser.get("corrections/last")
    assert (last["correction"], last["own"]) == (named["correction"], True)
    assert "the name of the person" in last["blocked"]
    refused = browser.post("corrections/undo", {"correction": named["correction"]}, status=409)
    assert (refused["errorReason"], refused["message"]) == ("undo-blocked", last["blocked"])


def test_the_list_of_changes(browser: Browser, server: LiveServer, browser_at: BrowserAt) -> None:
    one, two, _ = ids(browser)
    assert browser.get("corrections") == {"corrections": []}
    correct(browser, "name", one, name="Ann")
    correct(browser, "merge", one, two)
    browser.post("corrections/undo", {"correction": 1})
    headers = {"X-RPC-AUTHORIZATION": "ann:s3cret:päss".encode(), "X-RPC-DIRECTORY": b"main"}
    httpx.put(f"{server.url}/people/{one}", json={"tags": ["a"]}, headers=headers).raise_for_status()
    listed = browser.get("corrections", count=3)
    assert [row["correction"] for row in listed["corrections"]] == [4, 3, 2]
    assert browser.get("corrections", after=listed["next"])["corrections"][0]["undone"] is True
    by_api, undo, merge = listed["corrections"]
    assert (by_api["text"], by_api["origin"], by_api["own"]) == (
        "a program's change of somebody without a name",
        "api",
        False,
    )
    assert (undo["undoes"], undo["kind"], merge["own"], merge["canBeUndone"]) == (1, "undo", True, True)
    browser.get("corrections", after="x", status=400)
    other = browser_at(server)
    other.sign_in()
    assert not any(row["own"] for row in other.get("corrections")["corrections"])
    other.post("corrections/undo", {"correction": undo["correction"]})  # the name is back
    assert [p["name"] for p in browser.people(show="named")] == ["Ann"]


def test_a_request_follows_what_was_stated_on_the_page(browser: Browser, server: LiveServer) -> None:
    one, two, three = ids(browser)
    correct(browser, "not_same", one, two)
    headers = {"X-RPC-AUTHORIZATION": "ann:s3cret:päss".encode(), "X-RPC-DIRECTORY": b"main"}

    def put(path: str, *persons: str) -> httpx.Response:
        return httpx.put(f"{server.url}/{path}", json={"personIds": persons}, headers=headers)

    refused = put("merge", two, one)
    assert (refused.status_code, refused.json()["errorReason"]) == (409, "stated-two-people")
    assert all(person in refused.json()["message"] for person in (one, two))
    sent = {"headers": {**headers, "Content-Type": b"image/png"}, "params": {"merge-with": two, "update": "false"}}
    posted = httpx.post(f"{server.url}/people", content=photo(Shown(1)), **sent)
    (face,) = posted.json()["identifiedFaces"]
    assert (posted.status_code, face["personId"], face["conflict"]) == (201, one, "stated-two-people")
    assert [person["id"] for person in browser.people()] == [one, two, three]
    assert put("merge?override=maybe", one, two).status_code == 400
    assert put("merge?override=true", one, two).status_code == 202
    assert [person["id"] for person in browser.people()] == [one, three]
    correct(browser, "unmerge", one)
    assert put("merge", one, two).json()["errorReason"] == "stated-two-people"
    assert put("merge", one, three).status_code == 202
    people = People(Store(server.client, load_settings(environ={}), server.service), "ann")
    assert people.undo(origin="api").kind == "merge"
    with pytest.raises(StatedTwoPeople):
        people.merge(one, two)
    assert [person["id"] for person in browser.people()] == [one, two, three]


def test_beside_a_regroup_nobody_waits(browser: Browser, server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, _ = ids(browser)
    decided: list[Plan] = []
    begun, go_on = threading.Event(), threading.Event()

    def waiting(plan: Plan, *args: Any) -> None:
        regroup.regroup(plan, *args)
        decided.append(plan)
        begun.set()
        assert go_on.wait(120)

    monkeypatch.setattr(corrections, "regroup", waiting)
    wish = CorrectionRequest(server.client.account_id("ann"), "main", "regroup", gate=MatchSettings(threshold=3.0))
    named = correct(browser, "name", one, name="Ann")
    with ThreadPoolExecutor(1) as thread:
        regrouping = thread.submit(server.service.correct, wish)
        try:
            assert begun.wait(60)
            browser.http.timeout = httpx.Timeout(40)  # those behind the regroup would wait longer
            assert browser.get("corrections/last")["correction"] == named["correction"]
            browser.post("corrections/undo", {"correction": named["correction"]})
            assert browser.get("corrections/last") == {"correction": None}
            correct(browser, "name", two, name="Berta")
        finally:
            go_on.set()
        made = regrouping.result()
    assert len(decided) == 2  # by whom the name is now
    assert (made.kind, made.names[two]) == ("regroup", "Berta")
    assert browser.get("corrections/last")["own"] is True  # the name
    browser.post("corrections/undo", {"correction": made.correction_id})
    assert browser.people()[1]["name"] == "Berta"


def test_another_account_corrects_nothing_of_it(browser: Browser, server: LiveServer, browser_at: BrowserAt) -> None:
    bob = browser_at(server)
    bob.sign_in("bob")
    one, two, _ = ids(browser)
    before = state(browser)
    made = correct(browser, "hide", two)
    for kind, persons, more in (
        ("name", [one], {"name": "Ann"}),
        ("merge", [one, two], {}),
        ("forget", [one], {"confirm": True}),
        ("forget", [one], {}),
        ("split", [one], {"faces": [2]}),
        ("move", [], {"faces": [2]}),
    ):
        correct(bob, kind, *persons, status=404, **more)
    assert bob.get("corrections/last") == {"correction": None}
    bob.post("corrections/undo", {"correction": made["correction"]}, status=409)
    browser.post("corrections/undo", {"correction": made["correction"]})
    assert state(browser) == before


def test_without_the_pages_header_nothing_is_corrected(browser: Browser) -> None:
    one, *_ = ids(browser)
    body = {"kind": "hide", "persons": [one]}
    answer = browser.http.post("/ui/api/corrections", json=body)
    assert (answer.status_code, answer.json()["errorReason"]) == (403, "cross-site")
    assert browser.people(show="hidden") == []
    assert browser.http.post("/ui/api/corrections", json=body, headers=PAGE).status_code == 200
