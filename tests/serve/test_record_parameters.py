"""The rest of the names that clients know, each with a neutral, a meaningful and a bad value over a real server: the
filters of listings, what DELETE takes, the fields of `PUT /people/{id}` and `PUT /merge`, and the headers that describe
a person. Together with test_client_parameters these are all (but `personExternalId`, in test_person_parsing);
`test_every_name_has_its_cases` counts them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from pipeline.serve.handlers import description
from pipeline.serve.listing import EQUALITIES
from pipeline.serve.person_parsing import COMPUTED_FIELDS
from tests.serve.conformance.client import UNKNOWN_ID, Account, Directory, Json, assert_error
from tests.serve.conformance.photos import other, photo
from tests.serve.known_parameters import FILTERS

KINDS = ("neutral", "meaningful", "bad")
LISTINGS = ("/people", "/rootpeople")
LONG = "n" * 1001
INVALID = (400, "parameter-invalid")


# GET /people, GET /rootpeople

PEOPLE: list[Json] = [
    {"name": "Carla", "firstName": "Ada", "personType": "visitor", "groups": ["blue", "red"], "homeLocation": "Rome"},
    {"name": "Anna", "lastName": "Ada", "personType": "staff", "groups": ["red"], "idClass": "visitor"},
    {"name": "Bea", "externalId": "B-2", "moniker": "bee", "personType": "guest"},
]
# The meaningful value, who of PEOPLE is listed then and in which order, a bad value, and what that gets.
Listed = tuple[str, list[int], str, list[int] | tuple[int, str]]
LISTED: dict[str, Listed] = {
    "name-pattern": ("^[AB]", [1, 2], "(", INVALID),
    "external-id": ("B-2", [2], "~?", []),
    "first-name": ("Ada", [0], "~?", []),
    "last-name": ("Ada", [1], "~?", []),
    "person-type": ("visitor", [0], "~?", []),
    "id-class": ("visitor", [1], "~?", []),
    "moniker": ("bee", [2], "~?", []),
    "home-location": ("Rome", [0], "~?", []),
    "groups": ("red", [0, 1], "~?", []),
    "short-id": ("{second}", [1], "~?", []),
    "include-expired": ("true", [0, 1, 2], "~?", [0, 1, 2]),
    "sort": ("name", [1, 2, 0], "shoe-size", [0, 1, 2]),
    "sort-order": ("descending", [2, 1, 0], "downwards", INVALID),
}
SENT = {"access-*": "access-level"}  # a name for the pattern
LISTING_CASES = [
    (listing, name, kind)
    for listing in LISTINGS
    for name in (*LISTED, *(row.name for row in FILTERS))
    for kind in KINDS
]


@pytest.fixture(scope="module")
def three(live_account: Account) -> Iterator[tuple[Directory, list[str]]]:
    """PEOPLE in a directory, and their ids."""
    with live_account.fresh_directory() as directory:
        ids = [directory.force(other("hopper", number), person["name"], "X-1") for number, person in enumerate(PEOPLE)]
        for person_id, person in zip(ids, PEOPLE, strict=True):
            assert directory.put(f"/people/{person_id}", {"externalId": "", **person}).status_code == 202
        yield directory, ids


@pytest.mark.parametrize(("listing", "name", "kind"), LISTING_CASES)
def test_a_filter_lists_whom_it_names(three: tuple[Directory, list[str]], listing: str, name: str, kind: str) -> None:
    directory, ids = three
    everybody = [0, 1, 2]
    meaningful, listed, bad, of_bad = LISTED.get(name, ("1", None, "~?", None))
    value = {"neutral": "", "meaningful": meaningful.format(second=ids[1][:8]), "bad": bad}[kind]
    expected = {"neutral": everybody, "meaningful": listed, "bad": of_bad}[kind]
    answer = directory.get(listing, **{SENT.get(name, name): value})
    if isinstance(expected, tuple):
        assert_error(answer, *expected)
    elif expected is None:
        assert_error(answer, 400, "parameter-unsupported")
        assert SENT.get(name, name) in answer.json()["message"]
    else:
        assert answer.status_code == 200
        assert [person["personId"] for person in answer.json()["people"]] == [ids[which] for which in expected]
        assert answer.json()["personCollectionResponse"]["totalCount"] == len(expected)


# DELETE

DELETE_CASES = [
    ("recursive", "false", 1),
    ("recursive", "true", 2),
    ("recursive", "yes", INVALID),
    ("async", "", 1),
    ("async", "true", 1),
    ("async", "~?", 1),
]


@pytest.mark.parametrize(("name", "value", "expected"), DELETE_CASES)
def test_a_deletion_takes_whom_it_names(
    live_account: Account, name: str, value: str, expected: int | tuple[int, str]
) -> None:
    """Of two merged records and a third."""
    with live_account.fresh_directory() as directory:
        root, child, third = directory.force_all(*(other("hopper", number) for number in range(3)))
        directory.merge(root, child)
        answer = directory.delete(root, **{name: value})
        left = {person["personId"] for person in directory.people()}
        if isinstance(expected, tuple):
            assert_error(answer, *expected)
            assert left == {root, child, third}
        else:
            assert answer.status_code == 204
            assert left == {root, child, third} - {root, child if expected == 2 else root}


@pytest.mark.parametrize("path", ["/people", "/rootpeople", "/people/external/B-2", "/person/{}/face"])
def test_only_a_named_person_can_be_deleted(three: tuple[Directory, list[str]], path: str) -> None:
    directory, ids = three
    answer = directory.request("DELETE", path.format(ids[0]), params={"person-type": "visitor"})
    assert_error(answer, 405, "method-unknown")
    assert len(directory.people()) == len(ids)


# PUT

# A meaningful value, what the record has then (None: the same), a bad value.
FIELDS: dict[str, tuple[Any, Any, Any]] = {
    "name": ("Bea", None, 5),
    "firstName": (" Be ", "Be", LONG),
    "lastName": ("A", None, ["A"]),
    "externalId": ("B/2", None, "a\0"),
    "tags": (["vip", "north"], None, "vip"),
    "ignore": (True, None, "true"),
    **{
        field: ({"as": ["sent", 1, None]}, None, "x" * 9_000)
        for field in (*EQUALITIES.values(), "gender", "age", "dateOfBirth", "shoeSize")
        if field not in ("firstName", "lastName")
    },
}
STORED = ("name", "firstName", "lastName", "externalId", "tags", "ignore")
PUT_CASES = [
    (way, field, kind)
    for way in ("/people", "/merge")
    for field in (*FIELDS, *sorted(COMPUTED_FIELDS))
    for kind in KINDS
]
TOO_LARGE = (400, "metadata-too-large")


@pytest.fixture(scope="module")
def pair(live_account: Account) -> Iterator[tuple[Directory, str, str]]:
    """A directory with two records and their ids. Tests leave the second as it is and unmerged."""
    with live_account.fresh_directory() as directory:
        first, second = directory.force(photo("hopper")), directory.force(other("hopper"))
        yield directory, first, second


@pytest.mark.parametrize(("way", "field", "kind"), PUT_CASES)
def test_a_field_is_stored_or_refused(pair: tuple[Directory, str, str], way: str, field: str, kind: str) -> None:
    directory, first, second = pair
    computed = field in COMPUTED_FIELDS
    meaningful, becomes, bad = FIELDS.get(field, (UNKNOWN_ID, None, {"bad": LONG}))
    value = {"neutral": None, "meaningful": meaningful, "bad": bad}[kind]

    def put(value: Any) -> httpx.Response:
        if way == "/merge":
            return directory.put("/merge", {"personIds": [first, second], field: value})
        return directory.put(f"/people/{first}", {field: value})

    def own(person_id: str) -> Json:
        """What a merge does not change."""
        times_and_sums = ("modDate", "occurrence", "unmergedImageURIs")
        return {key: value for key, value in directory.record(person_id).items() if key not in times_and_sums}

    before, untouched = own(first), directory.record(second)
    answer = put(value)
    if kind == "bad" and not computed:
        assert_error(answer, *((400, "body-invalid") if field in STORED else TOO_LARGE))
        assert (own(first), directory.record(second)) == (before, untouched)
        return
    assert answer.status_code == 202
    if way == "/merge":
        assert directory.record(second)["rootPersonId"] == first
        directory.unmerge(first, second)
    changed = {} if computed or kind == "neutral" else {field: meaningful if becomes is None else becomes}
    assert own(first) == {**before, **changed}
    assert {**directory.record(second), "modDate": 0} == {**untouched, "modDate": 0}
    directory.put(f"/people/{first}", {field: ""})
    if not computed:
        assert own(first).get(field) == {"tags": [], "ignore": False}.get(field)


# The headers that describe a person


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


# A meaningful value, the fields that the record has then, a bad value.
HEADERS: dict[str, tuple[str, Json, str]] = {
    "X-RPC-PERSON-NAME": ("Bea", {"name": "Bea"}, LONG),
    "X-RPC-PERSON-NAME-BASE64": (coded("李"), {"name": "李"}, "%%%"),
    "X-RPC-PERSON-FIRST-NAME": ("Bea", {"firstName": "Bea", "name": "Bea"}, LONG),
    "X-RPC-PERSON-FIRST-NAME-BASE64": (coded("Zoë"), {"firstName": "Zoë", "name": "Zoë"}, "QQ"),
    "X-RPC-PERSON-LAST-NAME": ("Ng", {"lastName": "Ng", "name": "Ng"}, LONG),
    "X-RPC-PERSON-LAST-NAME-BASE64": (coded("Å"), {"lastName": "Å", "name": "Å"}, coded("a\0")),
    "X-RPC-EXTERNAL-ID": ("B/2", {"externalId": "B/2"}, LONG),
    "X-RPC-EXTERNAL-ID-BASE64": (coded("é"), {"externalId": "é"}, coded(LONG)),
    "X-RPC-PERSON-TAGS": ("vip, ,staff", {"tags": ["vip", "staff"]}, ",".join(["t"] * 101)),
    "X-RPC-PERSON-TYPE": ("visitor", {"personType": "visitor"}, LONG),
    "X-RPC-GENDER": ("female", {"gender": "female"}, LONG),
    "X-RPC-AGE": ("36", {"age": "36"}, LONG),
    "X-RPC-DATE-OF-BIRTH": ("1815-12-10", {"dateOfBirth": "1815-12-10"}, LONG),
    "X-RPC-GROUPS": ("vip, staff", {"groups": ["vip", "staff"]}, LONG),
    "X-RPC-GROUPS-BASE64": (coded("vip"), {"groups": ["vip"]}, "%%%"),
}
HEADER_CASES = [(way, name, kind) for way in ("PUT", "POST") for name in HEADERS for kind in KINDS]


@pytest.mark.parametrize(("way", "name", "kind"), HEADER_CASES)
def test_a_header_describes_the_person(pair: tuple[Directory, str, str], way: str, name: str, kind: str) -> None:
    """Without a body in a PUT; in a POST that updates her reference by its own image, so that nothing else changes."""
    directory, first, _ = pair
    directory.put(f"/people/{first}", dict.fromkeys(FIELDS, ""))
    meaningful, fields, bad = HEADERS[name]
    sent = {name: {"neutral": "", "meaningful": meaningful, "bad": bad}[kind]}

    def own() -> Json:
        record = directory.record(first)
        return {
            key: value for key, value in record.items() if key not in ("modDate", "occurrence", "lastOccurrenceDate")
        }

    before = own()
    if way == "PUT":
        answer = directory.put(f"/people/{first}", headers=sent)
    else:
        answer = directory.post(photo("hopper"), headers=sent, insert="false")
    if kind == "bad":
        assert_error(answer, 400, "header-invalid")
    else:
        assert answer.status_code == (202 if way == "PUT" else 201)
    assert own() == {**before, **(fields if kind == "meaningful" else {})}


# The page as a whole


def test_every_name_has_its_cases(record_property: Callable[[str, object], None]) -> None:
    paths = description()["paths"]
    described = {row["name"] for row in paths["/rootpeople"]["get"]["parameters"] if row["in"] == "query"}
    assert set(LISTED) == described - {"count", "start-index", "startIndexState"}
    assert set(HEADERS) == {
        row["name"]
        for row in paths["/people/{personId}"]["put"]["parameters"]
        if row["name"] not in ("X-RPC-DIRECTORY", "personId")
    }
    assert set(STORED) == set(description()["components"]["schemas"]["PersonChange"]["properties"])
    of_delete = {row["name"] for row in paths["/people/{personId}"]["delete"]["parameters"] if row["in"] == "query"}
    assert {name for name, _, _ in DELETE_CASES} == of_delete
    record_property("cases", len(LISTING_CASES) + len(DELETE_CASES) + len(PUT_CASES) + len(HEADER_CASES))
