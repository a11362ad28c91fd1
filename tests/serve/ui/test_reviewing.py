"""Pairs of people who may be one, over several faces of each."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from coded_faces import Shown, coded_identity, photo

from pipeline.config import MatchSettings
from pipeline.jobs.people import People
from pipeline.jobs.store import Store
from pipeline.matching.calibration import Calibration
from pipeline.people.types import PostRequest
from pipeline.store.local import LocalStore
from tests.people.coded_archive import SETTINGS, SIZE, index_otherwise, make_store, run_over, write_photo
from tests.serve.live import LiveServer
from tests.serve.ui.browser import Browser
from tests.serve.ui.conftest import page_server

BrowserAt = Callable[[LiveServer], Browser]
PEOPLE = 6
# Two photos of one person are at a squared distance of 0.023 to 0.055: at this threshold most people are in parts. The
# wider one is 0.05.
STRICT = replace(SETTINGS, match=MatchSettings(threshold=0.04))


@pytest.fixture(scope="module")
def scattered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six people of four photos each, and one photo that shows two parts of the third."""
    folder = tmp_path_factory.mktemp("scattered")
    for person in range(1, PEOPLE + 1):
        for variant in range(1, 5):
            write_photo(folder / "photos", f"{person}-{variant}.png", Shown(person, variant))
    write_photo(folder / "photos", "3-both.png", Shown(3, 1), Shown(3, 3))
    make_store(folder / "store")
    run_over(folder / "photos", folder / "store", settings=STRICT)
    return folder


@pytest.fixture
def browser(scattered: Path, tmp_path: Path, browser_at: BrowserAt) -> Iterator[Browser]:
    with page_server(shutil.copytree(scattered / "store", tmp_path / "store"), match=STRICT.match) as server:
        browser = browser_at(server)
        browser.sign_in()
        yield browser


def person_of(face: dict[str, Any]) -> str:
    """Which of the six a face is, by its photo's name."""
    return str(face["photo"]["name"].split("-")[0])


def asked(browser: Browser, **query: object) -> list[dict[str, Any]]:
    return [pair for page in browser.pages("review", "pairs", **query) for pair in page]


def both(pair: dict[str, Any]) -> frozenset[str]:
    return frozenset((pair["one"]["id"], pair["other"]["id"]))


def test_pairs_are_of_one_person_each_once_and_the_likeliest_first(browser: Browser) -> None:
    answer = browser.get("review", count=500)
    pairs = answer["pairs"]
    assert pairs
    assert "next" not in answer
    assert answer["looked"] == answer["total"] == browser.get("people")["total"] > PEOPLE
    assert (answer["threshold"], answer["wide"]) == (0.04, 0.05)
    scores = [pair["score"] for pair in pairs]
    assert scores == sorted(scores, reverse=True)
    assert len({both(pair) for pair in pairs}) == len(pairs)
    for pair in pairs:
        count = len(pair["oneFaces"]) * len(pair["otherFaces"])
        assert f" of {count} pairs of faces near" in pair["reasons"]
        assert len({person_of(face) for face in (*pair["oneFaces"], *pair["otherFaces"])}) == 1
    assert max(len(pair["oneFaces"]) for pair in pairs) > 1


def test_who_is_on_one_photo_is_no_pair(browser: Browser) -> None:
    """Two parts of the third person are."""
    photos = [
        {face["photo"]["name"] for face in browser.get(f"people/{row['id']}/faces")["faces"]}
        for row in browser.get("people")["people"]
    ]
    assert sum("3-both.png" in shown for shown in photos) == 2
    for pair in asked(browser, count=500):
        assert not {face["photo"]["name"] for face in pair["oneFaces"]} & {
            f["photo"]["name"] for f in pair["otherFaces"]
        }


def test_the_pairs_of_one_person(browser: Browser) -> None:
    whole = asked(browser, count=500)
    person = whole[0]["one"]["id"]
    assert {both(pair) for pair in asked(browser, person=person)} == {both(p) for p in whole if person in both(p)}
    assert browser.get("review", person="0" * 8)["pairs"] == []


@pytest.mark.parametrize("count", [1, 3])
def test_page_by_page_the_pairs_are_the_same(browser: Browser, count: int) -> None:
    whole = {both(pair) for pair in browser.get("review", count=500)["pairs"]}
    pages = browser.pages("review", "pairs", count=count)
    assert len(pages) > 1
    found = [both(pair) for page in pages for pair in page]
    assert len(found) == len(set(found))
    assert set(found) == whole


def test_what_was_answered_does_not_come_back(browser: Browser) -> None:
    pairs = asked(browser, count=500)
    refused, same = pairs[0], next(pair for pair in pairs[1:] if not both(pair) & both(pairs[0]))
    ids = [refused["one"]["id"], refused["other"]["id"]]
    browser.post("corrections", {"kind": "not_same", "persons": ids, "asOf": browser.get("review")["asOf"]})
    browser.post("corrections", {"kind": "merge", "persons": [same["one"]["id"], same["other"]["id"]]})
    later = {both(pair) for pair in asked(browser, count=500)}
    assert both(refused) not in later
    assert both(same) not in later
    assert later
    browser.post("corrections/undo", {"correction": browser.get("corrections/last")["correction"]})
    assert both(same) in {both(pair) for pair in asked(browser, count=500)}


def test_a_rejected_pair_stays_away_after_regroup(scattered: Path, tmp_path: Path, browser_at: BrowserAt) -> None:
    store = shutil.copytree(scattered / "store", tmp_path / "store")
    with page_server(store, match=STRICT.match) as server:
        browser = browser_at(server)
        browser.sign_in()
        pairs = asked(browser, count=500)
        for pair in pairs:
            browser.post("corrections", {"kind": "not_same", "persons": sorted(both(pair))})
        assert asked(browser, count=500) == []
        People(Store(server.client, STRICT, server.service), "ann").regroup()
        again = {both(pair) for pair in asked(browser, count=500)}
        assert not again & {both(pair) for pair in pairs}


@pytest.mark.slow
def test_what_the_newer_index_would_decide_otherwise(scattered: Path, tmp_path: Path, browser_at: BrowserAt) -> None:
    """What a regroup by it would change, until it is the one that answers; answers of the page bind it."""
    store = shutil.copytree(scattered / "store", tmp_path / "store")
    index_otherwise(store, STRICT)
    with page_server(store, match=STRICT.match) as server:
        browser = browser_at(server)
        browser.sign_in()
        assert browser.get("review")["newer"] == "other"
        people = People(Store(server.client, STRICT, server.service), "ann")
        answer = browser.get("review/newer")
        regrouped = people.swap_and_regroup(dry_run=True).regrouped
        assert regrouped is not None
        expected = regrouped.regrouping
        assert expected is not None
        assert {both(pair) for pair in answer["pairs"]} == {frozenset(join) for join in expected.joins}
        assert answer["total"] == len(answer["pairs"]) > 0
        assert answer["faces"] == len(expected.moves)
        of = {move.face_id: move for move in expected.moves}
        asked = [(each, face) for each in answer["moves"] for face in each["ids"]]
        assert sorted(face for _, face in asked) == sorted(of)
        for each, face in asked:
            assert each["fromRecord"] == each["from"]["id"] == of[face].before
            assert "new" in each or each["toRecord"] == each["to"]["id"] == of[face].after
        together = {frozenset(f for e, f in asked if e.get("new") == new) for new in {e.get("new") for e, _ in asked}}
        news = {move.after if move.after in expected.new else None for move in of.values()}
        same = {frozenset(f for f, m in of.items() if (m.after if m.after in news else None) == new) for new in news}
        assert together == same  # the ids of new people are made each time
        assert {"new" in each for each in answer["moves"]} == {True, False}
        assert browser.get("review/newer")["moves"] == answer["moves"]  # nothing changed: it is not decided again
        for pair in answer["pairs"]:
            browser.post("corrections", {"kind": "not_same", "persons": sorted(both(pair))})
        for each in answer["moves"]:
            kind, who = ("split", [each["fromRecord"]]) if "new" in each else ("move", [each["toRecord"]])
            browser.post("corrections", {"kind": kind, "persons": who, "faces": each["ids"], "asOf": answer["asOf"]})
        later = browser.get("review/newer")
        assert (later["pairs"], later["moves"]) == ([], [])
        people.swap_and_regroup()
        assert "newer" not in browser.get("review")
        refused = browser.get("review/newer", status=409)
        assert refused["errorReason"] == "correction-impossible"
        assert str(tmp_path) not in refused["message"]


def test_what_a_regroup_would_change_of_somebody_named(tmp_path: Path, browser_at: BrowserAt) -> None:
    """What was said to be right is not asked again, and the regroup leaves it."""
    for variant in range(1, 5):
        write_photo(tmp_path / "photos", f"{variant}.png", Shown(3, variant))
    store = make_store(tmp_path / "store")
    run_over(tmp_path / "photos", store, settings=replace(SETTINGS, match=MatchSettings(threshold=0.06)))
    with page_server(store, match=STRICT.match) as server:
        browser = browser_at(server)
        browser.sign_in()
        people = People(Store(server.client, STRICT, server.service), "ann")
        (ann,) = people.all()
        people.name(ann.person_id, "Ann")
        run = people.regroup(of_run=True).regrouping
        assert run is not None
        assert run.moves == []
        answer = browser.get("review/regroup")
        (move, *others) = answer["moves"]
        assert (answer["method"], answer["pairs"]) == ("sequential", [])
        assert {each["from"]["name"] for each in (move, *others)} == {"Ann"}
        wish = {"kind": "move", "persons": [move["fromRecord"]], "faces": move["ids"], "asOf": answer["asOf"]}
        browser.post("corrections", {**wish, "from": move["from"]["id"]})
        left = [face for each in browser.get("review/regroup")["moves"] for face in each["ids"]]
        assert {*move["ids"]}.isdisjoint(left)
        people.regroup()
        assert {*move["ids"]} <= {face["face_id"] for face in people.photos("Ann")}


def test_what_is_corrected_while_a_regroup_is_decided_is_noticed(
    scattered: Path, tmp_path: Path, browser_at: BrowserAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shutil.copytree(scattered / "store", tmp_path / "store")
    lax = MatchSettings(threshold=0.06)
    with page_server(store, match=lax) as server:
        browser = browser_at(server)
        browser.sign_in()
        people = People(Store(server.client, replace(SETTINGS, match=lax), server.service), "ann")
        decide, named = People.regroup, list[str]()

        def overtaken(self: People, **more: Any) -> Any:
            decided = decide(self, **more)
            named.append(decided.regrouping.joins[0][0])
            people.name(named[0], "Ann")
            return decided

        monkeypatch.setattr(People, "regroup", overtaken)
        answer = browser.get("review/regroup")
        pair = next(pair for pair in answer["pairs"] if named[0] in both(pair))
        wish = {"kind": "merge", "persons": sorted(both(pair)), "asOf": answer["asOf"]}
        assert browser.post("corrections", wish, status=409)["errorReason"] == "changed-since"


def test_names_as_they_are_now_and_hidden_people(browser: Browser) -> None:
    pair = asked(browser, count=500)[0]
    one, other = pair["one"]["id"], pair["other"]["id"]
    browser.post("corrections", {"kind": "name", "persons": [one], "name": "Ann"})
    (named,) = [p for p in asked(browser, count=500) if both(p) == both(pair)]
    assert (named["one"]["id"], named["one"]["name"]) == (one, "Ann")
    browser.post("corrections", {"kind": "name", "persons": [other], "name": "Berta"})
    assert both(pair) not in map(both, asked(browser, count=500))
    browser.post("corrections", {"kind": "name", "persons": [other], "name": "Ann", "anyway": True})
    again = asked(browser, count=500)[0]
    assert both(again) == both(pair)
    assert again["reasons"].startswith("same name, ")
    browser.post("corrections", {"kind": "hide", "persons": [one]})
    assert not [p for p in asked(browser, count=500) if one in both(p)]


def test_stores_without_pairs(tmp_path: Path, browser_at: BrowserAt) -> None:
    with page_server(make_store(tmp_path / "store")) as server:
        browser = browser_at(server)
        browser.sign_in()
        assert browser.get("review")["pairs"] == []
        account = server.client.account_id("ann")
        for number in (1, 2):  # who are nothing like each other
            server.service.post(account, "main", photo(Shown(number)), PostRequest(name="A"))
        answer = browser.get("review")
        assert answer["pairs"] == []
        assert "next" not in answer


def test_the_wider_threshold_is_that_of_a_rate_as_far_as_the_calibration_tells(
    tmp_path: Path, browser_at: BrowserAt
) -> None:
    rates = ((1e-5, 0.54), (1e-3, 0.8), (1e-2, 1.0))
    calibration = Calibration(fmr=1e-5, thresholds=rates).as_dict()
    identity = replace(coded_identity(SIZE), calibration=calibration)
    with LocalStore.open_or_create(tmp_path / "store", lambda: identity, command="make") as client:
        client.create_account("ann", None)
    with page_server(tmp_path / "store") as server:
        browser = browser_at(server)
        browser.sign_in()
        assert browser.get("review")["wide"] == 0.8
        for fmr, wide in ((1e-5, 0.54), (1e-9, 0.54), (1e-6, 0.54), (1e-2, 1.0), (1, 1.0)):
            assert browser.get("review", fmr=fmr)["wide"] == wide
        store = browser.get("store")
        assert store["rates"] == [list(pair) for pair in rates]
        assert "1e-05" in store["model"]["calibration"]
        assert "warning" not in store
    with page_server(tmp_path / "store", match=MatchSettings(threshold=0.9)) as server:
        browser = browser_at(server)
        browser.sign_in()
        assert browser.get("review")["wide"] == 0.9  # never narrower than what joins


def test_what_is_wrong_in_a_question(browser: Browser) -> None:
    for query in ({"fmr": 0}, {"fmr": 2}, {"fmr": "x"}, {"count": 0}, {"after": "x"}):
        assert browser.get("review", status=400, **query)["errorReason"] == "parameter-invalid"
