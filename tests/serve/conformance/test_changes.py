"""Changing records: the decisions about PUT, DELETE, merges, person and root."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serve.conformance.client import BEA, UNKNOWN_ID, Directory, Json, assert_error, external_path
from tests.serve.conformance.photos import other, photo


@pytest.fixture
def merged(directory: Directory, alike: list[str]) -> list[str]:
    """`alike` after a merge. The first is the root."""
    directory.merge(*alike)
    return alike


def roots(directory: Directory) -> dict[str, str]:
    """The root of each record, by person id."""
    return {person["personId"]: person["rootPersonId"] for person in directory.people()}


# PUT /people/{personId}


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        ({"name": "Bea"}, {"name": "Bea"}),
        ({"name": "Bea", "externalId": "B/2", "tags": ["vip", "north"], "ignore": True}, None),
        ({"name": "", "externalId": "", "tags": []}, {"name": None, "externalId": None}),
        ({"firstName": "Be", "lastName": "A", "shoeSize": 43, "personType": {"deep": []}}, None),
        ({"moniker": "bee", "personId": UNKNOWN_ID, "occurrence": 99, "addDate": 5}, {"moniker": "bee"}),
    ],
    ids=["one field", "every field", "blank", "further fields", "computed fields"],
)
def test_put_changes_what_the_body_has(directory: Directory, person: Json, body: Json, changed: Json | None) -> None:
    """JSON body; omitted = unchanged, blank = removed. Computed fields are ignored, others kept as sent. `202`."""
    assert directory.put(f"/people/{person['personId']}", body).status_code == 202
    after = directory.record(person["personId"])
    assert after["modDate"] >= person["modDate"]
    expected = {**person, **(body if changed is None else changed), "modDate": after["modDate"]}
    assert after == {key: value for key, value in expected.items() if value is not None}


def test_put_person_headers_serve_without_a_body(directory: Directory, person: Json) -> None:
    """Person headers serve only without a body."""
    path = f"/people/{person['personId']}"
    assert directory.put(path, headers={"X-RPC-PERSON-NAME": "Header"}).status_code == 202
    after = directory.record(person["personId"])
    assert (after["name"], after["externalId"]) == ("Header", "A-1")
    directory.put(path, {"externalId": "B-2"}, headers={"X-RPC-PERSON-NAME": "Ignored"})
    after = directory.record(person["personId"])
    assert (after["name"], after["externalId"]) == ("Header", "B-2")


def test_put_a_record_that_is_sent_back_changes_nothing(directory: Directory, merged: list[str]) -> None:
    """Computed fields of the record are ignored, so that a record can be sent back: a root and a child."""
    for person_id in merged[:2]:
        directory.put(f"/people/{person_id}", {"lastName": "Hopper", "gender": "f", "groups": ["a"], "tags": ["x"]})
    for record in directory.people():
        assert directory.put(f"/people/{record['personId']}", record).status_code == 202
        assert directory.record(record["personId"]) == record


@pytest.mark.parametrize("nothing", ["", " ", None, [], {}], ids=repr)
def test_put_removes_a_further_field_that_is_blank_null_or_empty(
    directory: Directory, person: Json, nothing: object
) -> None:
    """Every other field is kept as sent (blank, null or empty = removed)."""
    path = f"/people/{person['personId']}"
    directory.put(path, {"moniker": "bee", "shoeSize": 0})
    directory.put(path, {"moniker": nothing})
    after = directory.record(person["personId"])
    assert after == {**person, "shoeSize": 0, "modDate": after["modDate"]}


def test_put_keeps_at_most_8_kb_of_further_fields(directory: Directory, person: Json) -> None:
    """At most 8 KB, else `400`; nothing is stored."""
    path = f"/people/{person['personId']}"
    assert directory.put(path, {"a": "x" * 8000}).status_code == 202
    before = directory.record(person["personId"])
    for body in ({"name": "Bea", "b": "é" * 100}, {"a": "x" * 8200}):
        assert_error(directory.put(path, body), 400, "metadata-too-large")
    assert directory.record(person["personId"]) == before
    assert directory.put(path, {"a": "", "b": "é" * 4000}).status_code == 202


def test_put_is_seen_by_recognition(directory: Directory, person: Json) -> None:
    directory.put(f"/people/{person['personId']}", {"name": "Bea", "tags": ["vip"], "ignore": True})
    (face,) = directory.recognise(other("hopper"), similar_limit=1)
    assert face["name"] == face["similar"][0]["name"] == "Bea"
    assert face["tags"] == ["vip"]
    assert face["similar"][0]["ignore"] is True


@pytest.mark.parametrize(
    "body",
    [b"[]", b"{", b"42", b'"x"', b'{"name": 5}', b'{"tags": "x"}', b"\xff", b"[" * 9999, b'{"a": 1e999}'],
)
def test_put_json_of_the_wrong_shape_is_400(directory: Directory, person: Json, body: bytes) -> None:
    assert directory.request("PUT", f"/people/{person['personId']}", content=body).status_code == 400
    assert directory.record(person["personId"]) == person


# DELETE /people/{personId}


def test_delete_takes_everything_of_the_person(directory: Directory, person: Json) -> None:
    """`204`, `404` when absent. Everything of it goes everywhere; the image is no longer identical to a reference, so
    it makes a new identity."""
    person_id = person["personId"]
    answer = directory.delete(person_id)
    assert (answer.status_code, answer.content) == (204, b"")
    assert directory.people() == []
    for answer in (
        directory.delete(person_id),
        directory.get(f"/people/{person_id}"),
        directory.get(external_path("A-1")),
        directory.face_image(person_id),
        directory.stored(person["imageURI"]),
    ):
        assert answer.status_code == 404
    (face,) = directory.recognise(photo("hopper"), similar_limit=5, threshold=4)
    assert "personId" not in face
    assert face["similar"] == []
    assert directory.insert(photo("hopper"))["personId"] != person_id


def test_delete_of_one_leaves_the_others(directory: Directory, person: Json) -> None:
    """This record only."""
    remaining = directory.insert(photo("collins"), **BEA)["personId"]
    directory.delete(person["personId"])
    assert [record["personId"] for record in directory.people()] == [remaining]
    assert directory.recognise(other("collins"))[0]["personId"] == remaining


def test_delete_of_a_root_makes_its_oldest_child_root(directory: Directory, merged: list[str]) -> None:
    """This record only, its oldest child becomes root."""
    first, second, third = merged
    assert directory.delete(first).status_code == 204
    assert roots(directory) == {second: second, third: second}
    (face,) = directory.recognise(photo("hopper"))
    assert (face["personId"], face["name"]) == (second, "P1")


def test_delete_of_a_child_leaves_its_root(directory: Directory, merged: list[str]) -> None:
    first, second, third = merged
    assert directory.delete(second).status_code == 204
    assert roots(directory) == {first: first, third: first}


@pytest.mark.parametrize("which", [0, 1], ids=["root", "child"])
def test_delete_recursive_takes_the_whole_merged_set(directory: Directory, merged: list[str], which: int) -> None:
    """`recursive=true` the whole merged set."""
    remaining = directory.insert(photo("collins"), **BEA)["personId"]
    assert directory.delete(merged[which], recursive="true").status_code == 204
    assert [person["personId"] for person in directory.people()] == [remaining]


# PUT /merge, PUT /unmerge


@pytest.mark.parametrize("path", ["/merge", "/unmerge"])
@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"personIds": "x"}', b'{"personIds": [5]}', b'{"personIds": []}', b'{"personIds": null}'],
)
def test_merge_of_the_wrong_shape_is_400(directory: Directory, path: str, body: bytes) -> None:
    assert directory.request("PUT", path, content=body).status_code == 400


@pytest.mark.parametrize("path", ["/merge", "/unmerge"])
def test_merge_with_an_unknown_person_is_404_and_changes_nothing(directory: Directory, person: Json, path: str) -> None:
    assert directory.put(path, {"personIds": [person["personId"], UNKNOWN_ID]}).status_code == 404
    assert directory.record(person["personId"]) == person


def test_identities_the_oldest_becomes_root(directory: Directory, alike: list[str]) -> None:
    """Body `{"personIds": [...]}` -> `202`. Root = the one among `personIds` that is a root already, else the
    oldest."""
    first, second, third = alike
    directory.merge(third, first, second)
    assert set(roots(directory).values()) == {first}
    assert [person["personId"] for person in directory.people()] == alike
    assert [person["personId"] for person in directory.roots()] == [first]


def test_merge_applies_further_fields_to_the_root(directory: Directory, alike: list[str]) -> None:
    """`PUT /merge` with further fields applies them to the root likewise."""
    first, *others = alike
    body = {"personIds": [*others, first], "name": "One", "lastName": "Hopper", "idClass": "staff", "occurrence": 7}
    assert directory.put("/merge", body).status_code == 202
    root, *children = directory.people()
    assert root["personId"] == first
    assert (root["name"], root["lastName"], root["idClass"], root["occurrence"]) == ("One", "Hopper", "staff", 3)
    assert [child["name"] for child in children] == ["P1", "P2"]
    assert not any("idClass" in child or "lastName" in child for child in children)
    assert not any("personIds" in record for record in (root, *children))
    assert directory.put("/merge", {"personIds": alike, "name": 5}).status_code == 400


def test_identities_a_root_stays_root(directory: Directory, alike: list[str]) -> None:
    """The root of a merged set stays its root, even though another record is older."""
    first, second, third = alike
    directory.merge(second, third)
    directory.merge(first, second)
    assert set(roots(directory).values()) == {second}


def test_identities_recognition_answers_with_the_root(directory: Directory, merged: list[str]) -> None:
    """Recognition answers with the root's id, name and external id and the sum of occurrences."""
    for which in range(3):
        (face,) = directory.recognise(other("hopper", which))
        assert (face["personId"], face["name"], face["personExternalId"]) == (merged[0], "P0", "P-0")
        assert face["occurrence"] == 3


def test_identities_a_merge_keeps_all_data_per_record(directory: Directory, merged: list[str]) -> None:
    """A merge only sets parent pointers; all data stays per record."""
    assert [person["name"] for person in directory.people()] == ["P0", "P1", "P2"]
    for which, person_id in enumerate(merged):
        (face,) = directory.recognise(other("hopper", which), threshold=0)
        assert face["personId"] == merged[0]  # each reference is still found, and the answer is the root
        assert directory.face_image(person_id).status_code == 200


def test_identities_unmerge_restores_exactly(directory: Directory, alike: list[str]) -> None:
    """`PUT /unmerge` -> `202`. Unmerge removes pointers, so it restores exactly."""

    def records() -> list[dict[str, Any]]:
        return [{**person, "modDate": 0} for person in directory.people()]

    directory.put(f"/people/{alike[1]}", {"tags": ["vip"]})
    before = records()
    directory.merge(*alike)
    assert records() != before
    directory.unmerge(*alike)
    assert records() == before
    assert len(directory.roots()) == 3


def test_identities_later_changes_stay_with_their_record(directory: Directory, merged: list[str]) -> None:
    """Later changes stay with their record."""
    directory.put(f"/people/{merged[1]}", {"name": "Changed"})
    directory.faces(other("hopper", 2), **BEA, update="false")
    directory.unmerge(*merged)
    records = {person["personId"]: person for person in directory.people()}
    assert [records[person_id]["name"] for person_id in merged] == ["P0", "Changed", "P2"]
    assert [records[person_id]["occurrence"] for person_id in merged] == [1, 1, 2]


def test_identities_unmerge_of_one_child_leaves_the_rest(directory: Directory, merged: list[str]) -> None:
    first, second, third = merged
    directory.unmerge(first, third)
    assert roots(directory) == {first: first, second: first, third: third}
