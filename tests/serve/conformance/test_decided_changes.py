"""decisions.md, "Requests": the calls that change records."""

from __future__ import annotations

import pytest

from tests.serve.conformance.client import Directory, Json, external_path
from tests.serve.conformance.photos import other, photo

UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"


# PUT /people/{personId}


@pytest.fixture
def person(directory: Directory) -> Json:
    return directory.record(directory.insert(photo("hopper"), "Anna", "A-1")["personId"])


def test_put_changes_what_the_body_has(directory: Directory, person: Json) -> None:
    """JSON body; omitted = unchanged. `202`."""
    answer = directory.put(f"/people/{person['personId']}", {"name": "Bea"})
    assert answer.status_code == 202
    after = directory.record(person["personId"])
    assert after == {**person, "name": "Bea", "modDate": after["modDate"]}
    assert after["modDate"] >= person["modDate"]


def test_put_changes_every_field(directory: Directory, person: Json) -> None:
    change = {"name": "Bea", "externalId": "B/2", "tags": ["vip", "north"], "ignore": True}
    assert directory.put(f"/people/{person['personId']}", change).status_code == 202
    after = directory.record(person["personId"])
    assert {key: after[key] for key in change} == change


def test_put_blank_is_removed(directory: Directory, person: Json) -> None:
    """Blank = removed."""
    directory.put(f"/people/{person['personId']}", {"name": "", "externalId": "", "tags": []})
    after = directory.record(person["personId"])
    assert not {"name", "externalId"} & set(after)
    assert after["tags"] == []


def test_put_unknown_fields_are_accepted(directory: Directory, person: Json) -> None:
    """Unknown fields accepted."""
    change = {"shoeSize": 43, "personType": {"deep": []}, "name": "Bea"}
    assert directory.put(f"/people/{person['personId']}", change).status_code == 202
    assert directory.record(person["personId"])["name"] == "Bea"


def test_put_person_headers_serve_without_a_body(directory: Directory, person: Json) -> None:
    """Person headers serve only without a body."""
    path = f"/people/{person['personId']}"
    assert directory.put(path, headers={"X-RPC-PERSON-NAME": "Header"}).status_code == 202
    after = directory.record(person["personId"])
    assert (after["name"], after["externalId"]) == ("Header", "A-1")
    directory.put(path, {"externalId": "B-2"}, headers={"X-RPC-PERSON-NAME": "Ignored"})
    after = directory.record(person["personId"])
    assert (after["name"], after["externalId"]) == ("Header", "B-2")


def test_put_is_seen_by_recognition(directory: Directory, person: Json) -> None:
    directory.put(f"/people/{person['personId']}", {"name": "Bea", "tags": ["vip"], "ignore": True})
    (face,) = directory.recognise(other("hopper"), similar_limit=1)
    assert face["name"] == face["similar"][0]["name"] == "Bea"
    assert face["tags"] == ["vip"]
    assert face["similar"][0]["ignore"] is True


@pytest.mark.parametrize("body", [b"[]", b"{", b"42", b'"x"', b'{"name": 5}', b'{"tags": "x"}', b"\xff", b"[" * 9999])
def test_put_json_of_the_wrong_shape_is_400(directory: Directory, person: Json, body: bytes) -> None:
    answer = directory.request("PUT", f"/people/{person['personId']}", content=body)
    assert answer.status_code == 400
    assert directory.record(person["personId"]) == person


def test_put_of_nobody_is_404(directory: Directory) -> None:
    assert directory.put(f"/people/{UNKNOWN_ID}", {"name": "x"}).status_code == 404


# DELETE /people/{personId}


def test_delete_is_204_then_404(directory: Directory, person: Json) -> None:
    """`204`, `404` when absent."""
    answer = directory.delete(person["personId"])
    assert answer.status_code == 204
    assert answer.content == b""
    assert directory.delete(person["personId"]).status_code == 404


def test_delete_takes_everything_of_the_person(directory: Directory, person: Json) -> None:
    """Everything of it goes everywhere."""
    person_id = person["personId"]
    directory.delete(person_id)
    assert directory.people() == []
    assert directory.get(f"/people/{person_id}").status_code == 404
    assert directory.get(external_path("A-1")).status_code == 404
    assert directory.face_image(person_id).status_code == 404
    assert directory.stored(person["imageURI"]).status_code == 404
    (face,) = directory.recognise(photo("hopper"), similar_limit=5, threshold=4)
    assert "personId" not in face
    assert face["similar"] == []


def test_delete_of_one_leaves_the_others(directory: Directory, person: Json) -> None:
    stays = directory.insert(photo("collins"), "Bea", "B-2")["personId"]
    directory.delete(person["personId"])
    assert [record["personId"] for record in directory.people()] == [stays]
    assert directory.recognise(other("collins"))[0]["personId"] == stays


def test_delete_then_insert_makes_a_new_identity(directory: Directory, person: Json) -> None:
    """The same image again is no longer "identical" to anything."""
    directory.delete(person["personId"])
    assert directory.insert(photo("hopper"))["personId"] != person["personId"]


def _merged_three(directory: Directory) -> list[str]:
    inserted = [directory.force(other("hopper", n), f"P{n}", f"P-{n}")["personId"] for n in range(3)]
    directory.merge(*inserted)
    return inserted


def test_delete_of_a_root_makes_its_oldest_child_root(directory: Directory) -> None:
    """This record only, its oldest child becomes root."""
    first, second, third = _merged_three(directory)
    assert directory.delete(first).status_code == 204
    assert {person["personId"]: person["rootPersonId"] for person in directory.people()} == {
        second: second,
        third: second,
    }
    (face,) = directory.recognise(photo("hopper"))
    assert (face["personId"], face["name"]) == (second, "P1")


def test_delete_of_a_child_leaves_its_root(directory: Directory) -> None:
    first, second, third = _merged_three(directory)
    assert directory.delete(second).status_code == 204
    assert [person["personId"] for person in directory.people()] == [first, third]
    assert [person["personId"] for person in directory.roots()] == [first]


@pytest.mark.parametrize("which", [0, 1])
def test_delete_recursive_takes_the_whole_merged_set(directory: Directory, which: int) -> None:
    """`recursive=true` the whole merged set."""
    inserted = _merged_three(directory)
    other_person = directory.insert(photo("collins"), "Bea", "B-2")["personId"]
    assert directory.delete(inserted[which], recursive="true").status_code == 204
    assert [person["personId"] for person in directory.people()] == [other_person]


# PUT /merge, PUT /unmerge


@pytest.mark.parametrize("path", ["/merge", "/unmerge"])
@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"personIds": "x"}', b'{"personIds": [5]}', b'{"personIds": []}', b'{"personIds": null}'],
)
def test_merge_of_the_wrong_shape_is_400(directory: Directory, path: str, body: bytes) -> None:
    assert directory.request("PUT", path, content=body).status_code == 400


@pytest.mark.parametrize("path", ["/merge", "/unmerge"])
def test_merge_with_somebody_unknown_is_404_and_changes_nothing(directory: Directory, person: Json, path: str) -> None:
    assert directory.put(path, {"personIds": [person["personId"], UNKNOWN_ID]}).status_code == 404
    assert directory.record(person["personId"]) == person


def test_merge_and_unmerge_are_202(directory: Directory) -> None:
    """Body `{"personIds": [...]}` -> `202`."""
    inserted = [directory.insert(photo(who), who, who)["personId"] for who in ("hopper", "collins")]
    body = {"personIds": inserted}
    assert directory.put("/merge", body).status_code == 202
    assert len(directory.roots()) == 1
    assert directory.put("/unmerge", body).status_code == 202
    assert len(directory.roots()) == 2
