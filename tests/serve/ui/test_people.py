"""The grid of people."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import httpx
import pytest
from coded_faces import Shown, photo

from pipeline.errors import ParameterInvalid
from pipeline.jobs.people import PersonRow
from pipeline.people.types import PostRequest
from pipeline.serve.ui.people_list import PeopleList
from tests.people.coded_archive import make_store
from tests.serve.live import LiveServer
from tests.serve.ui.browser import Browser
from tests.serve.ui.conftest import page_server
from tests.waiting import until

BrowserAt = Callable[[LiveServer], Browser]


def row(number: int, name: str | None = None, *, hidden: bool = False, photos: int = 1) -> PersonRow:
    added = datetime(2026, 1, 1 + number)
    return PersonRow(f"{number:08}-0000", name, f"e{number}", photos, photos, photos, 0, hidden, added)


def listed(*rows: PersonRow) -> PeopleList:
    return PeopleList({row.person_id: row for row in rows}, datetime(2026, 1, 1), None, 0.0)  # type: ignore[arg-type]


MANY = listed(
    row(1, "Berta", photos=3), row(2, "anna"), row(3), row(4, "Ärna", hidden=True), row(5, photos=9), row(6, "Anna")
)


def test_namesakes_are_others_who_are_shown() -> None:
    people = listed(row(1, "Anna"), row(2, "anna"), row(3), row(4, "ANNA", hidden=True), row(5), row(6, "Berta"))
    counts = {number: people.namesakes(one) for number, one in enumerate(people.rows.values(), start=1)}
    assert counts == {1: 1, 2: 1, 3: 0, 4: 2, 5: 0, 6: 0}


def found(people: PeopleList, sort: str, show: str = "all", text: str = "", count: int = 100) -> list[str]:
    """The ids' first numbers, over all pages."""
    after, ids = None, []
    while True:
        page = people.page(sort, show, text, after, count)
        ids += [int(row.person_id[:8]) for row in page.rows]
        if page.next is None:
            assert page.total == len(ids)
            return ids
        assert len(page.rows) == count
        after = page.next


@pytest.mark.parametrize("count", [1, 2, 100])
@pytest.mark.parametrize(
    ("sort", "show", "text", "expected"),
    [
        ("photos", "all", "", [5, 1, 2, 3, 6]),
        ("name", "all", "", [2, 6, 1, 3, 5]),
        ("newest", "all", "", [6, 5, 3, 2, 1]),
        ("newest", "unnamed", "", [5, 3]),
        ("name", "named", "", [2, 6, 1]),
        ("name", "hidden", "", [4]),
        ("name", "all", "ANN", [2, 6]),
        ("name", "all", "e5", [5]),
        ("name", "all", "00000003", [3]),
        ("name", "hidden", "a\u0308RNA", [4]),
        ("name", "all", "nobody", []),
    ],
)
def test_orders_and_filters_over_pages(count: int, sort: str, show: str, text: str, expected: list[int]) -> None:
    assert found(MANY, sort, show, text, count) == expected


def test_a_cursor_holds_its_place_when_others_come_and_go() -> None:
    first = listed(*(row(number) for number in (1, 2, 3))).page("newest", "all", "", None, 1)
    later = listed(*(row(number) for number in (1, 4)))  # 3, which was shown, is gone; 4 came before it
    assert [r.person_id[:8] for r in later.page("newest", "all", "", first.next, 9).rows] == ["00000001"]


@pytest.mark.parametrize("after", ["", "x", "é", "W10", "WyJuYW1lIl0", "WyJwaG90b3MiLCAxLCAyLCAzXQ", "bnVsbA"])
def test_what_is_no_cursor_is_refused(after: str) -> None:
    with pytest.raises(ParameterInvalid):
        MANY.page("photos", "all", "", after, 1)
    other = MANY.page("name", "all", "", None, 1).next
    with pytest.raises(ParameterInvalid):
        MANY.page("photos", "all", "", other, 1)


def test_people_with_their_pictures(reader: Browser) -> None:
    answer = reader.get("people")
    assert [(p["photos"], p["faces"]) for p in answer["people"]] == [(3, 3), (2, 2), (1, 1)]
    assert answer["total"] == 3
    assert "next" not in answer
    for person in answer["people"]:
        assert set(person) == {"id", "photos", "faces", "merged", "hidden", "addedAt", "picture"}
        picture = reader.http.get(person["picture"])
        assert (picture.status_code, picture.headers["Content-Type"]) == (200, "image/jpeg")
        assert "no-store" not in picture.headers["Cache-Control"]
        again = reader.http.get(person["picture"], headers={"If-None-Match": picture.headers["ETag"]})
        assert again.status_code == 304
        assert reader.get(f"people/{person['id'].upper()}")["person"] == person


@pytest.mark.slow
def test_who_comes_by_a_request_shows(browser: Browser, server: LiveServer) -> None:
    assert browser.get("people")["total"] == 3
    service, account = server.service, server.client.account_id("ann")
    service.post(account, "main", photo(Shown(20)), PostRequest(name="Zoë", external_id="z"))
    until(lambda: browser.people(q="zoë") != [])  # a list may be two seconds old
    (zoe,) = browser.people(q="zoë")
    assert (zoe["name"], zoe["externalId"], zoe["photos"], zoe["faces"]) == ("Zoë", "z", 0, 1)


def test_what_is_wrong_in_a_question(reader: Browser) -> None:
    for query in ({"sort": "age"}, {"show": "some"}, {"count": 0}, {"count": 501}, {"after": "x"}, {"directory": "/"}):
        assert reader.get("people", status=400, **query)["errorReason"] == "parameter-invalid"
    for who in ("x", "0" * 36, "00000000-0000-0000-0000-000000000000"):
        assert reader.get(f"people/{who}", status=404)["errorReason"] == "person-unknown"
    assert reader.get("people", directory="other") | {"asOf": ""} == {"people": [], "total": 0, "asOf": ""}


def test_another_account_sees_nothing_of_it(reader: Browser, shared: LiveServer, browser_at: BrowserAt) -> None:
    bob = browser_at(shared)
    bob.sign_in("bob")
    assert bob.get("session")["directories"] == []
    assert bob.get("people")["total"] == 0
    for person in reader.people():
        bob.get(f"people/{person['id']}", status=404)
        assert bob.http.get(person["picture"]).status_code == 404
        assert httpx.get(shared.url + person["picture"]).status_code == 401


def test_a_store_without_people(tmp_path: Path, browser_at: BrowserAt) -> None:
    with page_server(make_store(tmp_path / "store")) as server:
        browser = browser_at(server)
        assert browser.sign_in()["directories"] == []
        for show in ("all", "unnamed", "hidden"):
            assert browser.get("people", show=show)["people"] == []
