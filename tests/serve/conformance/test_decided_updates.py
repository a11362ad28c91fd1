"""decisions.md, "Identity semantics": update=true, and the counters."""

from __future__ import annotations

import time

import pytest

from tests.serve.conformance.client import Directory
from tests.serve.conformance.photos import other, pair, photo, poor

BEA = {"name": "Bea", "external_id": "B-2"}


# update=true


def test_identities_update_replaces_reference_and_image(directory: Directory) -> None:
    """Reference, embedding and image of the matched identity are replaced by the new face; its id stays."""
    before = directory.record(directory.insert(photo("hopper"), "Anna", "A-1")["personId"])
    answer = directory.answer(other("hopper"), update="true")
    after = directory.record(before["personId"])
    assert answer["accountUpdated"] is True
    assert after["imageURI"] != before["imageURI"]
    assert after["modDate"] >= before["modDate"]
    assert (after["addDate"], after["name"], after["externalId"]) == (before["addDate"], "Anna", "A-1")


def test_identities_update_takes_metadata_only_if_sent(directory: Directory) -> None:
    """The largest face also brings its header metadata, if sent."""
    person_id = directory.insert(photo("hopper"), "Anna", "A-1")["personId"]
    directory.answer(other("hopper"), name="Bea", update="true")
    record = directory.record(person_id)
    assert (record["name"], record["externalId"]) == ("Bea", "A-1")


def test_identities_update_shows_what_it_left(directory: Directory) -> None:
    """Answers show the identity after the call."""
    directory.insert(photo("hopper"), "Anna", "A-1")
    (face,) = directory.faces(other("hopper"), **BEA, update="true")
    assert (face["name"], face["personExternalId"]) == ("Bea", "B-2")


def test_identities_of_two_faces_on_one_person_the_best_updates(directory: Directory) -> None:
    """Two faces on one person: only the best-scoring updates."""
    person_id = directory.insert(photo("hopper"), "Anna", "A-1")["personId"]
    image = pair("hopper", "hopper")
    recognised = directory.recognise(image)
    assert {face["personId"] for face in recognised} == {person_id}
    best = max(range(2), key=lambda n: float(recognised[n]["similarityScore"]))
    directory.answer(image, update="true")
    again = directory.recognise(image, threshold=0)
    assert [face.get("personId") for face in again] == [person_id if n == best else None for n in range(2)]


def test_identities_update_with_the_identical_image_and_metadata_changes_nothing(directory: Directory) -> None:
    """Identical image and metadata: nothing changes. `accountUpdated: true` iff something did."""
    person_id = directory.insert(photo("hopper"), "Anna", "A-1")["personId"]
    before = directory.record(person_id)
    answer = directory.answer(photo("hopper"), name="Anna", external_id="A-1", update="true")
    after = directory.record(person_id)
    assert answer["accountUpdated"] is False
    for key in ("imageURI", "modDate", "name", "externalId"):
        assert after[key] == before[key]


def test_identities_update_with_the_identical_image_and_other_metadata(directory: Directory) -> None:
    before = directory.record(directory.insert(photo("hopper"), "Anna", "A-1")["personId"])
    answer = directory.answer(photo("hopper"), **BEA, update="true")
    after = directory.record(before["personId"])
    assert answer["accountUpdated"] is True
    assert after["imageURI"] == before["imageURI"]
    assert (after["name"], after["externalId"]) == ("Bea", "B-2")


def test_identities_quality_not_met_is_recognised_and_not_updated(directory: Directory) -> None:
    """Quality not met: recognised, not updated. With the check switched off, it is."""
    before = directory.record(directory.insert(photo("hopper"), "Anna", "A-1")["personId"])
    image = poor("hopper", "contrast")
    answer = directory.answer(image, **BEA, update="true")
    assert answer["accountUpdated"] is False
    assert directory.record(before["personId"])["imageURI"] == before["imageURI"]
    answer = directory.answer(image, **BEA, update="true", **{"min-fcq": 0})
    assert answer["accountUpdated"] is True
    assert directory.record(before["personId"])["imageURI"] != before["imageURI"]


def test_identities_update_without_insert(directory: Directory) -> None:
    """insert=false&update=true updates who is known and inserts nobody."""
    person_id = directory.insert(photo("hopper"), "Anna", "A-1")["personId"]
    assert directory.answer(other("hopper"), insert="false", update="true")["accountUpdated"] is True
    assert directory.answer(photo("collins"), **BEA, insert="false", update="true")["accountUpdated"] is False
    assert [person["personId"] for person in directory.people()] == [person_id]


# Counters


def test_identities_insertion_counts_1(directory: Directory) -> None:
    """Insertion counts 1."""
    assert directory.insert(photo("hopper"))["occurrence"] == 1
    assert directory.people()[0]["occurrence"] == 1


@pytest.mark.parametrize("query", [{"insert": "true", "update": "false"}, {"insert": "false", "update": "true"}])
def test_identities_later_matches_add_1(directory: Directory, query: dict[str, str]) -> None:
    """Each later call that matches the person with insert=true or update=true adds 1; answers show it."""
    before = directory.insert(photo("hopper"))
    time.sleep(0.002)
    for count in (2, 3):
        (face,) = directory.faces(photo("hopper"), **query)
        assert face["occurrence"] == count
    assert face["lastOccurrenceDate"] > before["lastOccurrenceDate"]
    assert face["rootPersonAddDate"] == before["rootPersonAddDate"]
    assert directory.people()[0]["occurrence"] == 3


def test_identities_a_call_counts_once(directory: Directory) -> None:
    """... (once per call): two faces of one person in one photo."""
    directory.insert(photo("hopper"))
    faces = directory.faces(pair("hopper", "hopper"), update="false", insert="true", name="A", external_id="A-1")
    assert [face["occurrence"] for face in faces] == [2, 2]


def test_identities_recognition_counts_nothing(directory: Directory) -> None:
    """A call with both false changes nothing."""
    before = directory.insert(photo("hopper"))
    for _ in range(2):
        (face,) = directory.recognise(other("hopper"))
    assert face["occurrence"] == 1
    assert face["lastOccurrenceDate"] == before["lastOccurrenceDate"]


def test_identities_counters_alone_are_no_update(directory: Directory) -> None:
    """Counters alone don't make `accountUpdated` true, nor change the date of the record."""
    before = directory.record(directory.insert(photo("hopper"))["personId"])
    answer = directory.answer(other("hopper"), name="Anna", external_id="A-1", update="false")
    assert answer["accountUpdated"] is False
    after = directory.record(before["personId"])
    assert after["occurrence"] == 2
    assert after["modDate"] == before["modDate"]
