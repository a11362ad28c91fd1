"""decisions.md, "Requests": records and listings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.conformance.client import Account, Directory, external_path
from tests.serve.conformance.conftest import Gallery
from tests.serve.conformance.photos import other, photo

ALWAYS = {
    "personId",
    "rootPersonId",
    "imageURI",
    "occurrence",
    "lastOccurrenceDate",
    "rootPersonAddDate",
    "addDate",
    "modDate",
    "tags",
    "ignore",
}
NAMES = ["Dora", "anna", "Carla", "Bea", "Anna"]
UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"


@pytest.fixture(scope="module")
def five(account: Account) -> Iterator[Directory]:
    """Five identities in the order of NAMES; the external ids are x-0, x-1, x-0, x-1, x-0."""
    with account.fresh_directory() as directory:
        for number, name in enumerate(NAMES):
            directory.force(other("hopper", number), name, f"x-{number % 2}")
            time.sleep(0.002)  # so that no two have one creation date
        yield directory


def names(directory: Directory, **query: Any) -> list[str]:
    return [person["name"] for person in directory.roots(**query)]


# Record


def test_record_has_all_its_keys(gallery: Gallery) -> None:
    """personId, rootPersonId, name, externalId, imageURI, ..., ignore; keys without value absent."""
    record = gallery.directory.record(gallery.hopper["personId"])
    assert set(record) == ALWAYS | {"name", "externalId"}
    assert record["rootPersonId"] == record["personId"]
    assert record["tags"] == []
    assert record["ignore"] is False
    for key in ("lastOccurrenceDate", "rootPersonAddDate", "addDate", "modDate"):
        assert abs(record[key] - time.time() * 1000) < 3_600_000
    assert record["occurrence"] == 1


def test_record_of_a_child_shows_its_own_image_beside_the_roots(directory: Directory) -> None:
    """`unmergedImageURI` (its own image when different)."""
    first = directory.insert(photo("hopper"))["personId"]
    second = directory.force(other("hopper"))["personId"]
    own = {person["personId"]: person["imageURI"] for person in directory.people()}
    directory.merge(first, second)
    child = directory.record(second)
    assert child["rootPersonId"] == first
    assert child["imageURI"] == own[first]
    assert child["unmergedImageURI"] == own[second]
    assert "unmergedImageURI" not in directory.record(first)


# GET /people


def test_people_lists_all_records_in_the_order_of_insertion(five: Directory) -> None:
    """`{"people": [record...]}`, all records."""
    answer = five.get("/people")
    assert answer.status_code == 200
    assert set(answer.json()) == {"people"}
    assert [person["name"] for person in answer.json()["people"]] == NAMES


def test_people_lists_children_too(directory: Directory) -> None:
    first = directory.insert(photo("hopper"))["personId"]
    second = directory.force(other("hopper"))["personId"]
    directory.merge(first, second)
    assert [person["personId"] for person in directory.people()] == [first, second]
    assert [person["personId"] for person in directory.roots()] == [first]


# GET /rootpeople


def test_rootpeople_has_people_and_a_collection_response(five: Directory) -> None:
    """`{"people": [...], "personCollectionResponse": {...}}`; insertion order by default."""
    answer = five.get("/rootpeople").json()
    assert set(answer) == {"people", "personCollectionResponse"}
    assert [person["name"] for person in answer["people"]] == NAMES
    collection = answer["personCollectionResponse"]
    assert collection == {"startIndex": 0, "countReturned": 5, "totalCount": 5}


def test_rootpeople_next_index_state_is_absent_on_the_last_page(five: Directory) -> None:
    """`nextIndexState` absent on the last page."""
    assert "nextIndexState" in five.get("/rootpeople", count=4).json()["personCollectionResponse"]
    assert "nextIndexState" not in five.get("/rootpeople", count=5).json()["personCollectionResponse"]


@pytest.mark.parametrize("query", [{}, {"sort": "name"}, {"sort": "create-date", "sort-order": "desc"}])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_rootpeople_pages_follow_the_cursor(five: Directory, query: dict[str, str], count: int) -> None:
    """`startIndexState` (opaque cursor): the pages together are the whole, in order, each person once."""
    pages: list[str] = []
    state: dict[str, str] = {}
    for _ in range(len(NAMES)):
        answer = five.get("/rootpeople", count=count, **query, **state).json()
        collection = answer["personCollectionResponse"]
        assert collection["startIndex"] == len(pages)
        assert collection["countReturned"] == len(answer["people"]) <= count
        assert collection["totalCount"] == len(NAMES)
        pages += [person["name"] for person in answer["people"]]
        if "nextIndexState" not in collection:
            break
        state = {"startIndexState": collection["nextIndexState"]}
    assert pages == names(five, **query)


def test_rootpeople_a_cursor_survives_changes(directory: Directory) -> None:
    """A person inserted or deleted between two pages shifts nothing."""
    inserted = [directory.force(other("hopper", n), f"P{n}", f"P-{n}")["personId"] for n in range(3)]
    first = directory.get("/rootpeople", count=2).json()
    directory.delete(inserted[0])
    last = directory.force(other("hopper", 3), "P3", "P-3")["personId"]
    state = first["personCollectionResponse"]["nextIndexState"]
    rest = directory.get("/rootpeople", startIndexState=state).json()["people"]
    assert [person["personId"] for person in rest] == [inserted[2], last]


def test_rootpeople_tampered_cursor_is_400(five: Directory) -> None:
    for state in ("abc", "%%%", "AAAA"):
        assert five.get("/rootpeople", startIndexState=state).status_code == 400


def test_rootpeople_start_index(five: Directory) -> None:
    """`start-index`."""
    answer = five.get("/rootpeople", **{"start-index": 3}).json()
    assert [person["name"] for person in answer["people"]] == NAMES[3:]
    assert answer["personCollectionResponse"]["startIndex"] == 3
    assert names(five, **{"start-index": 50}) == []


def test_rootpeople_count(five: Directory) -> None:
    """`count` (default 100, 0 = all)."""
    assert names(five, count=2) == NAMES[:2]
    assert names(five, count=0) == NAMES
    assert names(five, count=100) == NAMES


@pytest.mark.parametrize("query", [{"count": "x"}, {"count": "-1"}, {"start-index": "-1"}, {"start-index": "x"}])
def test_rootpeople_bad_numbers_are_400(five: Directory, query: dict[str, str]) -> None:
    assert five.get("/rootpeople", **query).status_code == 400


def test_rootpeople_sort(five: Directory) -> None:
    """`sort` (`name`, `create-date`, `update-date`; unknown ignored), `sort-order`."""
    assert names(five, sort="name") == sorted(NAMES)
    assert names(five, sort="name", **{"sort-order": "asc"}) == sorted(NAMES)
    assert names(five, sort="name", **{"sort-order": "desc"}) == sorted(NAMES, reverse=True)
    assert names(five, sort="create-date") == NAMES
    assert names(five, sort="create-date", **{"sort-order": "desc"}) == NAMES[::-1]
    assert names(five, sort="shoe-size") == NAMES


def test_rootpeople_sort_by_update_date(directory: Directory) -> None:
    first = directory.insert(photo("hopper"), "A", "A-1")["personId"]
    directory.insert(photo("collins"), "B", "B-1")
    time.sleep(0.002)
    directory.put(f"/people/{first}", {"name": "A2"})
    assert names(directory, sort="update-date") == ["B", "A2"]
    assert names(directory, sort="update-date", **{"sort-order": "desc"}) == ["A2", "B"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("nna", ["anna", "Anna"]),
        ("^A", ["Anna"]),
        ("a$", ["Dora", "anna", "Carla", "Bea", "Anna"]),
        ("[BD]", ["Dora", "Bea"]),
        ("r.a", ["Carla"]),
        ("zzz", []),
    ],
)
def test_rootpeople_name_pattern(five: Directory, pattern: str, expected: list[str]) -> None:
    """`name-pattern` (unanchored, case-sensitive)."""
    assert names(five, **{"name-pattern": pattern}) == expected


@pytest.mark.parametrize("pattern", ["(", "[", "*", "a{999999}"])
def test_rootpeople_bad_name_pattern_is_400(five: Directory, pattern: str) -> None:
    """... bad -> `400`."""
    assert five.get("/rootpeople", **{"name-pattern": pattern}).status_code == 400


def test_rootpeople_name_pattern_takes_linear_time(directory: Directory) -> None:
    """... linear time: a pattern that keeps a backtracking engine busy for years."""
    directory.insert(photo("hopper"), "a" * 900 + "!", "A-1")
    start = time.monotonic()
    assert names(directory, **{"name-pattern": "^(a+)+$"}) == []
    assert time.monotonic() - start < 5


def test_rootpeople_external_id_is_repeatable(five: Directory) -> None:
    """`external-id` (repeatable)."""
    assert names(five, **{"external-id": "x-1"}) == ["anna", "Bea"]
    assert names(five, **{"external-id": ["x-1", "x-0"]}) == NAMES
    assert names(five, **{"external-id": "x-9"}) == []


def test_rootpeople_filters_and_pages_together(five: Directory) -> None:
    """The total counts what the filters leave."""
    answer = five.get("/rootpeople", count=1, **{"external-id": "x-0", "name-pattern": "a"}).json()
    assert answer["personCollectionResponse"]["totalCount"] == 3
    assert len(answer["people"]) == 1


def test_rootpeople_include_expired_is_accepted(five: Directory) -> None:
    assert names(five, **{"include-expired": "true"}) == NAMES


# GET /people/{personId}, GET /people/external/{externalId}


def test_person_by_id(gallery: Gallery) -> None:
    """`{"people": [record...]}`, `404` when none."""
    answer = gallery.directory.get(f"/people/{gallery.collins['personId']}")
    assert answer.status_code == 200
    assert [person["name"] for person in answer.json()["people"]] == ["Eileen Collins"]


@pytest.mark.parametrize("person_id", [UNKNOWN_ID, "not-a-uuid", "1", "' OR 1=1 --", "é", "x" * 2000])
def test_person_by_an_id_that_nobody_has_is_404(gallery: Gallery, person_id: str) -> None:
    assert gallery.directory.get(f"/people/{person_id}").status_code == 404


def test_people_by_external_id(five: Directory) -> None:
    """All who have it, in the order of insertion; `404` when none."""
    answer = five.get(external_path("x-1"))
    assert [person["name"] for person in answer.json()["people"]] == ["anna", "Bea"]
    assert five.get(external_path("x-9")).status_code == 404


@pytest.mark.parametrize(
    "external_id", ["a/b", "/lead", "trail/", "a b+c", "50%", "%2F", "ключ", "?q=1&x", "..", "a\\b"]
)
def test_external_id_in_a_path_may_hold_anything_encoded(directory: Directory, external_id: str) -> None:
    """An external id in a path may hold encoded `/`."""
    import base64

    coded = base64.b64encode(external_id.encode()).decode()
    answer = directory.post(photo("hopper"), name="Anna", headers={"X-RPC-EXTERNAL-ID-BASE64": coded})
    assert answer.status_code == 201
    answer = directory.get(external_path(external_id))
    assert answer.status_code == 200, external_path(external_id)
    assert [person["externalId"] for person in answer.json()["people"]] == [external_id]
