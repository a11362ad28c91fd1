"""decisions.md, "Identity semantics": person and root."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serve.conformance.client import Directory, Json
from tests.serve.conformance.conftest import Gallery
from tests.serve.conformance.photos import other

# Person and root


@pytest.fixture
def merged(directory: Directory) -> list[str]:
    """Three identities of one face, merged: the first is the root."""
    inserted = [directory.force(other("hopper", n), f"P{n}", f"P-{n}")["personId"] for n in range(3)]
    directory.merge(*inserted)
    return inserted


def test_identities_the_oldest_becomes_root(directory: Directory) -> None:
    """Root = the one among `personIds` that is a root already, else the oldest."""
    inserted = [directory.force(other("hopper", n), f"P{n}", f"P-{n}")["personId"] for n in range(3)]
    directory.merge(inserted[2], inserted[0], inserted[1])
    assert {person["rootPersonId"] for person in directory.people()} == {inserted[0]}


def test_identities_who_is_a_root_already_stays_it(directory: Directory) -> None:
    """... the one that is a root already: of a merged set, though another record is older."""
    inserted = [directory.force(other("hopper", n), f"P{n}", f"P-{n}")["personId"] for n in range(3)]
    directory.merge(inserted[1], inserted[2])
    directory.merge(inserted[0], inserted[1])
    assert {person["rootPersonId"] for person in directory.people()} == {inserted[1]}


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
        assert face["personId"] == merged[0]  # each reference still answers, as the root
        assert directory.face_image(person_id).status_code == 200


def test_identities_image_uri_is_the_roots_current_reference(directory: Directory, merged: list[str]) -> None:
    """`imageURI` = the root's current reference; `unmergedImageURIs` = those of its children (modalities)."""
    (root,) = directory.roots()
    children = [person["unmergedImageURI"] for person in directory.people()[1:]]
    assert root["unmergedImageURIs"] == children
    assert {person["imageURI"] for person in directory.people()} == {root["imageURI"]}
    assert directory.stored(root["imageURI"]).content == directory.face_image(merged[0]).content


def test_identities_unmerged_image_uris_are_absent_without_children(gallery: Gallery) -> None:
    """... absent when there is none."""
    assert all("unmergedImageURIs" not in person for person in gallery.directory.people())


def test_identities_unmerge_restores_exactly(directory: Directory) -> None:
    """Unmerge removes pointers, so it restores exactly."""
    inserted = [directory.force(other("hopper", n), f"P{n}", f"P-{n}")["personId"] for n in range(3)]
    directory.put(f"/people/{inserted[1]}", {"tags": ["vip"]})
    before = [_without_date(person) for person in directory.people()]
    directory.merge(*inserted)
    assert [_without_date(person) for person in directory.people()] != before
    directory.unmerge(*inserted)
    assert [_without_date(person) for person in directory.people()] == before


def _without_date(person: Json) -> Json:
    return {key: value for key, value in person.items() if key != "modDate"}


def test_identities_later_changes_stay_with_their_record(directory: Directory, merged: list[str]) -> None:
    """... later changes stay with their record."""
    directory.put(f"/people/{merged[1]}", {"name": "Changed"})
    directory.faces(other("hopper", 2), name="A", external_id="A-1", update="false")
    directory.unmerge(*merged)
    records = {person["personId"]: person for person in directory.people()}
    assert [records[person_id]["name"] for person_id in merged] == ["P0", "Changed", "P2"]
    assert [records[person_id]["occurrence"] for person_id in merged] == [1, 1, 2]


def test_identities_unmerge_of_one_child_leaves_the_rest(directory: Directory, merged: list[str]) -> None:
    directory.unmerge(merged[0], merged[2])
    roots = {person["personId"]: person["rootPersonId"] for person in directory.people()}
    assert roots[merged[2]] == merged[2]


@pytest.mark.faces
def test_identities_people_of_a_crowd_are_recognised_again(lenient_directory: Directory, faces_dir: Path) -> None:
    """insert_all over a photo of many: posted again, every identity is found by its own face."""
    directory = lenient_directory
    image = (faces_dir / "groups-with-boxes" / "bald_guys.jpg").read_bytes()
    inserted = [
        face for face in directory.faces(image, name="A", external_id="A-1", insert_all="true") if "newId" in face
    ]
    assert len(inserted) >= 5
    again = directory.recognise(image, threshold=0)
    assert {face["personId"] for face in inserted} == {face["personId"] for face in again if "personId" in face}
